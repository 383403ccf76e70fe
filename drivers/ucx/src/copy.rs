//! One copy between two addresses of the process.

#![allow(unsafe_code, reason = "host memory that UCX passes by address")]

use crate::counters;
use crate::memory::{self, Copy};
use crate::status::Status;

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
    unsafe { uncounted(dst, src, len) }
}

/// As [`copy`], for a program that initializes or verifies its memory.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn uncounted(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let bytes = usize::try_from(len).map_err(|_| Status::InvalidParam)?;
    match Copy::plan(dst, src, len)? {
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
