//! Host memory that the driver mapped, and mappings of it that outlive their last handle.

#![expect(
    unsafe_code,
    reason = "a pointer to the caller's memory is shared between threads"
)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gaudi_seam::{DeviceId, DeviceVa, KernelIo, Result};

use crate::owners::{Owner, Owners};
use crate::pages::Memory;
use crate::shared::{exclusive, lock};
use crate::unfinished::Submissions;

/// The memory of a mapping. It lives until the driver has unmapped it.
pub(crate) enum Pinned {
    Owned(Arc<Memory>),
    Foreign(Foreign),
}

/// Memory that the caller of [`Device::register`](crate::Device::register) keeps mapped.
pub(crate) struct Foreign(NonNull<u8>);

impl Foreign {
    /// # Safety
    /// As [`Device::register`](crate::Device::register), until the value is dropped.
    pub(crate) unsafe fn new(start: NonNull<u8>) -> Self {
        Self(start)
    }
}

// SAFETY: the pointer is only copied through, and the caller of `new` promises that no reference to
// the memory is used meanwhile.
unsafe impl Send for Foreign {}
// SAFETY: as above; concurrent copies through it are relaxed atomics (`gaudi_sys::shared`).
unsafe impl Sync for Foreign {}

impl Pinned {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Owned(memory) => memory.map.as_ptr(),
            Self::Foreign(foreign) => foreign.0,
        }
    }
}

/// A mapping that outlived its last handle: the driver refused to unmap it, or an engine may still
/// write to it.
pub(crate) struct Stranded {
    pub(crate) va: DeviceVa,
    pub(crate) memory: Arc<Pinned>,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
    pub(crate) unfinished: Submissions,
}

impl Stranded {
    /// Whether a byte of it lies in a range of this process.
    fn overlaps(&self, start: usize, end: usize) -> bool {
        let at = self.memory.start().addr().get();
        at < end && start < at.saturating_add(self.len)
    }

    fn unmap(&mut self, io: &dyn KernelIo, device: DeviceId, owners: &Owners) -> Result<()> {
        self.unfinished.check(io, device, UNMAP)?;
        owners.unmap_again(io, self.va, &self.owner)
    }
}

pub(crate) const UNMAP: &str = "HL_MEM_OP_UNMAP";

/// The stranded mappings of one open device. They stay until an unmap succeeds or the node closes.
#[derive(Default)]
pub(crate) struct StrandedMappings(Mutex<Vec<Stranded>>);

impl StrandedMappings {
    pub(crate) fn push(&self, stranded: Stranded) {
        lock(&self.0).push(stranded);
    }

    /// Retries to unmap the mappings that overlap a range of this process.
    ///
    /// # Errors
    /// The driver's error for the first that it refuses again.
    pub(crate) fn unmap(
        &self,
        (start, end): (usize, usize),
        io: &dyn KernelIo,
        device: DeviceId,
        owners: &Owners,
    ) -> Result<()> {
        let mut answer = Ok(());
        // The lock is held while the driver is called, so that a concurrent call for the same range
        // sees the mapping too. Refusals are rare.
        lock(&self.0).retain_mut(|stranded| {
            if !stranded.overlaps(start, end) {
                return true;
            }
            let unmapped = stranded.unmap(io, device, owners);
            let stays = unmapped.is_err();
            answer = std::mem::replace(&mut answer, Ok(())).and(unmapped);
            stays
        });
        answer
    }

    /// Releases the memory whose device address has another owner: the driver has unmapped it.
    pub(crate) fn release_unmapped(&self) {
        lock(&self.0).retain(|stranded| stranded.owner.owns());
    }

    /// Retries all before the node closes, and returns how many the driver refused.
    pub(crate) fn unmap_all(&mut self, io: &dyn KernelIo, device: DeviceId, owners: &Owners) -> usize {
        let stranded = exclusive(&mut self.0);
        stranded.retain_mut(|stranded| stranded.unmap(io, device, owners).is_err());
        stranded.len()
    }

    /// Leaks the memory: the device may access it longer than this context lives.
    pub(crate) fn leak(&mut self) {
        std::mem::take(exclusive(&mut self.0))
            .into_iter()
            .for_each(std::mem::forget);
    }
}
