//! Seam 1, [`KernelIo`]: the operations of the habanalabs driver, with typed arguments.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;
use gaudi_uapi::info::InfoAnswer;
use gaudi_uapi::{Era, NodeKind};

use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::fault::ChipRules;
use crate::operation::Operation;
use crate::request::*;

/// An open node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Compute or control.
    pub kind: NodeKind,
    /// Backend and index.
    pub device: DeviceId,
    /// The ioctl numbers in use. The mock has the newest.
    pub era: Era,
    /// The node's path, or the mock's spec.
    pub name: String,
}

macro_rules! methods {
    ($(
        $(#[$attribute:meta])*
        $variant:ident $kernel:literal [$($fn:tt)+] $method:ident($($arg:ident: $type:ty),*) -> $answer:ty,
            $request:ty = $build:expr $(, |$below:ident, $seen:ident| $call:expr)? $(, output $output:ident)?;
    )*) => {
        /// The operations of the habanalabs driver on an open node.
        ///
        /// All methods take `&self`; a backend is shared as `Arc<dyn KernelIo>`, and a layer owns
        /// the node below it. Dropping the last `Arc` closes the node. The driver then releases the
        /// context, and keeps the device busy while an export lives.
        ///
        /// # Errors
        /// Every method returns
        /// - `Unsupported` if the backend does not implement it, and for everything but
        ///   [`info`](Self::info) on a control node;
        /// - `DeviceLost` if the device is in reset, failed or was removed;
        /// - `Forked` in a fork child;
        /// - `InvalidInput` with `EINVAL` for arguments that the driver rejects: the
        ///   message names the condition.
        pub trait KernelIo: Send + Sync + 'static {
            /// The open node.
            fn node(&self) -> &Node;

            /// Injects the faults of rules for events of the chip, until their layer closes.
            /// Returns whether the backend does so: a mock's compute node.
            fn chip_faults(&self, rules: &Arc<ChipRules>) -> bool {
                let _ = rules;
                false
            }

            $(
                $(#[$attribute])*
                $($fn)+ $method(&self, $($arg: $type),*) -> Result<$answer> {
                    not_served(self.node(), Operation::$variant, ($($arg,)*))
                }
            )*
        }
    };
}
operations!(methods);

/// The error of a method that a backend does not implement.
fn not_served<T>(node: &Node, operation: Operation, _request: impl Sized) -> Result<T> {
    let why = format!("the {} backend does not serve it", node.device.backend.name());
    Err(Error::unsupported(operation.kernel_name(), why).on(node.device))
}

/// Typed queries for every [`KernelIo`].
pub trait KernelIoExt: KernelIo {
    /// Queries the struct of an INFO operation.
    ///
    /// # Errors
    /// As [`KernelIo::info`].
    fn query<T: InfoAnswer>(&self) -> Result<T> {
        self.query_with(0)
    }

    /// Queries the struct of an INFO operation with an argument word.
    ///
    /// # Errors
    /// As [`KernelIo::info`].
    fn query_with<T: InfoAnswer>(&self, arg: u32) -> Result<T> {
        let mut answer = T::new_zeroed();
        self.info(InfoRequest { op: T::OP, arg }, answer.as_mut_bytes())?;
        Ok(answer)
    }
}

impl<K: KernelIo + ?Sized> KernelIoExt for K {}

/// A shared backend.
pub type SharedIo = Arc<dyn KernelIo>;
