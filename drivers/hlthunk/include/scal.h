/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The C interface of the shim libscal.so: the functions of the vendor's library that UCX's
 * gaudi_gdr calls, and scal_destroy(). There is one pool, "global_hbm": one mapping of the device's
 * free memory except for one page. Configuration files are not read.
 */

#ifndef SCAL_H
#define SCAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SCAL_SUCCESS 0
#define SCAL_FAILURE (-1)
#define SCAL_INVALID_PARAM (-4)
#define SCAL_OUT_OF_MEMORY (-5)
#define SCAL_NOT_FOUND (-11)

typedef struct scal_handle *scal_handle_t;
typedef struct scal_pool_handle *scal_pool_handle_t;
typedef struct scal_arc_fw_config_handle *scal_arc_fw_config_handle_t;

typedef struct _scal_memory_pool_infoV2 {
	scal_handle_t scal;
	const char *name;
	unsigned int idx;
	uint64_t device_base_address;
	void *host_base_address;
	uint32_t core_base_address;
	uint64_t totalSize;
	uint64_t freeSize;
	uint64_t device_base_allocated_address;
} scal_memory_pool_infoV2;

/*
 * Allocates the pool from the memory of an open device. A second call for the same open of the
 * device returns the same handle, which must then be destroyed twice.
 */
int scal_init(int fd, const char *config_file_path, scal_handle_t *scal,
	      scal_arc_fw_config_handle_t fwCfg);

/* Frees the pool. Optional before the program closes the device. */
void scal_destroy(const scal_handle_t scal);

/* Returns the handle of an open device, or SCAL_NOT_FOUND before scal_init(). */
int scal_get_handle_from_fd(int fd, scal_handle_t *scal);

/* Returns a pool by its name. */
int scal_get_pool_handle_by_name(const scal_handle_t scal, const char *pool_name,
				 scal_pool_handle_t *pool);

/* Returns the addresses and sizes of a pool. */
int scal_pool_get_infoV2(const scal_pool_handle_t pool, scal_memory_pool_infoV2 *info);

#ifdef __cplusplus
}
#endif

#endif
