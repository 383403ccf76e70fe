//! One copy between two addresses of the process.

#![allow(unsafe_code, reason = "host memory that UCX passes by address")]

use std::ffi::c_void;

use crate::memory::{self, Allocation, Copy, Direction};
use crate::status::Status;
use crate::{counters, handles};

/// Copies `len` bytes and waits for the copy.
///
/// # Errors
/// - `InvalidParam`: a host address is null or its range wraps.
/// - `OutOfRange`: the range leaves its allocation.
/// - `Unsupported`: both are host memory.
///
/// # Safety
/// An address that is not device memory of this process is host memory of `len` bytes. Nothing else
/// writes it now, and nothing reads it if it is `dst`.
pub(crate) unsafe fn copy(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    counters::copied(len);
    // SAFETY: guaranteed by the caller.
    unsafe { staged(Copy::plan(dst, src, len)?, dst, src, len) }
}

/// As [`copy`], with UCX's handle of the host memory, if it has one. A long copy then needs no
/// staging: the engines access the memory.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`]. The memory of a live handle is mapped, readable and writable.
pub(crate) unsafe fn registered(dst: u64, src: u64, len: u64, handle: *mut c_void) -> Result<(), Status> {
    counters::copied(len);
    let plan = Copy::plan(dst, src, len)?;
    let (device, offset, host, direction) = match &plan {
        Copy::ToDevice(to, offset) => (to, offset, src, Direction::ToDevice),
        Copy::FromDevice(from, offset) => (from, offset, dst, Direction::FromDevice),
        // SAFETY: guaranteed by the caller.
        Copy::Empty | Copy::Between { .. } => return unsafe { run(plan, dst, src, len) },
    };
    // SAFETY: guaranteed by the caller.
    match unsafe { pinned(device, handle, host, len) } {
        Some(memory) => memory::direct(device, *offset, &memory, (host, len), direction),
        // SAFETY: guaranteed by the caller.
        None => unsafe { staged(plan, dst, src, len) },
    }
}

/// # Safety
/// As [`handles::pinned`].
unsafe fn pinned(
    device: &Allocation,
    handle: *mut c_void,
    host: u64,
    len: u64,
) -> Option<gaudi_copy::Memory> {
    if !memory::is_long(device, len) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { handles::pinned(handle, device.card, host, len) }
}

/// As [`copy`], for a program that initializes or verifies its memory.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn uncounted(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { run(Copy::plan(dst, src, len)?, dst, src, len) }
}

/// As [`run`], and counts the bytes of host memory.
///
/// # Safety
/// As [`run`].
unsafe fn staged(plan: Copy, dst: u64, src: u64, len: u64) -> Result<(), Status> {
    if matches!(plan, Copy::ToDevice(..) | Copy::FromDevice(..)) {
        counters::staged(len);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { run(plan, dst, src, len) }
}

/// # Safety
/// As [`copy`]; `plan` is that of the other arguments.
unsafe fn run(plan: Copy, dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let bytes = usize::try_from(len).map_err(|_| Status::InvalidParam)?;
    match plan {
        Copy::Empty => Ok(()),
        Copy::ToDevice(to, offset) => {
            check(src, bytes)?;
            // SAFETY: guaranteed by the caller.
            let from = unsafe { std::slice::from_raw_parts(src as *const u8, bytes) };
            memory::write(&to, offset, from)
        }
        Copy::FromDevice(from, offset) => {
            check(dst, bytes)?;
            // SAFETY: guaranteed by the caller.
            let to = unsafe { std::slice::from_raw_parts_mut(dst as *mut u8, bytes) };
            memory::read(&from, offset, to)
        }
        Copy::Between { dst, src } => memory::between(&dst, &src, len),
    }
}

/// Bytes of a piece of a copy between overlapping ranges.
const PIECE: u64 = 1 << 20;

/// As [`copy`], also within host memory, and between ranges that overlap.
///
/// # Errors
/// As [`copy`], without `Unsupported`.
///
/// # Safety
/// As [`copy`], except that the ranges may overlap.
pub(crate) unsafe fn any(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let (on_device, from_device) = (memory::find(dst).is_some(), memory::find(src).is_some());
    if !on_device && !from_device {
        let bytes = usize::try_from(len).map_err(|_| Status::InvalidParam)?;
        if bytes > 0 {
            check(dst, bytes)?;
            check(src, bytes)?;
            // SAFETY: guaranteed by the caller; the ranges may overlap.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
        }
        return Ok(());
    }
    let distance = dst.abs_diff(src);
    if !(on_device && from_device) || distance >= len {
        // SAFETY: guaranteed by the caller.
        return unsafe { copy(dst, src, len) };
    }
    // Through host memory, in the order in which no piece overwrites what a later one reads.
    let mut piece = vec![0_u8; len.min(PIECE) as usize];
    let mut done = 0;
    while distance > 0 && done < len {
        let count = (piece.len() as u64).min(len - done);
        let at = if dst < src { done } else { len - done - count };
        let host = piece.as_mut_ptr() as u64;
        // SAFETY: the piece has `count` bytes, and the device ranges are the caller's.
        unsafe {
            copy(host, src + at, count)?;
            copy(dst + at, host, count)?;
        }
        done += count;
    }
    Ok(())
}

/// Whether a host range can be a slice.
fn check(address: u64, bytes: usize) -> Result<(), Status> {
    let end = address.checked_add(bytes as u64);
    match address != 0 && end.is_some() && isize::try_from(bytes).is_ok() {
        true => Ok(()),
        false => Err(Status::InvalidParam),
    }
}
