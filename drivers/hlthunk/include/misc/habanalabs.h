/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * For programs that include the header of drivers before DRM (/dev/hlN, Linux up to 6.2).
 *
 * HL_IOCTL_* are the request numbers of those drivers. Everything else is as in
 * drm/habanalabs_accel.h: its structs only grew, and a driver fills the part that it knows.
 */

#ifndef GAUDI_MISC_HABANALABS_H
#define GAUDI_MISC_HABANALABS_H

#include "drm/habanalabs_accel.h"

#ifndef HL_CS_FLAGS_ENGINES_COMMAND
#error "misc/habanalabs.h of Linux 6.1 was included too; leave out one of the two"
#endif

#define HL_RAZWI_PAGE_FAULT 0
#define HL_RAZWI_MMU_ACCESS_ERROR 1

/* The kernel's header builds these from HL_IOCTL_* as indices, which they are not here. */
#undef DRM_IOCTL_HL_INFO
#undef DRM_IOCTL_HL_CB
#undef DRM_IOCTL_HL_CS
#undef DRM_IOCTL_HL_WAIT_CS
#undef DRM_IOCTL_HL_MEMORY
#undef DRM_IOCTL_HL_DEBUG
#undef DRM_IOCTL_HL_NIC

#undef HL_IOCTL_INFO
#undef HL_IOCTL_CB
#undef HL_IOCTL_CS
#undef HL_IOCTL_WAIT_CS
#undef HL_IOCTL_MEMORY
#undef HL_IOCTL_DEBUG
#define HL_IOCTL_INFO _IOWR('H', 0x01, struct hl_info_args)
#define HL_IOCTL_CB _IOWR('H', 0x02, union hl_cb_args)
#define HL_IOCTL_CS _IOWR('H', 0x03, union hl_cs_args)
#define HL_IOCTL_WAIT_CS _IOWR('H', 0x04, union hl_wait_cs_args)
#define HL_IOCTL_MEMORY _IOWR('H', 0x05, union hl_mem_args)
#define HL_IOCTL_DEBUG _IOWR('H', 0x06, struct hl_debug_args)

#undef HL_COMMAND_START
#undef HL_COMMAND_END
#define HL_COMMAND_START 0x01
#define HL_COMMAND_END 0x07

#endif /* GAUDI_MISC_HABANALABS_H */
