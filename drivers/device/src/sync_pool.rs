//! Free sync objects and monitors of die core 0.

use std::sync::Mutex;

use gaudi_seam::{DeviceId, Error, ErrorKind, Result};
use gaudi_spec::Asic;
use gaudi_uapi::info::HlInfoSyncManager;

use crate::free_ranges::FreeRanges;
use crate::shared::lock;

/// The numbers of one kind of object that users may use.
#[derive(Debug)]
pub(crate) struct SyncPool {
    device: DeviceId,
    what: &'static str,
    first: u32,
    free: Mutex<FreeRanges>,
}

impl SyncPool {
    pub(crate) fn sobs(device: DeviceId, asic: &Asic, sync: &HlInfoSyncManager) -> Self {
        Self::new(
            device,
            "sync object",
            asic.sync.sobs,
            sync.first_available_sync_object,
        )
    }

    pub(crate) fn monitors(device: DeviceId, asic: &Asic, sync: &HlInfoSyncManager) -> Self {
        Self::new(
            device,
            "monitor",
            asic.sync.monitors,
            sync.first_available_monitor,
        )
    }

    fn new(device: DeviceId, what: &'static str, count: u32, first: u32) -> Self {
        Self {
            device,
            what,
            first,
            // The driver reports `first`: a value past the end leaves none for users.
            free: Mutex::new(FreeRanges::new(count.saturating_sub(first).into())),
        }
    }

    /// Takes the lowest free number.
    ///
    /// # Errors
    /// `Busy`: every number is in use.
    pub(crate) fn take(&self, operation: &'static str) -> Result<u32> {
        let taken = lock(&self.free).take(1, 1);
        taken
            .and_then(|at| u32::try_from(at).ok()?.checked_add(self.first))
            .ok_or_else(|| {
                Error::new(ErrorKind::Busy, operation)
                    .on(self.device)
                    .because(format!("every {} is in use", self.what))
            })
    }

    pub(crate) fn release(&self, number: u32) {
        lock(&self.free).release(u64::from(number - self.first), 1);
    }
}
