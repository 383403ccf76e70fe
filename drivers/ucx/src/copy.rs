//! One copy between two addresses of the process.

#![allow(unsafe_code, reason = "host memory that UCX passes by address")]

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

/// Whether a host range can be a slice.
fn check(address: u64, bytes: usize) -> Result<(), Status> {
    let end = address.checked_add(bytes as u64);
    match address != 0 && end.is_some() && isize::try_from(bytes).is_ok() {
        true => Ok(()),
        false => Err(Status::InvalidParam),
    }
}
