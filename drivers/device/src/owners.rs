//! Owners of device addresses: an object unmaps an address only while the address is its own.
//!
//! The driver frees an address before it reports the result of the MMU's cache invalidation
//! (`memory.c:unmap_device_va`). An unmap that reported an error may have unmapped, and the driver
//! may have given the address to another mapping since.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gaudi_seam::{DeviceVa, KernelIo, Result};
use gaudi_sys::PAGE;

use crate::shared::lock;

/// The owner of one mapping.
#[derive(Debug, Clone)]
pub(crate) struct Owner(Arc<AtomicBool>);

impl Owner {
    /// Whether the address is still this owner's: no later mapping overlaps it.
    pub(crate) fn owns(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A mapped range and its owner.
#[derive(Debug)]
struct Mapped {
    last: u64,
    owner: Owner,
}

/// Every address that a context's objects have mapped.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Shared by calls that map, until the owner is recorded. A retry of an unmap excludes them: it
    /// would not see a new owner.
    mapping: RwLock<()>,
    /// By first address. No two ranges overlap.
    table: Mutex<BTreeMap<u64, Mapped>>,
}

impl Owners {
    /// Maps `len` bytes and records the owner. Earlier owners of the same addresses lose them.
    pub(crate) fn map(&self, len: u64, map: impl FnOnce() -> Result<DeviceVa>) -> Result<(DeviceVa, Owner)> {
        let _recorded = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        let va = map()?;
        let owner = Owner(Arc::new(AtomicBool::new(true)));
        // Mappings of host memory start inside a page, and no two share a page.
        let first = va.0 / PAGE * PAGE;
        let last = va.0.saturating_add(len.max(1) - 1) | (PAGE - 1);
        let mut table = lock(&self.table);
        while let Some((&start, mapped)) = table.range(..=last).next_back() {
            if mapped.last < first {
                break;
            }
            mapped.owner.0.store(false, Ordering::Release);
            table.remove(&start);
        }
        let owned = owner.clone();
        table.insert(first, Mapped { last, owner });
        Ok((va, owned))
    }

    /// Returns the lowest address from `start` on, a multiple of `align` after it, where more than
    /// `len` bytes are not mapped. The driver ignores a hint whose end is that of a free block
    /// (`memory.c:get_va_block`), and maps anywhere.
    pub(crate) fn gap(&self, start: u64, len: u64, align: u64) -> Option<u64> {
        let mut at = start;
        let table = lock(&self.table);
        if let Some((_, before)) = table.range(..start).next_back() {
            at = after(start, before.last, align).unwrap_or(start);
        }
        for (&first, mapped) in table.range(at..) {
            if first - at > len {
                break;
            }
            at = after(start, mapped.last, align)?;
        }
        at.checked_add(len).map(|_| at)
    }

    /// Unmaps an address if `owner` owns it. `Ok` if the address has another owner: the driver
    /// unmapped it before.
    pub(crate) fn unmap(&self, io: &dyn KernelIo, va: DeviceVa, owner: &Owner) -> Result<()> {
        if !owner.owns() {
            return Ok(());
        }
        io.mem_unmap(va)?;
        self.release(va, owner);
        Ok(())
    }

    /// Repeats an unmap that returned an error. Other mappings wait until it returns.
    pub(crate) fn unmap_again(&self, io: &dyn KernelIo, va: DeviceVa, owner: &Owner) -> Result<()> {
        let _alone = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        self.unmap(io, va, owner)
    }

    /// Records that the address is unmapped.
    pub(crate) fn release(&self, va: DeviceVa, owner: &Owner) {
        let mut table = lock(&self.table);
        owner.0.store(false, Ordering::Release);
        let first = va.0 / PAGE * PAGE;
        if table
            .get(&first)
            .is_some_and(|mapped| Arc::ptr_eq(&mapped.owner.0, &owner.0))
        {
            table.remove(&first);
        }
    }
}

/// Returns the first address after `last` that is a multiple of `align` from `start`; `None` if
/// `last` is before `start`, or no address is left.
fn after(start: u64, last: u64, align: u64) -> Option<u64> {
    let taken = last.checked_sub(start)?.checked_add(1)?;
    start.checked_add(taken.checked_next_multiple_of(align.max(1))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(owners: &Owners, va: u64, len: u64) -> Owner {
        let (_, owner) = owners.map(len, || Ok(DeviceVa(va))).expect("mapped");
        owner
    }

    #[test]
    fn gap_is_first_free_multiple() {
        let owners = Owners::default();
        assert_eq!(owners.gap(0x3000, 0x2000, 0x3000), Some(0x3000));
        let low = map(&owners, 0x2000, 0x2000);
        assert_eq!(
            owners.gap(0x3000, 0x2000, 0x3000),
            Some(0x6000),
            "a mapping reaches in"
        );
        let high = map(&owners, 0x8000, 0x1000);
        assert_eq!(
            owners.gap(0x3000, 0x2000, 0x3000),
            Some(0x9000),
            "the driver ignores a hint at all of a gap"
        );
        assert_eq!(
            owners.gap(0x3000, 0x1000, 0x3000),
            Some(0x6000),
            "a page is left above it"
        );
        assert_eq!(owners.gap(u64::MAX - 1, 2, 1), None, "no range wraps");
        assert!(low.owns() && high.owns());
    }

    #[test]
    fn later_mapping_takes_overlapped_addresses() {
        let owners = Owners::default();
        let (low, middle, high) = (
            map(&owners, 0x1000, 0x1000),
            map(&owners, 0x2010, 0x10),
            map(&owners, 0x3000, 0x2000),
        );
        assert!(low.owns() && middle.owns() && high.owns());
        let whole = map(&owners, 0x2fff, 0x1002);
        assert!(low.owns(), "the page before is not shared");
        assert!(!middle.owns(), "the first page is shared");
        assert!(!high.owns(), "the last page is shared");
        assert!(whole.owns());
        owners.release(DeviceVa(0x2010), &middle);
        assert!(whole.owns(), "an earlier owner releases no later mapping");
        assert_eq!(lock(&owners.table).len(), 2);
        owners.release(DeviceVa(0x2fff), &whole);
        assert!(!whole.owns(), "an unmapped address has no owner");
        assert_eq!(lock(&owners.table).len(), 1);
    }
}
