/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Results of the libraries if no device can be opened. */

#include "check.h"
#include "synapse_api.h"

int main(void)
{
	synDeviceId device = 77;
	uint32_t count = 77;
	uint64_t buffer;
	int fd = 77;

	CHECK_EQUAL(synInitialize(), synSuccess);
	CHECK_EQUAL(synDeviceGetCount(&count), synSuccess);
	CHECK_EQUAL(count, 0);
	CHECK_EQUAL(synDeviceAcquireByModuleId(&device, 0), synNoDeviceFound);
	CHECK_EQUAL(device, 77);
	CHECK_EQUAL(synDeviceMalloc(0, 4096, 0, 0, &buffer), synNoDeviceFound);
	CHECK_EQUAL(hcclLookupDMABuff(0x1001000000000000, 4096, &fd), -EINVAL);
	CHECK_EQUAL(fd, -1);
	CHECK_EQUAL(synDestroy(), synSuccess);
	return 0;
}
