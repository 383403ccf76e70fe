//! ioctl(2), and the descriptors that it returns.

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer, and a new descriptor is a number"
)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

use crate::{Errno, SysResult};

/// One ioctl, with the request number of [`gaudi_uapi`].
///
/// # Safety
/// - The argument is a live value of the type that the request has, and holds until the call
///   returns;
/// - addresses in it are valid for what the request reads and writes there.
pub(crate) unsafe fn ioctl<T>(fd: impl AsFd, request: u32, argument: *const T) -> SysResult<i32> {
    // SAFETY: the fd is open for the whole call; the caller promises the rest.
    Errno::result(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request.into(), argument) })
}

/// Owns a descriptor that the kernel has just returned.
///
/// # Errors
/// `EBADF`: the number is negative. Another driver has an ioctl of the number and left the argument
/// as it was.
///
/// # Safety
/// - A successful call returned the number as that of a new descriptor; only this process has it,
///   and nothing else owns it.
pub(crate) unsafe fn own(number: i32) -> SysResult<OwnedFd> {
    if number < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
