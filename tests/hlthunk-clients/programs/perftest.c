/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The calls of perftest --use_hl, in its order, for two buffers. Linked with libhl-thunk and
 * libSynapse, like perftest. The program copies between the dma-bufs instead of a NIC.
 */

#include "check.h"
#include "hlthunk.h"
#include "synapse_api.h"

#define SIZE 65536

struct buffer {
	uint64_t handle;
	uint64_t address;
	int dmabuf;
	unsigned char *nic;
};

static struct buffer allocate(int device)
{
	struct buffer buffer;

	buffer.handle = hlthunk_device_memory_alloc(device, SIZE, 0, true, false);
	CHECK(buffer.handle != 0);
	buffer.address = hlthunk_device_memory_map(device, buffer.handle, 0);
	CHECK(buffer.address != 0);
	buffer.dmabuf = hlthunk_device_mapped_memory_export_dmabuf_fd(
		device, buffer.address, SIZE, 0, O_RDWR | O_CLOEXEC);
	CHECK(buffer.dmabuf >= 0);
	/* ibv_reg_dmabuf_mr(), after which perftest closes the descriptor. */
	buffer.nic = nic_map(buffer.dmabuf, SIZE);
	CHECK_EQUAL(close(buffer.dmabuf), 0);
	return buffer;
}

static void release(int device, struct buffer buffer)
{
	CHECK_EQUAL(hlthunk_memory_unmap(device, buffer.address), -EINVAL);
	CHECK_EQUAL(errno, EINVAL);
	nic_unmap(buffer.nic, SIZE);
	CHECK_EQUAL(hlthunk_memory_unmap(device, buffer.address), 0);
	CHECK_EQUAL(hlthunk_device_memory_free(device, buffer.handle), 0);
}

static void run(const char *bus_id)
{
	unsigned char sent[SIZE];
	int device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);

	CHECK(device >= 0);
	/* perftest opens the device once per process. */
	int second = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);
	CHECK(second < 0 && errno == EBUSY);

	struct buffer local = allocate(device), remote = allocate(device);
	CHECK(local.address != remote.address);
	pattern(sent, SIZE, 1);
	memcpy(local.nic, sent, SIZE);
	memcpy(remote.nic, local.nic, SIZE);
	CHECK(memcmp(remote.nic, sent, SIZE) == 0);
	release(device, local);
	CHECK(memcmp(remote.nic, sent, SIZE) == 0);
	release(device, remote);
	CHECK_EQUAL(hlthunk_close(device), 0);
}

int main(void)
{
	char bus_id[13];

	run(NULL);
	int device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL);
	CHECK(device >= 0);
	CHECK_EQUAL(hlthunk_get_pci_bus_id_from_fd(device, bus_id, sizeof(bus_id)), 0);
	CHECK_EQUAL(hlthunk_close(device), 0);
	run(bus_id);
	/* The library is linked, although perftest calls no function of it. */
	CHECK_EQUAL(synDeviceGetCount(NULL), synUninitialized);
	return 0;
}
