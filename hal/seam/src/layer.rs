//! [`Layer`]: one method around every operation of a node.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;

use crate::error::Result;
use crate::fault::ChipRules;
use crate::io::{KernelIo, Node};
use crate::operation::Request;
use crate::request::*;

/// A node over another node. [`KernelIo`] is implemented for every layer.
pub trait Layer: Send + Sync + 'static {
    /// The type of the node below. A known type saves a call through a table for each operation.
    type Below: KernelIo + ?Sized;

    /// The node below.
    fn below(&self) -> &Self::Below;

    /// Whether operations go straight to the node below. Asked once for each operation.
    #[inline]
    fn is_idle(&self) -> bool {
        false
    }

    /// Performs an operation. `next` passes it to the node below.
    ///
    /// # Errors
    /// The error of the node below, or the layer's own.
    fn around<R: Request>(
        &self,
        request: &mut R,
        next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer>;
}

macro_rules! forwarding {
    (@call $self:ident $method:ident($($arg:ident),*) |$request:ident|) => { $self.below().$method($($arg),*) };
    (@call $self:ident $method:ident($($arg:ident),*) |$request:ident| |$below:ident, $seen:ident| $call:expr) => {{
        let ($below, $seen) = ($self.below(), $request);
        $call
    }};
    ($(
        $(#[$attribute:meta])*
        $variant:ident $kernel:literal [$($fn:tt)+] $method:ident($($arg:ident: $type:ty),*) -> $answer:ty,
            $request:ty = $build:expr $(, |$below:ident, $seen:ident| $call:expr)? $(, output $output:ident)?;
    )*) => {
        impl<L: Layer> KernelIo for L {
            #[inline]
            fn node(&self) -> &Node {
                self.below().node()
            }

            fn chip_faults(&self, rules: &Arc<ChipRules>) -> bool {
                self.below().chip_faults(rules)
            }

            $(
                $(#[$attribute])*
                #[inline]
                $($fn)+ $method(&self, $($arg: $type),*) -> Result<$answer> {
                    if self.is_idle() {
                        let _request = &mut { $build };
                        return forwarding!(
                            @call self $method($($arg),*) |_request| $(|$below, $seen| $call)?
                        );
                    }
                    self.around(&mut { $build }, |_request| {
                        forwarding!(@call self $method($($arg),*) |_request| $(|$below, $seen| $call)?)
                    })
                }
            )*
        }
    };
}
operations!(forwarding);
