//! Mappings of host memory that are kept for the next copy: pinning costs more than a small copy does.
//!
//! - *On the map that every cache stands on* ([`gaudi_ranges`]): a hit takes no lock.
//! - *Disjoint ranges of whole pages, by address*: a request inside a range is a hit; one that overlaps ranges is mapped anew together
//!   with them. The driver pins every page for reading and for writing (driver memory.c `FOLL_WRITE`), so there is one kind of right,
//!   and the range alone is the key.
//! - *A hit holds*: what it gives keeps the mapping, whatever the cache does meanwhile. Only mappings that nobody holds are evicted,
//!   the longest unused first, once there are more of them than the limits allow.
//! - *Never stale*: memory of a [`HostBuffer`](crate::HostBuffer) is held by its mappings and leaves the cache when the buffer goes;
//!   whoever had foreign memory mapped promised to say so before it goes ([`Device::forget`](crate::Device::forget)).
//! - *The driver is asked outside the lock*, and unmapping too happens there.

use std::sync::{Mutex, MutexGuard};

use gaudi_ranges::{Held, Limits, Span, Tag};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::PAGE;
use gaudi_sys::fork::OwnerProcess;

use crate::context::lock;
use crate::host::{HostMapping, WeakMapping};

/// What a device's cache of host mappings did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a mapping was kept for.
    pub hits: u64,
    /// Requests that memory was pinned for.
    pub misses: u64,
    /// Mappings that made room for others.
    pub evictions: u64,
    /// Mappings that went because their memory was to go.
    pub forgotten: u64,
    /// Mappings that are kept now.
    pub entries: usize,
    /// Bytes in them.
    pub bytes: u64,
}

/// One kind of right: the range alone is the key.
const TAG: Tag = [0, 0];

#[derive(Debug)]
pub(crate) struct Cache {
    owner: OwnerProcess,
    /// By whole pages; no two overlap.
    kept: gaudi_ranges::Cache<HostMapping>,
    /// Held while memory is pinned and while memory is forgotten: what is looked up for a mapping must not go before it is mapped.
    /// Taken before `retired`.
    pinning: Mutex<()>,
    /// What the cache does not keep, or not any more, and the device may reach all the same: it is held, or the driver refused to unmap
    /// it.
    retired: Mutex<Vec<(Span, WeakMapping)>>,
}

/// Bytes of a mapping that holds a request.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) mapping: HostMapping,
    pub(crate) offset: u64,
}

/// Whole pages around a range; `None` where it leaves the address space.
pub(crate) fn pages_of(start: usize, len: usize) -> Option<(usize, usize)> {
    let page = PAGE as usize;
    let end = start.checked_add(len)?.checked_next_multiple_of(page)?;
    Some((start / page * page, end))
}

fn span_of(start: usize, end: usize) -> Option<Span> {
    Span::new(start as u64, end.checked_sub(start)? as u64)
}

impl Cache {
    /// No more than so many mappings and bytes are kept that nobody holds; none of either switches the cache off.
    pub(crate) fn new(most_entries: usize, most_bytes: u64) -> Self {
        Self {
            owner: OwnerProcess::current(),
            kept: gaudi_ranges::Cache::new(Limits {
                entries: most_entries,
                bytes: most_bytes,
            }),
            pinning: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let stats = self.kept.stats();
        CacheStats {
            hits: stats.hits,
            misses: stats.misses,
            evictions: stats.evictions,
            forgotten: stats.invalidations,
            entries: stats.entries,
            bytes: stats.bytes,
        }
    }

    /// To be held from [`span`](Self::span) to [`keep`](Self::keep).
    pub(crate) fn pinning(&self) -> MutexGuard<'_, ()> {
        lock(&self.pinning)
    }

    pub(crate) fn is_off(&self) -> bool {
        self.kept.is_off()
    }

