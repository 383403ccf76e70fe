/* SPDX-License-Identifier: GPL-2.0 */
/*
 * dma-buf memory regions for soft-RoCE: what the rest of the driver calls.
 * Part of the lab of gaudi-hal, not of Linux; see README.md.
 */
#ifndef RXE_DMABUF_H
#define RXE_DMABUF_H

#include <linux/version.h>
#include <rdma/ib_verbs.h>

struct rxe_mr;

#define RXE_DMABUF_DESCRIPTION \
	"Soft RDMA transport, patched by the lab of gaudi-hal: dma-buf memory regions"

void rxe_dmabuf_module_init(void);
void rxe_dmabuf_module_exit(void);

/* An operation of the device, as the kernel's version declares it. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				     u64 iova, int fd, int access,
				     struct ib_dmah *dmah,
				     struct uverbs_attr_bundle *attrs);
#else
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				     u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs);
#endif
/* Gives back all that a region holds. Does nothing to one of another kind. */
void rxe_dmabuf_release(struct rxe_mr *mr);

/* An error means that the bytes are not of the region, or that the exporter has taken its memory back. */
int rxe_dmabuf_copy(struct rxe_mr *mr, u64 iova, void *addr,
		    unsigned int length, bool to_region);
/*
 * Eight bytes that the caller has found to be in the region and aligned.
 * opcode is that of the packet; old is where the former value goes. The lock
 * is the one that all atomics of the driver take.
 */
int rxe_dmabuf_atomic_op(struct rxe_mr *mr, u64 iova, int opcode, u64 compare,
			 u64 swap_add, u64 *old, spinlock_t *lock);
int rxe_dmabuf_atomic_write(struct rxe_mr *mr, u64 iova, u64 value);

#endif
