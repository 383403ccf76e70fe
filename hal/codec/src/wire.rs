//! [`Wire`]: conversion between a request and its ioctl's argument.

#![expect(unsafe_code, reason = "an answer can contain a new file descriptor")]

use gaudi_seam::Errno;
use gaudi_uapi::Ioctl;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::perform::Perform;

/// A request that has an ioctl and an argument struct.
pub trait Wire: Perform {
    /// The argument struct. The driver writes the answer into it.
    type Args: FromBytes + IntoBytes + KnownLayout + Immutable + Copy;
    /// The ioctl.
    const IOCTL: Ioctl;

    /// Returns the argument. It contains the addresses of the request's lists and buffers.
    fn encode(&mut self) -> Self::Args;

    /// Returns the answer of a successful ioctl.
    ///
    /// # Errors
    /// - `ETIMEDOUT`, `EIO`: the driver reported the end of a wait as a status.
    /// - `EBADF`: the answer does not contain a descriptor.
    ///
    /// # Safety
    /// - `args` was returned by [`encode`](Self::encode) and passed to an ioctl that succeeded. A
    ///   descriptor in it belongs to the caller.
    unsafe fn answer(&self, args: &Self::Args) -> Result<Self::Answer, Errno>;

    /// Writes the answer over the request, as the driver does after success. A descriptor in the
    /// answer stays open, and its number is written to `args`.
    fn set_answer(&self, answer: Self::Answer, args: &mut Self::Args);

    /// Writes what the driver leaves in the argument after a failure. The default leaves the
    /// request.
    ///
    /// # Errors
    /// `errno`, unless the driver reports this failure as a status.
    fn set_failure(&self, errno: Errno, _args: &mut Self::Args) -> Result<(), Errno> {
        Err(errno)
    }
}

/// Handles a decoded request of any type: see [`decode`](crate::decode).
pub trait Visitor {
    /// The result of [`visit`](Self::visit).
    type Output;

    /// Called once, with the request.
    fn visit<R: Wire>(self, request: R) -> Self::Output;
}

/// Returns the address of a slice for the driver: 0 if the slice is empty, which the driver treats
/// as a missing list.
#[inline]
pub fn address<T>(slice: &[T]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_ptr().expose_provenance() as u64
    }
}

/// Returns the address of a buffer that the driver writes to: 0 if the buffer is empty.
#[inline]
pub fn address_mut(slice: &mut [u8]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_mut_ptr().expose_provenance() as u64
    }
}
