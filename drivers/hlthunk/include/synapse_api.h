/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The C interface of the shim libSynapse.so: the functions of the vendor's library that libfabric,
 * fabtests, NIXL and UCX call. perftest links the library but calls no function of it.
 *
 * A process can acquire one device at a time. Handles are not dereferenced; an invalid handle
 * returns synInvalidArgument.
 */

#ifndef SYNAPSE_API_H
#define SYNAPSE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The status codes that the shim returns. */
typedef enum synStatus {
	synSuccess = 0,
	synInvalidArgument = 1,
	synOutOfHostMemory = 3,
	synOutOfDeviceMemory = 4,
	synCommandSubmissionFailure = 7,
	synNoDeviceFound = 8,
	synDeviceReset = 17,
	synUnsupported = 18,
	synDeviceAlreadyAcquired = 20,
	synBusy = 22,
	synFail = 26,
	synUninitialized = 28,
	synMappingNotFound = 34
} synStatus;

typedef enum synDmaDir {
	HOST_TO_DRAM = 0,
	DRAM_TO_HOST = 1,
	DRAM_TO_DRAM = 2
} synDmaDir;

typedef enum synDeviceType {
	synDeviceGaudi = 2,
	synDeviceGaudi2 = 4,
	synDeviceGaudi3 = 5
} synDeviceType;

typedef uint32_t synDeviceId;
typedef uint32_t synModuleId;
typedef struct InternalStreamHandle *synStreamHandle;

typedef struct synDeviceInfo {
	uint64_t sramBaseAddress;
	uint64_t dramBaseAddress;
	uint32_t sramSize;
	uint64_t dramSize;
	uint64_t tpcEnabledMask;
	uint8_t dramEnabled;
	uint32_t deviceId;
	uint32_t fd;
	synDeviceType deviceType;
} synDeviceInfo;

typedef struct synDeviceInfoV2 {
	uint64_t sramBaseAddress;
	uint64_t dramBaseAddress;
	uint32_t sramSize;
	uint64_t dramSize;
	uint64_t tpcEnabledMask;
	uint8_t dramEnabled;
	uint32_t deviceId;
	uint32_t fd;
	synDeviceType deviceType;
	uint8_t deviceIndex;
	/* The device address of the mapping that synDeviceMalloc() allocates from. */
	uint64_t globalHbmBaseAddress;
} synDeviceInfoV2;

/* Loads libhl-thunk.so. A second call has no effect. */
synStatus synInitialize(void);

/* Waits for all work, and releases the device. */
synStatus synDestroy(void);

synStatus synDeviceGetCount(uint32_t *pCount);

/* Opens a device and allocates its memory except for one page. */
synStatus synDeviceAcquireByModuleId(synDeviceId *pDeviceId, const synModuleId moduleId);

/* Describes the device of this process. The identifier -1 selects it as well. */
synStatus synDeviceGetInfo(const synDeviceId deviceId, synDeviceInfo *pDeviceInfo);
synStatus synDeviceGetInfoV2(const synDeviceId deviceId, synDeviceInfoV2 *pDeviceInfo);

/* Allocates whole pages of 4 KiB, at `reqAddr` unless it is 0. */
synStatus synDeviceMalloc(const synDeviceId deviceId, const uint64_t size, uint64_t reqAddr,
			  const uint32_t flags, uint64_t *buffer);
synStatus synDeviceFree(const synDeviceId deviceId, const uint64_t buffer, const uint32_t flags);

/* Allocates host memory that the device can access. */
synStatus synHostMalloc(const synDeviceId deviceId, const uint64_t size, const uint32_t flags,
			void **buffer);
synStatus synHostFree(const synDeviceId deviceId, const void *buffer, const uint32_t flags);

synStatus synStreamCreateGeneric(synStreamHandle *pStreamHandle, const synDeviceId deviceId,
				 const uint32_t flags);

/* Waits until all work of a stream has completed. */
synStatus synStreamSynchronize(const synStreamHandle streamHandle);

synStatus synMemsetD8Async(uint64_t pDeviceMem, const unsigned char value,
			   const size_t numOfElements, const synStreamHandle streamHandle);

/* Maps host memory that synHostMalloc() did not allocate for the duration of the copy. */
synStatus synMemCopyAsync(const synStreamHandle streamHandle, const uint64_t src,
			  const uint64_t size, const uint64_t dst, const synDmaDir direction);

/*
 * Exports device memory as a new dma-buf that starts at `addr`, a multiple of 4 KiB.
 * synDeviceMalloc() returned the address, or the program mapped it through libhl-thunk.so. Returns
 * 0, or a negative errno value and -1 in `fd`.
 */
int hcclLookupDMABuff(uint64_t addr, uint64_t size, int *fd);

#ifdef __cplusplus
}
#endif

#endif
