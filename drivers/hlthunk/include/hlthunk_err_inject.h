/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The C interface of libhl-thunk-err_injection.so: error injection.
 *
 * The functions work only on a mock: a descriptor that libhl-thunk.so opened while GAUDI_DEVICE
 * selected one. On hardware they return -ENOTSUP. They return 0 on success and a negative errno
 * value on failure.
 */

#ifndef HLTHUNK_ERR_INJECT_H
#define HLTHUNK_ERR_INJECT_H

#include "hlthunk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Submits a command that never completes. Returns after the driver has reset the device. */
hlthunk_public int hlthunk_err_inject_endless_command(int fd);

/* Injects an event that does not cause a reset. Stores the event number. */
hlthunk_public int hlthunk_err_inject_non_fatal_event(int fd, int *event_num);

/*
 * Injects an event that causes a reset. Stores the event number. Closes `fd`, even on failure, and
 * returns when the device can be opened again.
 */
hlthunk_public int hlthunk_err_inject_fatal_event(int fd, int *event_num);

/* The firmware stops responding, and the driver resets the device. Closes `fd` as above. */
hlthunk_public int hlthunk_err_inject_loss_of_heartbeat(int fd);

/* Starts thermal clock throttling. */
hlthunk_public int hlthunk_err_inject_thermal_event(int fd);

/* Ends thermal clock throttling. */
hlthunk_public int hlthunk_err_eject_thermal_event(int fd);

#ifdef __cplusplus
}
#endif

#endif
