/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The twelve functions that fabtests -D synapseai calls, in its order, and its export relative to
 * the address of the pool. NIXL calls two of them.
 */

#include <dlfcn.h>

#include "check.h"
#include "hlthunk.h"
#include "synapse_api.h"

#define PAGE 4096ull
#define LARGE (5 << 20)

_Static_assert(sizeof(synDeviceInfo) == 56, "synDeviceInfo of the vendor's header");
_Static_assert(sizeof(synDeviceInfoV2) == 72, "synDeviceInfoV2 of the vendor's header");
_Static_assert(offsetof(synDeviceInfoV2, fd) == 48, "synDeviceInfoV2 of the vendor's header");
_Static_assert(offsetof(synDeviceInfoV2, globalHbmBaseAddress) == 64, "the last field");

static struct {
	synStatus (*synInitialize)(void);
	synStatus (*synDestroy)(void);
	synStatus (*synDeviceAcquireByModuleId)(synDeviceId *, const synModuleId);
	synStatus (*synDeviceMalloc)(const synDeviceId, const uint64_t, uint64_t, const uint32_t,
				     uint64_t *);
	synStatus (*synDeviceFree)(const synDeviceId, const uint64_t, const uint32_t);
	synStatus (*synStreamCreateGeneric)(synStreamHandle *, const synDeviceId, const uint32_t);
	synStatus (*synStreamSynchronize)(const synStreamHandle);
	synStatus (*synHostMalloc)(const synDeviceId, const uint64_t, const uint32_t, void **);
	synStatus (*synHostFree)(const synDeviceId, const void *, const uint32_t);
	synStatus (*synMemsetD8Async)(uint64_t, const unsigned char, const size_t,
				      const synStreamHandle);
	synStatus (*synMemCopyAsync)(const synStreamHandle, const uint64_t, const uint64_t,
				     const uint64_t, const synDmaDir);
	synStatus (*synDeviceGetInfoV2)(const synDeviceId, synDeviceInfoV2 *);
	int (*export)(int, uint64_t, uint64_t, uint64_t, uint32_t);
} ops;

static synDeviceId device = -1;
static synStreamHandle stream;
static synDeviceInfoV2 info;

#define LOAD(library, field, name) CHECK((ops.field = dlsym(library, name)) != NULL)

static void load(void *synapse, void *thunk)
{
	CHECK(synapse != NULL && thunk != NULL);
	LOAD(synapse, synInitialize, "synInitialize");
	LOAD(synapse, synDestroy, "synDestroy");
	LOAD(synapse, synDeviceAcquireByModuleId, "synDeviceAcquireByModuleId");
	LOAD(synapse, synDeviceMalloc, "synDeviceMalloc");
	LOAD(synapse, synDeviceFree, "synDeviceFree");
	LOAD(synapse, synStreamCreateGeneric, "synStreamCreateGeneric");
	LOAD(synapse, synStreamSynchronize, "synStreamSynchronize");
	LOAD(synapse, synHostMalloc, "synHostMalloc");
	LOAD(synapse, synHostFree, "synHostFree");
	LOAD(synapse, synMemsetD8Async, "synMemsetD8Async");
	LOAD(synapse, synMemCopyAsync, "synMemCopyAsync");
	LOAD(synapse, synDeviceGetInfoV2, "synDeviceGetInfoV2");
	LOAD(thunk, export, "hlthunk_device_mapped_memory_export_dmabuf_fd");
}

static uint64_t address_of(const void *memory)
{
	return (uint64_t)(uintptr_t)memory;
}

static void copy(uint64_t dst, uint64_t src, size_t size, synDmaDir direction)
{
	CHECK_EQUAL(ops.synMemCopyAsync(stream, src, size, dst, direction), synSuccess);
	CHECK_EQUAL(ops.synStreamSynchronize(stream), synSuccess);
}

/* fabtests' get_dmabuf_fd */
static int export(uint64_t address, size_t size)
{
	return ops.export(info.fd, info.globalHbmBaseAddress, (size + PAGE - 1) & ~(PAGE - 1),
			  address - info.globalHbmBaseAddress, O_RDWR | O_CLOEXEC);
}

/* Checks the contents of device memory through a dma-buf. */
static void expect(uint64_t address, const unsigned char *bytes, size_t size)
{
	int fd = export(address, size);

	CHECK(fd >= 0);
	unsigned char *nic = nic_map(fd, size);
	CHECK(memcmp(nic, bytes, size) == 0);
	nic_unmap(nic, size);
	CHECK_EQUAL(close(fd), 0);
}

