//! Mappings of host memory that are kept for the next copy: pinning costs more than a small copy does.
//!
//! - *Disjoint ranges of whole pages, by address*: a request inside a range is a hit; one that overlaps ranges is mapped anew together
//!   with them. The driver pins every page for reading and for writing (driver memory.c `FOLL_WRITE`), so there is one kind of right,
//!   and the range alone is the key.
//! - *A hit holds*: what it gives keeps the mapping, whatever the cache does meanwhile. Only mappings that nobody holds are evicted,
//!   the longest unused first, once there are more of them than the limits allow.
//! - *Never stale*: memory of a [`HostBuffer`](crate::HostBuffer) is held by its mappings and leaves the cache when the buffer goes;
//!   whoever had foreign memory mapped promised to say so before it goes ([`Device::forget`](crate::Device::forget)).
//! - *The driver is asked outside the lock*, and unmapping too happens there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::PAGE;
use gaudi_sys::fork::Birth;

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

#[derive(Debug)]
pub(crate) struct Cache {
    birth: Birth,
    most_entries: usize,
    most_bytes: u64,
    /// Held while memory is pinned and while memory is forgotten: what is looked up for a mapping must not go before it is mapped.
    /// Taken before `state`.
    pinning: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the first byte's address; no two overlap.
    entries: BTreeMap<usize, Entry>,
    /// What was forgotten while somebody held it: (start, end, mapping).
    retired: Vec<(usize, usize, WeakMapping)>,
    /// What the driver refused to unmap.
    refused: Vec<(usize, usize, HostMapping)>,
    tick: u64,
    stats: CacheStats,
}

#[derive(Debug)]
struct Entry {
    end: usize,
    used: u64,
    mapping: HostMapping,
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

impl State {
    fn overlapping(&self, start: usize, end: usize) -> Vec<usize> {
        let below = self.entries.range(..end).rev();
        below
            .take_while(|(_, entry)| entry.end > start)
            .map(|(&at, _)| at)
            .collect()
    }

    fn take(&mut self, at: usize) -> Option<Entry> {
        let entry = self.entries.remove(&at)?;
        self.stats.entries -= 1;
        self.stats.bytes -= (entry.end - at) as u64;
        Some(entry)
    }
}

impl Cache {
    /// No more than so many mappings and bytes are kept that nobody holds; none of either switches the cache off.
    pub(crate) fn new(most_entries: usize, most_bytes: u64) -> Self {
        Self {
            birth: Birth::here(),
            most_entries,
            most_bytes,
            pinning: Mutex::default(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        lock(&self.state).stats
    }

    /// To be held from [`span`](Self::span) to [`keep`](Self::keep).
    pub(crate) fn pinning(&self) -> MutexGuard<'_, ()> {
        lock(&self.pinning)
    }

    pub(crate) fn is_off(&self) -> bool {
        self.most_entries == 0 || self.most_bytes == 0
    }

    /// The kept mapping that holds a range.
    pub(crate) fn find(&self, start: usize, len: usize) -> Option<Hit> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let end = start.checked_add(len)?;
        let (&at, entry) = state.entries.range_mut(..=start).next_back()?;
        if entry.end < end {
            return None;
        }
        state.tick += 1;
        state.stats.hits += 1;
        entry.used = state.tick;
        Some(Hit {
            mapping: entry.mapping.clone(),
            offset: (start - at) as u64,
        })
    }

    /// The pages to map for a range that no mapping holds: its own, and those of every mapping that it overlaps.
    pub(crate) fn span(&self, start: usize, len: usize) -> Option<(usize, usize)> {
        let state = lock(&self.state);
        let (mut start, mut end) = pages_of(start, len)?;
        loop {
            let around = state.overlapping(start, end);
            let low = around.iter().copied().min().unwrap_or(start).min(start);
            let high = around
                .iter()
                .filter_map(|at| state.entries.get(at))
                .map(|entry| entry.end)
                .max()
                .unwrap_or(end)
                .max(end);
            if (low, high) == (start, end) {
                return Some((start, end));
            }
            (start, end) = (low, high);
        }
    }

