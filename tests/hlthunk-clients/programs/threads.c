/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Threads with one stream each, and a fork child, which cannot use a mock. */

#include <pthread.h>
#include <sys/wait.h>

#include "check.h"
#include "synapse_api.h"

enum { THREADS = 8, ROUNDS = 100, MOST = 20000 };

static synDeviceId device;

static void *copies(void *argument)
{
	uint32_t thread = (uint32_t)(uintptr_t)argument;
	static __thread unsigned char sent[MOST], back[MOST];
	synStreamHandle stream;
	void *host;

	CHECK_EQUAL(synStreamCreateGeneric(&stream, device, 0), synSuccess);
	CHECK_EQUAL(synHostMalloc(device, MOST, 0, &host), synSuccess);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		size_t size = 1 + (thread * 7919 + round * 104729) % MOST;
		uint64_t buffer;
		int fd;

		pattern(sent, size, thread << 16 | round);
		memcpy(host, sent, size);
		CHECK_EQUAL(synDeviceMalloc(device, size, 0, 0, &buffer), synSuccess);
		CHECK_EQUAL(synMemsetD8Async(buffer, 0xff, size, stream), synSuccess);
		CHECK_EQUAL(synMemCopyAsync(stream, (uintptr_t)host, size, buffer, HOST_TO_DRAM),
			    synSuccess);
		/* Memory of the thread, which the library maps for the copy. */
		CHECK_EQUAL(synMemCopyAsync(stream, buffer, size, (uintptr_t)back, DRAM_TO_HOST),
			    synSuccess);
		CHECK_EQUAL(hcclLookupDMABuff(buffer, size, &fd), 0);
		CHECK_EQUAL(synStreamSynchronize(stream), synSuccess);
		CHECK(memcmp(back, sent, size) == 0);
		unsigned char *nic = nic_map(fd, size);
		CHECK(memcmp(nic, sent, size) == 0);
		nic_unmap(nic, size);
		CHECK_EQUAL(close(fd), 0);
		CHECK_EQUAL(synDeviceFree(device, buffer, 0), synSuccess);
	}
	CHECK_EQUAL(synHostFree(device, host, 0), synSuccess);
	return NULL;
}

static void run(void)
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, copies, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
}

/* The device belongs to the parent. The child's calls fail, and its exit changes nothing. */
static void child(synStreamHandle stream, uint64_t buffer)
{
	synDeviceId own;
	uint64_t other;
	int fd;

	CHECK_EQUAL(synMemsetD8Async(buffer, 1, 1, stream), synCommandSubmissionFailure);
	CHECK(hcclLookupDMABuff(buffer, 4096, &fd) < 0);
	CHECK_EQUAL(fd, -1);
	CHECK_EQUAL(synDeviceAcquireByModuleId(&own, 0), synDeviceAlreadyAcquired);
	CHECK(synHostMalloc(device, 4096, 0, (void **)&other) != synSuccess);
	CHECK(synDestroy() != synSuccess);
	_exit(0);
}

int main(void)
{
	synStreamHandle stream;
	uint64_t buffer;
	int status;

	CHECK_EQUAL(synInitialize(), synSuccess);
	CHECK_EQUAL(synDeviceAcquireByModuleId(&device, 0), synSuccess);
	CHECK_EQUAL(synStreamCreateGeneric(&stream, device, 0), synSuccess);
	CHECK_EQUAL(synDeviceMalloc(device, 4096, 0, 0, &buffer), synSuccess);
	run();
	pid_t process = fork();
	CHECK(process >= 0);
	if (process == 0)
		child(stream, buffer);
	CHECK_EQUAL(waitpid(process, &status, 0), process);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	run();
	CHECK_EQUAL(synDestroy(), synSuccess);
	return 0;
}
