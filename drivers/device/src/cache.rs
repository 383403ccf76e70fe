//! Mappings of host memory that are kept for the next copy: pinning costs more than a small copy.
//!
//! - *Built on [`gaudi_ranges`]*: a hit takes no lock.
//! - *Disjoint ranges of whole pages, by address*: a request inside a range is a hit; one that
//!   overlaps ranges is mapped anew together with them. The driver pins every page for reading and
//!   writing (`memory.c:get_user_memory`, `FOLL_WRITE`), so the range alone is the key.
//! - *A hit is held by the caller*: only mappings without another holder are evicted, the least
//!   recently used first, once they exceed the limits.
//! - *Never stale*: a [`HostBuffer`](crate::HostBuffer) leaves the cache when it is dropped; the
//!   caller deregisters other memory ([`Device::deregister`](crate::Device::deregister)).

#![expect(unsafe_code, reason = "only the caller knows how long foreign memory lives")]

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gaudi_ranges::{Held, Limits, Span, Stats, Tag};
use gaudi_seam::Result;
use gaudi_sys::PAGE;
use gaudi_sys::fork::OwnerProcess;

use crate::context::Context;
use crate::host_mapping::{HostMapping, WeakMapping};
use crate::location::Location;
use crate::pages::Memory;
use crate::shared::lock;

/// All mappings have the same access rights: the range alone is the key.
const TAG: Tag = [0, 0];

#[derive(Debug)]
pub(crate) struct Cache {
    owner: OwnerProcess,
    /// By whole pages; no two overlap.
    cached: gaudi_ranges::Cache<HostMapping>,
    /// Held while memory is pinned or deregistered: the ranges around a miss must not be freed
    /// before they are mapped with it. Taken before `retired`.
    pinning: Mutex<()>,
    /// Mappings that are not in the cache and that the device may still access: they are held, or
    /// the driver refused to unmap them.
    retired: Mutex<Vec<(Span, WeakMapping)>>,
}

/// Returns the whole pages around a range; `None` if it leaves the address space.
fn pages_of(start: usize, len: usize) -> Option<Span> {
    let end = start.checked_add(len)?.checked_next_multiple_of(PAGE as usize)?;
    let start = start as u64 / PAGE * PAGE;
    Span::new(start, (end as u64).checked_sub(start)?)
}

/// Maps the whole pages around a range of the caller's memory, with no other user of the mapping.
///
/// # Safety
/// As [`Device::pin`](crate::Device::pin).
///
/// # Errors
/// - `InvalidInput`: the range is empty, leaves the address space, or is in page 0.
/// - `Forked`, or the driver's own error.
pub(crate) unsafe fn pin(context: &Arc<Context>, start: NonNull<u8>, len: usize) -> Result<Location> {
    const OP: &str = "Device::pin";
    context.check_process(OP)?;
    if len == 0 {
        return Err(context.invalid(OP, "a host mapping needs at least one byte"));
    }
    let at = start.addr().get();
    let pages = pages_of(at, len).ok_or_else(|| context.invalid(OP, "the range leaves the address space"))?;
    let first = NonZero::new(pages.start() as usize)
        .ok_or_else(|| context.invalid(OP, "the range is in page 0, which is never mapped"))?;
    // SAFETY: the caller promises these bytes until the mapping is closed. A page stays mapped as
    // long as any byte of it does.
    let mapping = unsafe { HostMapping::foreign(context, start.with_addr(first), pages.len() as usize) }?;
    Ok(Location::in_mapping(
        mapping,
        at as u64 - pages.start(),
        len as u64,
    ))
}