    /// Keeps a mapping in place of those that it overlaps, and lets go of what is over the limits.
    pub(crate) fn keep(&self, start: usize, end: usize, mapping: &HostMapping) {
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        for at in state.overlapping(start, end) {
            if let Some(entry) = state.take(at) {
                state.retired.push((at, entry.end, entry.mapping.downgrade()));
                gone.push(entry);
            }
        }
        state.tick += 1;
        let used = state.tick;
        state.entries.insert(
            start,
            Entry {
                end,
                used,
                mapping: mapping.clone(),
            },
        );
        state.stats.misses += 1;
        state.stats.entries += 1;
        state.stats.bytes += (end - start) as u64;
        while state.stats.entries > self.most_entries || state.stats.bytes > self.most_bytes {
            let idle = state
                .entries
                .iter()
                .filter(|(_, entry)| !entry.mapping.is_shared());
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(&at, _)| at) else {
                break;
            };
            state.stats.evictions += 1;
            gone.extend(state.take(oldest));
        }
        state.retired.retain(|(.., mapping)| mapping.is_alive());
        drop(state);
        // Here the driver is asked.
        drop(gone);
    }

    /// A range's memory is about to go, and its mappings hold it: they leave the cache.
    pub(crate) fn let_go(&self, start: usize, len: usize) {
        if self.birth.is_elsewhere() {
            return;
        }
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        if let Some(end) = start.checked_add(len) {
            for at in state.overlapping(start, end) {
                state.stats.forgotten += 1;
                gone.extend(state.take(at));
            }
        }
        drop(state);
        drop(gone);
    }

    /// A range's memory is about to go: unmaps what the device reaches of it, and says whether that is all.
    pub(crate) fn forget(&self, start: usize, len: usize) -> Result<()> {
        const OP: &str = "Device::forget";
        let Some((start, end)) = pages_of(start, len) else {
            return Err(Error::new(ErrorKind::InvalidInput, OP).because("the range leaves the address space"));
        };
        let _pinning = self.pinning();
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        for at in state.overlapping(start, end) {
            state.stats.forgotten += 1;
            if let Some(entry) = state.take(at) {
                gone.push((at, entry.end, entry.mapping));
            }
        }
        let refused = std::mem::take(&mut state.refused);
        let (again, others): (Vec<_>, Vec<_>) = refused
            .into_iter()
            .partition(|&(from, to, _)| from < end && start < to);
        state.refused = others;
        drop(state);
        let mut failure = None;
        let (mut retired, mut refused) = (Vec::new(), Vec::new());
        for (from, to, mapping) in gone.into_iter().chain(again) {
            if let Err((mapping, error)) = mapping.close() {
                if error.kind() == ErrorKind::InUse && mapping.is_shared() {
                    retired.push((from, to, mapping.downgrade()));
                } else {
                    refused.push((from, to, mapping));
                    failure = Some(error);
                }
            }
        }
        let mut state = lock(&self.state);
        state.refused.append(&mut refused);
        state.retired.append(&mut retired);
        state.retired.retain(|(.., mapping)| mapping.is_alive());
        let held = state
            .retired
            .iter()
            .filter(|&&(from, to, _)| from < end && start < to)
            .count();
        drop(state);
        match failure {
            Some(error) => Err(error),
            None if held > 0 => Err(Error::new(ErrorKind::InUse, OP)
                .because(format!(
                    "{held} mappings of the range are held: by locations or copies in flight"
                ))
                .helped_by("wait for the copies' completions, drop the locations, and forget it again")),
            None => Ok(()),
        }
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        let (entries, refused) = {
            let mut state = lock(&self.state);
            (state.stats.entries, state.stats.bytes) = (0, 0);
            (
                std::mem::take(&mut state.entries),
                std::mem::take(&mut state.refused),
            )
        };
        drop((entries, refused));
    }
}
