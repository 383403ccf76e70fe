/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Calls each function of libhl-thunk-err_injection.so, and checks what the driver reports. */

#include <time.h>

#include "check.h"
#include "hlthunk.h"
#include "hlthunk_err_inject.h"

static int device;
static char bus_id[13];

static void open_device(void)
{
	device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id[0] ? bus_id : NULL);
	CHECK(device >= 0);
}

static uint32_t hard_resets(void)
{
	struct hlthunk_reset_count_info info;

	CHECK_EQUAL(hlthunk_get_reset_count_info(device, &info), 0);
	CHECK_EQUAL(info.soft_reset_count, 0);
	return info.hard_reset_count;
}

static uint32_t events(int event)
{
	struct hlthunk_hw_ip_info ip;

	CHECK_EQUAL(hlthunk_get_hw_ip_info(device, &ip), 0);
	CHECK(event >= 0 && (uint32_t)event < ip.num_of_events);
	uint32_t counts[ip.num_of_events];
	CHECK_EQUAL(hlthunk_get_hw_events_arr(device, true, sizeof(counts), counts), 0);
	return counts[event];
}

/* Injects into a descriptor that does not belong to a mock. */
static void refused(int fd, int errno_expected)
{
	int event = 12345;

	CHECK_EQUAL(hlthunk_err_inject_endless_command(fd), -errno_expected);
	CHECK_EQUAL(hlthunk_err_inject_non_fatal_event(fd, &event), -errno_expected);
	CHECK_EQUAL(hlthunk_err_inject_fatal_event(fd, &event), -errno_expected);
	CHECK_EQUAL(hlthunk_err_inject_loss_of_heartbeat(fd), -errno_expected);
	CHECK_EQUAL(hlthunk_err_inject_thermal_event(fd), -errno_expected);
	CHECK_EQUAL(hlthunk_err_eject_thermal_event(fd), -errno_expected);
	CHECK_EQUAL(event, 12345);
}

int main(void)
{
	struct hlthunk_clk_throttle_info throttle;
	int event = -1, pipes[2];

	open_device();
	CHECK_EQUAL(hlthunk_get_pci_bus_id_from_fd(device, bus_id, sizeof(bus_id)), 0);

	/* Thermal event: the clocks are throttled until it is ejected. */
	CHECK_EQUAL(hlthunk_get_clk_throttle_info(device, &throttle), 0);
	CHECK_EQUAL(throttle.clk_throttle_reason_bitmask, 0);
	CHECK_EQUAL(hlthunk_err_eject_thermal_event(device), 0);
	CHECK_EQUAL(hlthunk_err_inject_thermal_event(device), 0);
	CHECK_EQUAL(hlthunk_get_clk_throttle_info(device, &throttle), 0);
	CHECK_EQUAL(throttle.clk_throttle_reason_bitmask, HL_CLK_THROTTLE_THERMAL);
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	CHECK_EQUAL(hlthunk_err_eject_thermal_event(device), 0);
	CHECK_EQUAL(hlthunk_get_clk_throttle_info(device, &throttle), 0);
	CHECK_EQUAL(throttle.clk_throttle_reason_bitmask, 0);
	CHECK(throttle.clk_throttle_duration_ns[HL_CLK_THROTTLE_TYPE_THERMAL] >= 1000000);
	CHECK_EQUAL(throttle.clk_throttle_duration_ns[HL_CLK_THROTTLE_TYPE_POWER], 0);

	/* Non-fatal event: counted and notified, without a reset. */
	int notifier = hlthunk_notifier_create(device);
	CHECK(notifier >= 0);
	uint64_t mask = 0, count = 0;
	CHECK_EQUAL(hlthunk_err_inject_non_fatal_event(device, NULL), -EINVAL);
	CHECK_EQUAL(hlthunk_err_inject_non_fatal_event(device, &event), 0);
	CHECK_EQUAL(events(event), 1);
	CHECK_EQUAL(hard_resets(), 0);
	CHECK_EQUAL(hlthunk_get_device_status_info(device), HL_DEVICE_STATUS_OPERATIONAL);
	CHECK_EQUAL(hlthunk_notifier_recv(device, notifier, &mask, &count, 0, 1000), 0);
	CHECK(mask & HL_NOTIFIER_EVENT_GENERAL_HW_ERR);
	CHECK_EQUAL(hlthunk_notifier_release(device, notifier), 0);

	/* A descriptor that is not a device's is rejected and stays open. */
	CHECK_EQUAL(pipe(pipes), 0);
	refused(pipes[0], ENOTTY);
	CHECK(fcntl(pipes[0], F_GETFD) >= 0);
	refused(-1, EBADF);

	/*
	 * A node that does not implement the operation, like the driver's: rejected. The functions for
	 * fatal errors still close the descriptor.
	 */
	int control = hlthunk_open_control_by_bus_id(bus_id);
	CHECK(control >= 0);
	CHECK_EQUAL(hlthunk_err_inject_thermal_event(control), -ENOTSUP);
	CHECK_EQUAL(hlthunk_err_inject_endless_command(control), -ENOTSUP);
	CHECK_EQUAL(hlthunk_err_inject_loss_of_heartbeat(control), -ENOTSUP);
	CHECK(fcntl(control, F_GETFD) < 0 && errno == EBADF);
	CHECK_EQUAL(hlthunk_get_device_status_info(device), HL_DEVICE_STATUS_OPERATIONAL);

	/* Fatal event: a hard reset; the descriptor is closed. */
	int fatal = -1, old = device;
	CHECK_EQUAL(hlthunk_err_inject_fatal_event(device, NULL), -EINVAL);
	CHECK(fcntl(old, F_GETFD) >= 0);
	CHECK_EQUAL(hlthunk_err_inject_fatal_event(device, &fatal), 0);
	CHECK(fcntl(old, F_GETFD) < 0 && errno == EBADF);
	CHECK(fatal != event);
	open_device();
	CHECK_EQUAL(hard_resets(), 1);
	CHECK_EQUAL(events(fatal), 1);
	CHECK_EQUAL(events(event), 1);

	/* Loss of heartbeat: the same, without an event number. */
	CHECK_EQUAL(hlthunk_err_inject_loss_of_heartbeat(device), 0);
	open_device();
	CHECK_EQUAL(hard_resets(), 2);

	/* Endless command: the driver times it out, and resets the device when it is closed. */
	CHECK_EQUAL(hlthunk_err_inject_endless_command(device), 0);
	CHECK_EQUAL(hlthunk_get_device_status_info(device), HL_DEVICE_STATUS_IN_RESET);
	CHECK(hlthunk_err_inject_endless_command(device) < 0);
	CHECK_EQUAL(hlthunk_close(device), 0);
	open_device();
	CHECK_EQUAL(hard_resets(), 3);
	CHECK_EQUAL(hlthunk_get_device_status_info(device), HL_DEVICE_STATUS_OPERATIONAL);
	CHECK_EQUAL(hlthunk_close(device), 0);
	return 0;
}
