//! A library to preload: `ibv_reg_dmabuf_mr` for soft-RoCE, which the provider of libibverbs lacks.
//!
//! The lab's build of `rdma_rxe` registers dma-bufs, but Debian's `librxe` has no function for it.
//! A program that calls `ibv_reg_dmabuf_mr`, such as perftest with `--use_hl`, gets this one with
//! `LD_PRELOAD`. It calls the kernel's ioctl.

#![expect(unsafe_code, reason = "implements a function of libibverbs, on its objects")]

use std::os::fd::BorrowedFd;
use std::ptr;

use gaudi_verbs_sys::types::{ibv_mr, ibv_pd};
use gaudi_verbs_sys::uverbs::{RegDmabufMr, reg_dmabuf_mr};
use nix::errno::Errno;
use nix::libc;

/// `RDMA_DRIVER_RXE` (rdma/ib_user_ioctl_verbs.h).
const RXE: u32 = 14;
/// `IBV_MR_TYPE_DMABUF_MR` (libibverbs/driver.h): ibv_dereg_mr does not treat its address as
/// memory of this process.
const DMABUF_MR: u32 = 3;

/// `struct verbs_mr` (libibverbs/driver.h), which the provider frees with free(3).
#[repr(C)]
struct VerbsMr {
    ibv_mr: ibv_mr,
    mr_type: u32,
    access: u32,
}

/// Registers a dma-buf with the kernel's ioctl: ibv_reg_dmabuf_mr(3).
///
/// # Safety
/// - `pd` is a live domain of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: i32,
    access: i32,
) -> *mut ibv_mr {
    // SAFETY: the caller's domain is live.
    let ibv_pd { context, handle } = unsafe { pd.read() };
    // SAFETY: a domain's context lives as long as the domain.
    let command = unsafe { (*context).cmd_fd };
    // SAFETY: the context's descriptor is open as long as the context.
    let command = unsafe { BorrowedFd::borrow_raw(command) };
    let access = access as u32;
    let region = RegDmabufMr {
        pd: handle,
        offset,
        length: length as u64,
        iova,
        fd,
        access,
    };
    let raw = match reg_dmabuf_mr(command, RXE, &region) {
        Ok(raw) => raw,
        Err(errno) => {
            errno.set();
            return ptr::null_mut();
        }
    };
    let made = VerbsMr {
        ibv_mr: ibv_mr {
            context,
            pd,
            addr: ptr::without_provenance_mut(offset as usize),
            length,
            handle: raw.handle,
            lkey: raw.lkey,
            rkey: raw.rkey,
        },
        mr_type: DMABUF_MR,
        access,
    };
    // SAFETY: malloc takes every size.
    let place = unsafe { libc::malloc(size_of::<VerbsMr>()) }.cast::<VerbsMr>();
    if place.is_null() {
        Errno::ENOMEM.set();
        return ptr::null_mut();
    }
    // SAFETY: malloc's memory is large enough, and aligned for every type.
    unsafe { place.write(made) };
    place.cast()
}
