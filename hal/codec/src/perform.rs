//! [`Perform`]: executes a request on a node.

#![expect(unsafe_code, reason = "the seam's only unsafe operation maps host memory")]

use std::os::fd::OwnedFd;

use gaudi_seam::*;

/// A request that a node can perform. Implemented for every request of the seam.
pub trait Perform: Request {
    /// Performs the operation on `io`.
    ///
    /// # Errors
    /// The errors of the operation.
    ///
    /// # Safety
    /// - For [`MapHost`], the requirements of [`KernelIo::mem_map_host`]. Other requests are safe.
    unsafe fn perform(&mut self, io: &dyn KernelIo) -> Result<Self::Answer>;
}

macro_rules! performing {
    (@call [unsafe fn] $io:ident $this:ident $method:ident($($arg:ident)*) $pattern:tt $($rest:tt)*) => {
        // SAFETY: the caller meets the same requirements.
        unsafe { $io.$method(*$this) }
    };
    (@call [fn] $io:ident $this:ident $method:ident($($arg:ident)*) $pattern:tt
        |$below:ident, $seen:ident| $call:expr) => {{
        let ($below, $seen) = ($io, $this);
        $call
    }};
    (@call [fn] $io:ident $this:ident $method:ident($($arg:ident)*) { $pattern:pat }) => {{
        let $pattern = *$this;
        $io.$method($($arg),*)
    }};
    ($(
        $(#[$attribute:meta])*
        $variant:ident $kernel:literal [$($fn:tt)+] $method:ident($($arg:ident: $type:ty),*) -> $answer:ty,
            $request:ty = $head:ident $(($($place:ident),*))? $({ $($field:ident),* })?
            $(, |$below:ident, $seen:ident| $call:expr)? $(, output $output:ident)?;
    )*) => {$(
        impl<'a> Perform for $request {
            #[inline]
            unsafe fn perform(&mut self, io: &dyn KernelIo) -> Result<$answer> {
                performing!(
                    @call [$($fn)+] io self $method($($arg)*)
                    { $head $(($($place),*))? $({ $($field),* })? }
                    $(|$below, $seen| $call)?
                )
            }
        }
    )*};
}
gaudi_seam::operations!(performing);
