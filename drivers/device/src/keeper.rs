//! Who stands on exported memory without holding a handle of it, and must let go in time: a NIC's regions.

use std::fmt;
use std::sync::{Arc, Weak};

use gaudi_seam::{DeviceId, KernelIoExt as _, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};

use crate::buffer::Buffer;
use crate::calls::Calls;
use crate::context::{Context, lock};

/// Keeps things that stand on a device's exported memory: a cache of memory regions, say.
///
/// The driver takes exported memory back from nobody, so its keepers are asked to. They are told in the thread that frees, with no lock
/// of the device held; they must not free memory of the device themselves while they are.
pub trait Keeper: Send + Sync {
    /// The allocation of this [generation](Buffer::generation) is about to be given back: what stands on it and is idle goes before this
    /// returns, however long that takes. Asked only for allocations that were exported, at their close or last drop.
    fn freeing(&self, generation: u64);

    /// What may keep the device from closing, in words; `None` where that is nothing. Asked only when something did.
    fn keeps(&self, device: DeviceId) -> Option<String>;
}

/// Asks for an open device's status without holding the device: for who watches it from a thread of his own.
#[derive(Clone)]
pub struct StatusHandle {
    context: Weak<Context>,
    calls: Arc<Calls>,
    owner: OwnerProcess,
    id: DeviceId,
}

impl StatusHandle {
    /// The device.
    pub fn device(&self) -> DeviceId {
        self.id
    }

    /// Whether both are of one open device.
    pub fn is_same(&self, other: &Self) -> bool {
        self.context.ptr_eq(&other.context)
    }

    /// `HL_INFO_DEVICE_STATUS`, which the driver answers in a reset too; `None` once the device is closed. `Forked` in a fork child.
    pub fn query(&self) -> Result<Option<DeviceStatus>> {
        // A thread of the parent may have held the lock at the fork.
        let _call = (!self.owner.is_foreign()).then(|| self.calls.begin());
        let Some(context) = self.context.upgrade() else {
            return Ok(None);
        };
        context.here("HL_INFO_DEVICE_STATUS")?;
        let answer: HlInfoDeviceStatus = context.io.query()?;
        Ok(Some(answer.status))
    }
}

impl fmt::Debug for StatusHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StatusHandle({})", self.id)
    }
}

impl Buffer {
    /// For the status of the buffer's device.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle {
            context: Arc::downgrade(self.context()),
            calls: Arc::clone(&self.context().calls),
            owner: self.context().owner,
            id: self.device(),
        }
    }

    /// From now on `keeper` hears of exported memory of the buffer's device that is about to go, and is asked who holds it. Held weakly;
    /// told once more, nothing changes.
    pub fn tell(&self, keeper: &Arc<dyn Keeper>) {
        if self.context().owner.is_foreign() {
            return;
        }
        let mut keepers = lock(&self.context().keepers);
        if !keepers
            .iter()
            .any(|known| known.as_ptr().addr() == Arc::as_ptr(keeper).addr())
        {
            keepers.retain(|known| known.strong_count() > 0);
            keepers.push(Arc::downgrade(keeper));
        }
    }
}

impl Context {
    fn keepers(&self) -> Vec<Arc<dyn Keeper>> {
        lock(&self.keepers).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn freeing(&self, generation: u64) {
        for keeper in self.keepers() {
            keeper.freeing(generation);
        }
    }

    /// A cause, with what the keepers know of it.
    pub(crate) fn with_keepers(&self, cause: String) -> String {
        let kept = self
            .keepers()
            .into_iter()
            .filter_map(|keeper| keeper.keeps(self.id));
        kept.fold(cause, |cause, kept| format!("{cause}\n{kept}"))
    }
}
