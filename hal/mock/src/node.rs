//! An open node of a mock: seam 1.

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::fault::ChipRules;
use gaudi_seam::*;
use gaudi_sys::fork::OwnerProcess;

use crate::open::Device;

pub(crate) struct MockNode {
    device: Arc<Device>,
    node: Node,
    owner: OwnerProcess,
}

impl MockNode {
    pub(crate) fn new(device: Arc<Device>, node: Node) -> Self {
        Self {
            device,
            node,
            owner: OwnerProcess::current(),
        }
    }

    /// The device, unless the node does not have the operation.
    fn admit(&self, operation: Operation) -> Result<Admitted<'_>> {
        let device = &*self.device;
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation.kernel_name())
                .on(device.id)
                .because("the device was opened by the parent of this process")
                .helped_by("open it again in the child"));
        }
        let rule = match operation {
            _ if self.node.kind == NodeKind::Compute => None,
            Operation::Info => None,
            // Operations of events use INFO. A control node has INFO, and rejects them with another
            // errno (habanalabs_ioctl.c `hl_info_ioctl_control`).
            Operation::RegisterEvents | Operation::UnregisterEvents => Some(&rules::info::CONTROL_EVENTS),
            Operation::Mmap => Some(&rules::mmap::CONTROL_NODE),
            _ => Some(&rules::ioctl::UNKNOWN),
        };
        match rule {
            Some(rule) => Err(device.refuse(operation, rule)),
            None => Ok(Admitted(device, self.node.kind)),
        }
    }
}

/// A device on which a node performs an operation.
struct Admitted<'a>(&'a Device, NodeKind);

impl Deref for Admitted<'_> {
    type Target = Device;

    fn deref(&self) -> &Device {
        self.0
    }
}

impl Admitted<'_> {
    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        self.0.info(self.1, request, answer)
    }

    fn nic(&self, _: NicRequest<'_>) -> Result<()> {
        let name = Operation::Nic.kernel_name();
        // The driver's table of ioctls ends before it (drivers/gpu/drm/drm_ioctl.c:drm_ioctl).
        Err(Error::unsupported(name, "the mock backend does not serve it")
            .with_errno(Errno::EINVAL)
            .on(self.id))
    }
}

impl Drop for MockNode {
    fn drop(&mut self) {
        if self.node.kind == NodeKind::Compute && !self.owner.is_foreign() {
            self.device.close_compute();
        }
    }
}

macro_rules! served {
    (@call $device:ident $method:ident($($arg:ident),*)) => { $device.$method($($arg),*) };
    (@call $device:ident $method:ident($($arg:ident),*) $call:expr) => { $call };
    ($(
        $(#[$attribute:meta])*
        $variant:ident $kernel:literal [$($fn:tt)+] $method:ident($($arg:ident: $type:ty),*) -> $answer:ty,
            $request:ty = $build:expr $(, |$below:ident, $seen:ident| $call:expr)? $(, output $output:ident)?;
    )*) => {
        impl KernelIo for MockNode {
            fn node(&self) -> &Node {
                &self.node
            }

            fn chip_faults(&self, rules: &Arc<ChipRules>) -> bool {
                let is_user = self.node.kind == NodeKind::Compute && !self.owner.is_foreign();
                is_user && self.device.lock().engine.attach_faults(rules)
            }

            $(
                $(#[$attribute])*
                $($fn)+ $method(&self, $($arg: $type),*) -> Result<$answer> {
                    let device = self.admit(Operation::$variant)?;
                    $(let ($below, $seen) = (&device, &mut { $build });)?
                    served!(@call device $method($($arg),*) $($call)?)
                }
            )*
        }
    };
}
gaudi_seam::operations!(served);