    /// The kept mapping that holds a range.
    pub(crate) fn find(&self, start: usize, len: usize) -> Option<Hit> {
        let span = Span::new(start as u64, len as u64)?;
        let held = self.kept.get(span, TAG)?;
        Some(Hit {
            mapping: HostMapping::clone(&held),
            offset: span.start() - held.span().start(),
        })
    }

    /// The pages to map for a range that no mapping holds: its own, and those of every mapping that it overlaps.
    pub(crate) fn span(&self, start: usize, len: usize) -> Option<(usize, usize)> {
        let (start, end) = pages_of(start, len)?;
        let Some(asked) = span_of(start, end) else {
            return Some((start, end));
        };
        // One look is enough: what a neighbour adds, no other mapping overlaps.
        let around = self.kept.overlapping(asked);
        let (mut low, mut last) = (asked.start(), asked.last());
        for held in &around {
            low = low.min(held.span().start());
            last = last.max(held.span().last());
        }
        Some((
            usize::try_from(low).ok()?,
            usize::try_from(last).ok()?.checked_add(1)?,
        ))
    }

    /// Keeps a mapping in place of those that it overlaps, and lets go of what is over the limits.
    pub(crate) fn keep(&self, start: usize, end: usize, mapping: &HostMapping) {
        let Some(span) = span_of(start, end) else { return };
        let replaced = self.kept.take(span, |held| self.retire(held));
        let inserted = self
            .kept
            .insert(span, TAG, mapping.clone(), |mapping| !mapping.is_shared());
        for held in &inserted.evicted {
            self.retire(held);
        }
        // Here the driver is asked.
        drop((replaced, inserted));
        self.prune();
    }

    /// A mapping that the cache, being off, does not keep.
    pub(crate) fn pass(&self, start: usize, end: usize, mapping: &HostMapping) {
        if let Some(span) = span_of(start, end) {
            lock(&self.retired).push((span, mapping.downgrade()));
            self.prune();
        }
    }

    /// Remembers what goes, until the device does not reach it any more. `true`: for what goes before anybody can ask about it.
    fn retire(&self, held: &Held<HostMapping>) -> bool {
        lock(&self.retired).push((held.span(), held.downgrade()));
        true
    }

    fn prune(&self) {
        lock(&self.retired).retain(|(_, mapping)| mapping.is_alive());
    }

    /// A range's memory is about to go, and its mappings hold it: they leave the cache.
    pub(crate) fn let_go(&self, start: usize, len: usize) {
        if self.owner.is_foreign() {
            return;
        }
        if let Some(span) = Span::new(start as u64, len as u64) {
            drop(self.kept.invalidate(span, |held| self.retire(held)));
        }
    }

    /// A range's memory is about to go: unmaps what the device reaches of it, and says whether that is all. `again` asks the driver once
    /// more for what of a range it refused to unmap.
    pub(crate) fn forget(
        &self,
        start: usize,
        len: usize,
        again: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<()> {
        const OP: &str = "Device::forget";
        let Some((start, end)) = pages_of(start, len) else {
            return Err(Error::new(ErrorKind::InvalidInput, OP).because("the range leaves the address space"));
        };
        let Some(asked) = span_of(start, end) else {
            return Ok(());
        };
        let _pinning = self.pinning();
        drop(self.kept.invalidate(asked, |held| self.retire(held)));
        again(start, end)?;
        self.prune();
        let held = lock(&self.retired)
            .iter()
            .filter(|(span, _)| span.overlaps(asked))
            .count();
        if held > 0 {
            return Err(Error::new(ErrorKind::InUse, OP)
                .because(format!(
                    "{held} mappings of the range are held: by locations or copies in flight"
                ))
                .helped_by("wait for the copies' completions, drop the locations, and forget it again"));
        }
        Ok(())
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        if self.owner.is_foreign() {
            return;
        }
        drop(self.kept.take(Span::ALL, |held| self.retire(held)));
    }
}
