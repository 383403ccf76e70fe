//! Users of exported memory that hold no handle of it, such as a NIC's memory regions.

use std::sync::{Arc, Mutex, Weak};

use gaudi_seam::DeviceId;

use crate::shared::lock;

/// A user of a device's exported memory, such as a cache of memory regions.
///
/// The driver cannot revoke exported memory, so the thread that frees it asks its users to release
/// it. No lock of the device is held meanwhile. The methods must not free memory of the device.
pub trait ExportUser: Send + Sync {
    /// Releases everything idle that uses the allocation of this
    /// [generation](crate::Buffer::generation), which is about to be freed. May block.
    ///
    /// Called only for exported allocations, when they are closed or their last handle is dropped.
    fn release(&self, generation: u64);

    /// Describes what may keep the device open; `None` if nothing does. Called only for the error
    /// of a close that failed.
    fn describe(&self, device: DeviceId) -> Option<String>;
}

/// The users of one device's exported memory.
#[derive(Default)]
pub(crate) struct ExportUsers(Mutex<Vec<Weak<dyn ExportUser>>>);

impl ExportUsers {
    /// Adds a user, once.
    pub(crate) fn add(&self, user: &Arc<dyn ExportUser>) {
        let mut users = lock(&self.0);
        let is_known = |known: &Weak<dyn ExportUser>| known.as_ptr().addr() == Arc::as_ptr(user).addr();
        if !users.iter().any(is_known) {
            users.retain(|known| known.strong_count() > 0);
            users.push(Arc::downgrade(user));
        }
    }

    fn live(&self) -> Vec<Arc<dyn ExportUser>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn release(&self, generation: u64) {
        for user in self.live() {
            user.release(generation);
        }
    }

    /// Appends the users' descriptions to an error's cause.
    pub(crate) fn describe(&self, device: DeviceId, cause: String) -> String {
        let described = self.live().into_iter().filter_map(|user| user.describe(device));
        described.fold(cause, |cause, text| format!("{cause}\n{text}"))
    }
}
