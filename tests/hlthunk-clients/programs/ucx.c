/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The calls of UCX's gaudi_gdr in the order of `ucx_info -d`, with a device that it opens itself,
 * and with one that the program acquired through libSynapse. Linked with the four libraries. UCX
 * opens control nodes by path, which a mock does not have, so the program uses the library.
 */

#include "check.h"
#include "hlthunk.h"
#include "scal.h"
#include "synapse_api.h"

_Static_assert(sizeof(scal_memory_pool_infoV2) == 72, "as UCX declares it");

static scal_memory_pool_infoV2 pool_of(int fd, bool is_known)
{
	scal_memory_pool_infoV2 info;
	scal_handle_t scal = NULL;
	scal_pool_handle_t pool = NULL;
	int result = scal_get_handle_from_fd(fd, &scal);

	CHECK_EQUAL(result, is_known ? SCAL_SUCCESS : SCAL_NOT_FOUND);
	if (result != SCAL_SUCCESS)
		CHECK_EQUAL(scal_init(fd, "", &scal, NULL), SCAL_SUCCESS);
	CHECK_EQUAL(scal_get_pool_handle_by_name(scal, "global_hbm", &pool), SCAL_SUCCESS);
	CHECK_EQUAL(scal_pool_get_infoV2(pool, &info), SCAL_SUCCESS);
	CHECK(strcmp(info.name, "global_hbm") == 0);
	CHECK(info.scal == scal && info.totalSize > 0);

	/* Handles of the wrong kind, and an unknown pool name. */
	CHECK_EQUAL(scal_get_pool_handle_by_name(scal, "hbm", &pool), SCAL_NOT_FOUND);
	CHECK_EQUAL(scal_get_pool_handle_by_name(scal, NULL, &pool), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_get_pool_handle_by_name(scal, "global_hbm", NULL), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_get_pool_handle_by_name(NULL, "global_hbm", &pool), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_pool_get_infoV2((scal_pool_handle_t)scal, &info), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_pool_get_infoV2((scal_pool_handle_t)(uintptr_t)&info, &info),
		    SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_pool_get_infoV2(pool, NULL), SCAL_INVALID_PARAM);
	return info;
}

static int export(int fd, scal_memory_pool_infoV2 pool)
{
	return hlthunk_device_mapped_memory_export_dmabuf_fd(
		fd, pool.device_base_allocated_address, pool.totalSize,
		pool.device_base_address - pool.device_base_allocated_address, O_RDWR | O_CLOEXEC);
}

static void own_device(void)
{
	struct hlthunk_hw_ip_info ip;
	synDeviceInfo info;
	char bus_id[13];

	int control = hlthunk_open_control_by_name(HLTHUNK_DEVICE_DONT_CARE, NULL);
	CHECK(control >= 0);
	CHECK_EQUAL(hlthunk_get_pci_bus_id_from_fd(control, bus_id, sizeof(bus_id)), 0);
	CHECK_EQUAL(hlthunk_get_hw_ip_info(control, &ip), 0);
	CHECK_EQUAL(ip.module_id, 0);
	CHECK_EQUAL(close(control), 0);
	CHECK_EQUAL(hlthunk_get_device_count(HLTHUNK_DEVICE_DONT_CARE), 1);
	CHECK(synDeviceGetInfo(-1, &info) != synSuccess);
	int fd = hlthunk_open_by_module_id(0);
	CHECK(fd >= 0);
	scal_memory_pool_infoV2 pool = pool_of(fd, false);
	int dmabuf = export(fd, pool);
	CHECK(dmabuf >= 0);
	CHECK_EQUAL(hlthunk_get_pci_bus_id_from_fd(fd, bus_id, sizeof(bus_id)), 0);

	/* A duplicate refers to the same open of the device. */
	int duplicate = dup(fd);
	CHECK_EQUAL(pool_of(duplicate, true).device_base_address, pool.device_base_address);
	CHECK_EQUAL(close(duplicate), 0);
	CHECK_EQUAL(close(dmabuf), 0);
	CHECK_EQUAL(hlthunk_close(fd), 0);
}

/* The dma-buf that UCX creates of the pool contains memory of synDeviceMalloc. */
static void acquired_device(void)
{
	enum { SIZE = 12345 };
	unsigned char sent[SIZE];
	synDeviceId device;
	synDeviceInfo info;
	synStreamHandle stream;
	uint64_t buffer;

	CHECK_EQUAL(synInitialize(), synSuccess);
	CHECK_EQUAL(synDeviceAcquireByModuleId(&device, 0), synSuccess);
	CHECK_EQUAL(synDeviceGetInfo(-1, &info), synSuccess);
	scal_memory_pool_infoV2 pool = pool_of(info.fd, true);
	int dmabuf = export(info.fd, pool);
	CHECK(dmabuf >= 0);
	CHECK_EQUAL(synDeviceMalloc(device, 4096, 0, 0, &buffer), synSuccess);
	CHECK_EQUAL(synDeviceMalloc(device, SIZE, 0, 0, &buffer), synSuccess);
	CHECK(buffer >= pool.device_base_address);
	CHECK_EQUAL(synStreamCreateGeneric(&stream, device, 0), synSuccess);
	pattern(sent, SIZE, 3);
	CHECK_EQUAL(synMemCopyAsync(stream, (uintptr_t)sent, SIZE, buffer, HOST_TO_DRAM), synSuccess);
	CHECK_EQUAL(synStreamSynchronize(stream), synSuccess);
	unsigned char *nic = nic_map_at(dmabuf, buffer - pool.device_base_address, SIZE);
	CHECK(memcmp(nic, sent, SIZE) == 0);
	nic_unmap(nic, SIZE);

	/* libfabric's call for the same memory: inside the pool and outside it. */
	int own;
	CHECK_EQUAL(hcclLookupDMABuff(buffer, SIZE, &own), 0);
	nic = nic_map(own, SIZE);
	CHECK(memcmp(nic, sent, SIZE) == 0);
	nic_unmap(nic, SIZE);
	CHECK_EQUAL(close(own), 0);
	CHECK_EQUAL(hcclLookupDMABuff(buffer + (1 << 20), 4096, &own), -EINVAL);
	CHECK_EQUAL(own, -1);
	/* The page that the pool leaves to the program. */
	uint64_t handle = hlthunk_device_memory_alloc(info.fd, 4096, 0, true, false);
	CHECK(handle != 0);
	uint64_t mapped = hlthunk_device_memory_map(info.fd, handle, 0);
	CHECK(mapped != 0);
	CHECK_EQUAL(hcclLookupDMABuff(mapped + 4096, 4096, &own), 0);
	CHECK_EQUAL(close(own), 0);

	CHECK_EQUAL(close(dmabuf), 0);
	CHECK_EQUAL(synDestroy(), synSuccess);
}

int main(void)
{
	scal_handle_t scal;
	int pipes[2];

	CHECK_EQUAL(pipe(pipes), 0);
	CHECK_EQUAL(scal_init(-1, "", &scal, NULL), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_init(pipes[0], "", &scal, NULL), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_get_handle_from_fd(pipes[0], &scal), SCAL_INVALID_PARAM);
	CHECK_EQUAL(scal_init(0, "", NULL, NULL), SCAL_INVALID_PARAM);
	scal_destroy(NULL);
	scal_destroy((scal_handle_t)(uintptr_t)&scal);
	for (int i = 0; i < 3; i++) {
		/* The descriptor number is the same each time, but the pool is a new one. */
		own_device();
		acquired_device();
	}
	return 0;
}
