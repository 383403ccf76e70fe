//! The status of an open device, for threads that must not hold the device.

use std::fmt;
use std::sync::{Arc, Weak};

use gaudi_seam::{DeviceId, KernelIoExt as _, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};

use crate::calls::Calls;
use crate::context::Context;

/// Queries an open device's status without holding the device open, for a thread that monitors it.
#[derive(Clone)]
pub struct StatusHandle {
    context: Weak<Context>,
    calls: Arc<Calls>,
    owner: OwnerProcess,
    id: DeviceId,
}

impl StatusHandle {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::downgrade(context),
            calls: Arc::clone(&context.calls),
            owner: context.owner,
            id: context.id,
        }
    }

    /// Returns the device.
    pub fn device(&self) -> DeviceId {
        self.id
    }

    /// Whether both belong to the same open device.
    pub fn is_same(&self, other: &Self) -> bool {
        self.context.ptr_eq(&other.context)
    }

    /// Returns the answer of `HL_INFO_DEVICE_STATUS`, also during a reset; `None` once the device
    /// is closed.
    ///
    /// # Errors
    /// - `Forked`: this process is a fork child.
    /// - The driver's own error.
    pub fn query(&self) -> Result<Option<DeviceStatus>> {
        // In a fork child, a thread of the parent may have held the lock at the fork.
        let _call = (!self.owner.is_foreign()).then(|| self.calls.begin());
        let Some(context) = self.context.upgrade() else {
            return Ok(None);
        };
        context.check_process("HL_INFO_DEVICE_STATUS")?;
        let answer: HlInfoDeviceStatus = context.io.query()?;
        Ok(Some(answer.status))
    }
}

impl fmt::Debug for StatusHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StatusHandle({})", self.id)
    }
}