/* Copies to the device and back, with memory of synHostMalloc or of the program. */
static void round_trip(unsigned char *host, size_t size)
{
	uint64_t buffer = 0;
	unsigned char *sent = malloc(size), zeros[64] = { 0 };

	CHECK(sent != NULL);
	CHECK_EQUAL(ops.synDeviceMalloc(device, size, 0, 0, &buffer), synSuccess);
	CHECK(buffer % PAGE == 0 && buffer >= info.globalHbmBaseAddress);
	CHECK_EQUAL(ops.synMemsetD8Async(buffer, 0, size, stream), synSuccess);
	CHECK_EQUAL(ops.synStreamSynchronize(stream), synSuccess);
	expect(buffer, zeros, size < sizeof(zeros) ? size : sizeof(zeros));

	pattern(sent, size, (uint32_t)size);
	memcpy(host, sent, size);
	copy(buffer, address_of(host), size, HOST_TO_DRAM);
	expect(buffer, sent, size);
	memset(host, 0, size);
	copy(address_of(host), buffer, size, DRAM_TO_HOST);
	CHECK(memcmp(host, sent, size) == 0);

	/* Fills the middle in the same stream, without a wait before the copy. */
	size_t from = size / 3, count = size / 3;
	CHECK_EQUAL(ops.synMemsetD8Async(buffer + from, 0xa5, count, stream), synSuccess);
	copy(address_of(host), buffer, size, DRAM_TO_HOST);
	memset(sent + from, 0xa5, count);
	CHECK(memcmp(host, sent, size) == 0);

	/* Copies to another allocation. */
	uint64_t other = 0;
	CHECK_EQUAL(ops.synDeviceMalloc(device, size, 0, 0, &other), synSuccess);
	CHECK(other >= buffer + size || buffer >= other + size);
	copy(other, buffer, size, DRAM_TO_DRAM);
	expect(other, sent, size);
	CHECK_EQUAL(ops.synDeviceFree(device, other, 0), synSuccess);
	CHECK_EQUAL(ops.synDeviceFree(device, buffer, 0), synSuccess);
	CHECK_EQUAL(ops.synDeviceFree(device, buffer, 0), synInvalidArgument);
	free(sent);
}

/* Submits more jobs than the library has command buffers, then waits once. */
static void many(void)
{
	enum { COUNT = 200 };
	static uint32_t words[COUNT], back[COUNT];
	uint64_t buffer;

	CHECK_EQUAL(ops.synDeviceMalloc(device, sizeof(words), 0, 0, &buffer), synSuccess);
	for (uint32_t i = 0; i < COUNT; i++) {
		words[i] = i * 2654435761u;
		CHECK_EQUAL(ops.synMemCopyAsync(stream, address_of(&words[i]), 4, buffer + 4 * i,
						HOST_TO_DRAM),
			    synSuccess);
	}
	copy(address_of(back), buffer, sizeof(back), DRAM_TO_HOST);
	CHECK(memcmp(words, back, sizeof(words)) == 0);
	CHECK_EQUAL(ops.synDeviceFree(device, buffer, 0), synSuccess);
}