impl Cache {
    /// A limit of 0 switches the cache off.
    pub(crate) fn new(entries: usize, bytes: u64) -> Self {
        Self {
            owner: OwnerProcess::current(),
            cached: gaudi_ranges::Cache::new(Limits { entries, bytes }),
            pinning: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    /// Returns the counters; zeros in a fork child, where another thread may have held a lock at
    /// the fork.
    pub(crate) fn stats(&self) -> Stats {
        if self.owner.is_foreign() {
            return Stats::default();
        }
        self.cached.stats()
    }

    /// Returns the cached mapping that contains a range, and the range's offset in it.
    fn find(&self, start: usize, len: usize) -> Option<(HostMapping, u64)> {
        let span = Span::new(start as u64, len as u64)?;
        let held = self.cached.get(span, TAG)?;
        Some((HostMapping::clone(&held), span.start() - held.span().start()))
    }

    /// Returns the mapping of memory of this crate. Calls `on_miss` before it inserts a new one.
    ///
    /// # Errors
    /// As [`HostMapping::owned`].
    pub(crate) fn map(
        &self,
        context: &Arc<Context>,
        memory: &Arc<Memory>,
        len: usize,
        on_miss: impl FnOnce(),
    ) -> Result<HostMapping> {
        if self.cached.is_off() {
            return HostMapping::owned(context, memory, len);
        }
        let start = memory.map.as_ptr().addr().get();
        // A mapping of foreign memory that happens to contain the range does not hold the memory.
        let find = || {
            let (mapping, _) = self.find(start, len)?;
            mapping.maps(memory).then_some(mapping)
        };
        if let Some(mapping) = find() {
            return Ok(mapping);
        }
        let _pinning = lock(&self.pinning);
        // Another thread may have mapped it meanwhile.
        if let Some(mapping) = find() {
            return Ok(mapping);
        }
        let mapping = HostMapping::owned(context, memory, len)?;
        on_miss();
        let Some(pages) = pages_of(start, len) else {
            unreachable!("mapped memory lies in the address space");
        };
        self.insert(pages, &mapping);
        Ok(mapping)
    }

    /// Maps memory of the caller: by a cached mapping that contains the range, or by a new one.
    ///
    /// # Safety
    /// As [`Device::register`](crate::Device::register).
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty or leaves the address space.
    /// - `Forked`, or the driver's own error.
    pub(crate) unsafe fn register(
        &self,
        context: &Arc<Context>,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Location> {
        const OP: &str = "Device::register";
        if len == 0 {
            // The caller promises nothing about the page around no bytes.
            return Err(context.invalid(OP, "a host mapping needs at least one byte"));
        }
        let at = start.addr().get();
        let location = |(mapping, offset)| Location::in_mapping(mapping, offset, len as u64);
        if let Some(hit) = self.find(at, len) {
            return Ok(location(hit));
        }
        let _pinning = lock(&self.pinning);
        if let Some(hit) = self.find(at, len) {
            return Ok(location(hit));
        }
        let pages = self
            .span(at, len)
            .ok_or_else(|| context.invalid(OP, "the range leaves the address space"))?;
        let offset = at as u64 - pages.start();
        let first = NonZero::new(pages.start() as usize)
            .ok_or_else(|| context.invalid(OP, "the range is in page 0, which is never mapped"))?;
        let first = start.with_addr(first);
        // SAFETY: the caller promises these bytes until they are deregistered. The ranges around
        // them were promised likewise and are not deregistered meanwhile (`pinning`). A page stays
        // mapped as long as any byte of it does.
        let mapping = unsafe { HostMapping::foreign(context, first, pages.len() as usize) }?;
        if self.cached.is_off() {
            lock(&self.retired).push((pages, mapping.downgrade()));
            self.prune();
        } else {
            self.insert(pages, &mapping);
        }
        Ok(location((mapping, offset)))
    }

    /// Returns the pages to map for a range that no mapping contains: its own, and those of every
    /// mapping that it overlaps.
    fn span(&self, start: usize, len: usize) -> Option<Span> {
        let asked = pages_of(start, len)?;
        // One look-up is enough: no other mapping overlaps what a neighbour adds.
        let around = self.cached.overlapping(asked);
        let (mut low, mut last) = (asked.start(), asked.last());
        for held in &around {
            low = low.min(held.span().start());
            last = last.max(held.span().last());
        }
        Span::new(low, last - low + 1)
    }

    /// Inserts a mapping in place of those that it overlaps, and evicts what exceeds the limits.
    fn insert(&self, pages: Span, mapping: &HostMapping) {
        let replaced = self.cached.take(pages, |held| self.retire(held));
        let inserted = self
            .cached
            .insert(pages, TAG, mapping.clone(), |mapping| !mapping.is_shared());
        for held in &inserted.evicted {
            self.retire(held);
        }
        // The drops call the driver.
        drop((replaced, inserted));
        self.prune();
    }

    /// Records a mapping that leaves the cache, until the device can no longer access it. Returns
    /// `true`, so that it is recorded before another thread can look for it.
    fn retire(&self, held: &Held<HostMapping>) -> bool {
        lock(&self.retired).push((held.span(), held.downgrade()));
        true
    }

    fn prune(&self) {
        lock(&self.retired).retain(|(_, mapping)| mapping.is_mapped());
    }

    /// Removes the mappings of memory that is about to be dropped. They hold the memory.
    pub(crate) fn invalidate(&self, start: NonNull<u8>, len: usize) {
        if self.owner.is_foreign() {
            return;
        }
        let Some(span) = Span::new(start.addr().get() as u64, len as u64) else {
            unreachable!("allocated memory lies in the address space");
        };
        drop(self.cached.invalidate(span, |held| self.retire(held)));
    }

    /// Unmaps memory of the caller.
    ///
    /// # Errors
    /// As [`Device::deregister`](crate::Device::deregister).
    pub(crate) fn deregister(&self, context: &Context, start: NonNull<u8>, len: usize) -> Result<()> {
        const OP: &str = "Device::deregister";
        context.queues.reap();
        if len == 0 {
            return Ok(());
        }
        let asked = pages_of(start.addr().get(), len)
            .ok_or_else(|| context.invalid(OP, "the range leaves the address space"))?;
        let _pinning = lock(&self.pinning);
        drop(self.cached.invalidate(asked, |held| self.retire(held)));
        context.unmap_stranded((asked.start() as usize, asked.last() as usize + 1))?;
        self.prune();
        let held = lock(&self.retired)
            .iter()
            .filter(|(span, _)| span.overlaps(asked))
            .count();
        if held > 0 {
            let cause = format!("{held} mappings of the range are held: by locations or copies in flight");
            return Err(context
                .in_use(OP, cause)
                .helped_by("wait for the copies' completions, drop the locations, and deregister it again"));
        }
        Ok(())
    }

    /// Removes all mappings.
    pub(crate) fn clear(&self) {
        if !self.owner.is_foreign() {
            drop(self.cached.take(Span::ALL, |held| self.retire(held)));
        }
    }
}
