/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Threads that pthread_cancel(3) ends: one while it waits for events, others with a pending
 * cancellation in each call that has a cancellation point inside.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "hlthunk.h"

static int device = -1, events = -1, calls;

/* A call is not interrupted: only the program's own cancellation point ends the thread. */
static void *opens_and_closes(void *argument)
{
	char address[16];
	struct hlthunk_debugfs debugfs;
	struct hlthunk_hw_ip_info hw_ip;

	(void)argument;
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	int fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL);
	CHECK(fd >= 0);
	CHECK_EQUAL(hlthunk_get_hw_ip_info(fd, &hw_ip), 0);
	CHECK_EQUAL(hlthunk_get_pci_bus_id_from_fd(fd, address, sizeof(address)), 0);
	CHECK_EQUAL(hlthunk_get_device_index_from_pci_bus_id(address), 0);
	CHECK_EQUAL(hlthunk_get_device_count(HLTHUNK_DEVICE_GAUDI2), 1);
	CHECK(hlthunk_debugfs_open(fd, &debugfs) < 0);
	int handle = hlthunk_notifier_create(fd);
	CHECK(handle >= 0);
	CHECK_EQUAL(hlthunk_notifier_release(fd, handle), 0);
	int control = hlthunk_open_control(0, NULL);
	CHECK(control >= 0);
	CHECK_EQUAL(hlthunk_close(control), 0);
	CHECK_EQUAL(hlthunk_close(fd), 0);
	hlthunk_profiler_destroy();
	calls++;
	pthread_testcancel();
	calls++;
	return NULL;
}

static void *waits_for_events(void *argument)
{
	uint64_t bits, number;

	(void)argument;
	calls++;
	hlthunk_notifier_recv(device, events, &bits, &number, 0, UINT32_MAX);
	calls++;
	return NULL;
}

static void is_cancelled(pthread_t thread)
{
	struct timespec limit;
	void *result;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 60;
	CHECK_EQUAL(pthread_timedjoin_np(thread, &result, &limit), 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK_EQUAL(calls, 1);
	calls = 0;
}

int main(void)
{
	pthread_t thread;

	CHECK_EQUAL(pthread_create(&thread, NULL, opens_and_closes, NULL), 0);
	is_cancelled(thread);

	device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL);
	CHECK(device >= 0);
	events = hlthunk_notifier_create(device);
	CHECK(events >= 0);
	CHECK_EQUAL(pthread_create(&thread, NULL, waits_for_events, NULL), 0);
	/* Whether or not the thread waits already. */
	usleep(50000);
	CHECK_EQUAL(pthread_cancel(thread), 0);
	is_cancelled(thread);

	/* The library works as before. */
	CHECK_EQUAL(hlthunk_get_device_status_info(device), 0);
	CHECK_EQUAL(hlthunk_notifier_release(device, events), 0);
	CHECK_EQUAL(hlthunk_close(device), 0);
	return 0;
}