static void refusals(void)
{
	unsigned char byte = 0;
	void *host = NULL;
	uint64_t buffer, other;

	CHECK_EQUAL(ops.synDeviceAcquireByModuleId(&device, 0), synDeviceAlreadyAcquired);
	CHECK_EQUAL(ops.synDeviceMalloc(device, 0, 0, 0, &buffer), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceMalloc(device, PAGE, 0, 0, NULL), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceMalloc(device, UINT64_MAX, 0, 0, &buffer), synOutOfDeviceMemory);
	CHECK_EQUAL(ops.synDeviceMalloc(7, PAGE, 0, 0, &buffer), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceMalloc(device, PAGE, 0, 0, &buffer), synSuccess);
	CHECK_EQUAL(ops.synDeviceMalloc(device, PAGE, buffer, 0, &other), synOutOfDeviceMemory);
	CHECK_EQUAL(ops.synDeviceMalloc(device, PAGE, buffer + PAGE, 0, &other), synSuccess);
	CHECK_EQUAL(other, buffer + PAGE);
	/* A range past the end of an allocation fails, although another allocation follows. */
	CHECK_EQUAL(ops.synMemsetD8Async(buffer, 1, PAGE + 1, stream), synInvalidArgument);
	CHECK_EQUAL(ops.synMemsetD8Async(buffer - 1, 1, 2, stream), synInvalidArgument);
	CHECK_EQUAL(ops.synMemsetD8Async(buffer, 1, SIZE_MAX, stream), synInvalidArgument);
	CHECK_EQUAL(ops.synMemsetD8Async(buffer, 1, 0, stream), synSuccess);
	CHECK_EQUAL(ops.synMemsetD8Async(buffer, 1, 1, NULL), synInvalidArgument);
	CHECK_EQUAL(ops.synStreamSynchronize(NULL), synInvalidArgument);
	CHECK_EQUAL(ops.synStreamSynchronize((synStreamHandle)(uintptr_t)&byte), synInvalidArgument);
	CHECK_EQUAL(ops.synStreamCreateGeneric(NULL, device, 0), synInvalidArgument);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, 0, 1, buffer, HOST_TO_DRAM), synMappingNotFound);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, address_of(&byte), 1, 0, HOST_TO_DRAM),
		    synInvalidArgument);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, address_of(&byte), 1, buffer, 99),
		    synInvalidArgument);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, UINT64_MAX, 2, buffer, HOST_TO_DRAM),
		    synInvalidArgument);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, other + PAGE, 1, buffer, DRAM_TO_DRAM),
		    synInvalidArgument);
	CHECK_EQUAL(ops.synMemCopyAsync(stream, buffer, 1, other + PAGE, DRAM_TO_DRAM),
		    synInvalidArgument);
	CHECK_EQUAL(ops.synHostMalloc(device, 0, 0, &host), synInvalidArgument);
	CHECK_EQUAL(ops.synHostMalloc(device, PAGE, 0, NULL), synInvalidArgument);
	CHECK_EQUAL(ops.synHostFree(device, &byte, 0), synInvalidArgument);
	CHECK_EQUAL(ops.synHostFree(device, NULL, 0), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceGetInfoV2(device, NULL), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceFree(device, buffer + 1, 0), synInvalidArgument);
	CHECK_EQUAL(ops.synDeviceFree(device, buffer, 0), synSuccess);
	CHECK_EQUAL(ops.synDeviceFree(device, other, 0), synSuccess);
	/* An address outside the pool reaches the driver, which rejects it. */
	CHECK(export(info.globalHbmBaseAddress - PAGE, PAGE) < 0);
}

static void run(void)
{
	static unsigned char static_memory[70000];
	unsigned char stack[4099];
	void *host = NULL;

	CHECK_EQUAL(ops.synDeviceAcquireByModuleId(&device, 0), synUninitialized);
	CHECK_EQUAL(ops.synInitialize(), synSuccess);
	CHECK_EQUAL(ops.synDeviceGetInfoV2(0, &info), synNoDeviceFound);
	CHECK_EQUAL(ops.synDeviceAcquireByModuleId(&device, 77), synNoDeviceFound);
	CHECK_EQUAL(ops.synDeviceAcquireByModuleId(&device, 0), synSuccess);
	CHECK_EQUAL(ops.synDeviceGetInfoV2(device, &info), synSuccess);
	CHECK_EQUAL(info.deviceType, synDeviceGaudi2);
	CHECK_EQUAL(info.deviceId, device);
	CHECK(info.globalHbmBaseAddress >= info.dramBaseAddress && info.dramSize > 0);
	CHECK_EQUAL(ops.synStreamCreateGeneric(&stream, device, 0), synSuccess);

	CHECK_EQUAL(ops.synHostMalloc(device, LARGE, 0, &host), synSuccess);
	const size_t sizes[] = { 1, 2, 63, 4095, 4096, 4097, 65536, 1000003, LARGE };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		round_trip(host, sizes[i]);
	/* Exports at an offset. */
	round_trip((unsigned char *)host + 129, 70001);
	CHECK_EQUAL(ops.synHostFree(device, host, 0), synSuccess);
	CHECK_EQUAL(ops.synHostFree(device, host, 0), synInvalidArgument);
	round_trip(stack, sizeof(stack));
	round_trip(static_memory + 1, sizeof(static_memory) - 1);
	many();
	refusals();
	/* Releasing the device frees memory and jobs in flight. */
	uint64_t left;
	CHECK_EQUAL(ops.synDeviceMalloc(device, LARGE, 0, 0, &left), synSuccess);
	CHECK_EQUAL(ops.synHostMalloc(device, LARGE, 0, &host), synSuccess);
	CHECK_EQUAL(ops.synMemsetD8Async(left, 1, LARGE, stream), synSuccess);
	CHECK_EQUAL(ops.synDestroy(), synSuccess);
	CHECK_EQUAL(ops.synStreamSynchronize(stream), synUninitialized);
}

int main(void)
{
	void *synapse = dlopen("libSynapse.so", RTLD_NOW);
	void *thunk = dlopen("libhl-thunk.so", RTLD_NOW);

	load(synapse, thunk);
	run();
	/* The device can be acquired again. */
	run();
	CHECK_EQUAL(dlclose(synapse), 0);
	CHECK_EQUAL(dlclose(thunk), 0);
	return 0;
}
