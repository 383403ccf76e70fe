/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The C interface of libhl-thunk-err_injection.so: errors on purpose.
 *
 * The functions work on a mock, that is on a descriptor that libhl-thunk.so opened while
 * GAUDI_DEVICE named one. On hardware each returns -ENOTSUP. Each returns 0 on success and a
 * negative errno value on failure.
 */

#ifndef HLTHUNK_ERR_INJECT_H
#define HLTHUNK_ERR_INJECT_H

#include "hlthunk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Submits a command that never ends. Returns when the driver timed it out and reset the device. */
hlthunk_public int hlthunk_err_inject_endless_command(int fd);

/* An event for which the driver does not reset the device. Stores the event's number. */
hlthunk_public int hlthunk_err_inject_non_fatal_event(int fd, int *event_num);

/*
 * An event for which the driver resets the device. Stores the event's number. Closes `fd`, also
 * when it fails, and returns when the device can be opened again.
 */
hlthunk_public int hlthunk_err_inject_fatal_event(int fd, int *event_num);

/* The firmware stops to answer, and the driver resets the device. Closes `fd` as above. */
hlthunk_public int hlthunk_err_inject_loss_of_heartbeat(int fd);

/* The clocks are throttled because of the temperature. */
hlthunk_public int hlthunk_err_inject_thermal_event(int fd);

/* They no longer are. */
hlthunk_public int hlthunk_err_eject_thermal_event(int fd);

#ifdef __cplusplus
}
#endif

#endif
