/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * libfabric's four calls of libSynapse.so, in its order, for device memory that the program mapped
 * through libhl-thunk.so.
 */

#include <dlfcn.h>

#include "check.h"
#include "hlthunk.h"
#include "synapse_api.h"

#define SIZE (1 << 20)

static synStatus (*initialize)(void);
static synStatus (*destroy)(void);
static synStatus (*device_count)(uint32_t *);
static int (*lookup)(uint64_t, uint64_t, int *);

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	CHECK(found != NULL);
	return found;
}

/* Looks up a range that does not exist. */
static void refused(uint64_t address, uint64_t size)
{
	int fd = 12345;

	CHECK(lookup(address, size, &fd) < 0);
	CHECK_EQUAL(fd, -1);
}

int main(void)
{
	void *library = dlopen("libSynapse.so", RTLD_NOW);
	uint32_t count = 0;
	int fd, again;

	CHECK(library != NULL);
	initialize = symbol(library, "synInitialize");
	destroy = symbol(library, "synDestroy");
	device_count = symbol(library, "synDeviceGetCount");
	lookup = symbol(library, "hcclLookupDMABuff");
	CHECK_EQUAL(device_count(&count), synUninitialized);
	CHECK_EQUAL(initialize(), synSuccess);
	CHECK_EQUAL(initialize(), synSuccess);
	CHECK_EQUAL(device_count(&count), synSuccess);
	CHECK_EQUAL(count, 1);
	refused(0x1001000000000000, 4096);

	/* Two mappings of memory on the program's own device. */
	int device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL);
	CHECK(device >= 0);
	refused(0x1001000000000000, 4096);
	uint64_t handles[2], addresses[2];
	for (int i = 0; i < 2; i++) {
		handles[i] = hlthunk_device_memory_alloc(device, SIZE, 0, true, false);
		CHECK(handles[i] != 0);
		addresses[i] = hlthunk_device_memory_map(device, handles[i], 0);
		CHECK(addresses[i] != 0);
	}
	/* A duplicate refers to the same device, not to a second one. */
	int duplicate = dup(device);
	CHECK(duplicate >= 0);

	/* Looks up the start of the first mapping, and an address inside the second. */
	uint64_t inside = addresses[1] + 3 * 4096;
	unsigned char sent[SIZE / 2], *first, *second, *third;
	CHECK_EQUAL(lookup(addresses[0], SIZE, &fd), 0);
	first = nic_map(fd, SIZE);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQUAL(close(fd), 0);
	CHECK_EQUAL(lookup(inside, SIZE / 2, &fd), 0);
	second = nic_map(fd, SIZE / 2);
	pattern(sent, sizeof(sent), 2);
	memset(first, 0x5a, SIZE);
	memcpy(second, sent, sizeof(sent));
	/* Exports part of it a second time, and a size that is not a multiple of the page size. */
	CHECK_EQUAL(lookup(inside + 4096, 5000, &again), 0);
	CHECK(again != fd);
	third = nic_map(again, 8192);
	CHECK(memcmp(third, sent + 4096, 8192) == 0);
	CHECK(first[0] == 0x5a && first[SIZE - 1] == 0x5a);
	nic_unmap(third, 8192);
	CHECK_EQUAL(close(again), 0);

	/* Not exportable: an unaligned address, size 0, host memory, and a range past the end. */
	refused(addresses[0] + 1, 4096);
	refused(addresses[0], 0);
	refused((uint64_t)(uintptr_t)sent & ~4095ull, 4096);
	refused(0, 4096);
	refused(addresses[0], UINT64_MAX);
	refused(UINT64_MAX & ~4095ull, 4096);
	refused(addresses[0], 1ull << 46);
	CHECK_EQUAL(lookup(addresses[0], 4096, NULL), -EINVAL);

	/* libfabric does not close the descriptor; only the NIC's mapping holds the memory. */
	CHECK_EQUAL(hlthunk_memory_unmap(device, addresses[1]), -EINVAL);
	nic_unmap(second, SIZE / 2);
	CHECK_EQUAL(close(fd), 0);
	nic_unmap(first, SIZE);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(hlthunk_memory_unmap(device, addresses[i]), 0);
		CHECK_EQUAL(hlthunk_device_memory_free(device, handles[i]), 0);
		refused(addresses[i], 4096);
	}
	CHECK_EQUAL(close(duplicate), 0);
	CHECK_EQUAL(hlthunk_close(device), 0);
	CHECK_EQUAL(destroy(), synSuccess);
	CHECK_EQUAL(destroy(), synUninitialized);
	CHECK_EQUAL(dlclose(library), 0);
	return 0;
}
