//! [`Wire`]: a request as the argument of its ioctl.

#![expect(
    unsafe_code,
    reason = "an answer can hold the number of a new file descriptor"
)]

use gaudi_seam::Errno;
use gaudi_uapi::Ioctl;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::perform::Perform;

/// A request with its ioctl and its argument struct.
pub trait Wire: Perform {
    /// The argument struct, which holds the answer afterwards.
    type Args: FromBytes + IntoBytes + KnownLayout + Immutable + Copy;
    /// The ioctl.
    const IOCTL: Ioctl;

    /// Returns the argument. It holds the addresses of the request's lists and buffers.
    fn encode(&mut self) -> Self::Args;

    /// Returns the answer of an ioctl that succeeded.
    ///
    /// # Errors
    /// - `ETIMEDOUT`, `EIO`: the driver reports the end of a wait as a status.
    /// - `EBADF`: the answer has no descriptor.
    ///
    /// # Safety
    /// - `args` is [`encode`](Self::encode)'s, after a successful ioctl. A descriptor in it belongs
    ///   to the caller.
    unsafe fn answer(&self, args: &Self::Args) -> Result<Self::Answer, Errno>;

    /// Writes the answer over the request, as the driver leaves it after a success. A descriptor in
    /// the answer stays open: its number is in `args`.
    fn set_answer(&self, answer: Self::Answer, args: &mut Self::Args);

    /// Writes what the driver leaves in the argument after a failure. Leaves the request by
    /// default.
    ///
    /// # Errors
    /// `errno`, unless the driver reports this failure as a status.
    fn set_failure(&self, errno: Errno, _args: &mut Self::Args) -> Result<(), Errno> {
        Err(errno)
    }
}

/// What to do with the request of an argument: see [`decode`](crate::decode).
pub trait Visitor {
    /// The result.
    type Output;

    /// Called once, with the request.
    fn visit<R: Wire>(self, request: R) -> Self::Output;
}

/// The address of a slice for the driver. 0 for an empty slice, which the driver takes as none.
#[inline]
pub fn address<T>(slice: &[T]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_ptr().expose_provenance() as u64
    }
}

/// The address of a buffer that the driver writes to; as [`address`].
#[inline]
pub fn address_mut(slice: &mut [u8]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_mut_ptr().expose_provenance() as u64
    }
}
