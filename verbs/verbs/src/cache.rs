//! [`MrCache`]: memory regions of one domain, kept for the next request: registering costs more
//! than a transfer.
//!
//! - The key is the allocation's generation, the range as the region's keys count it
//!   ([`Mr::addr`]), and the exact rights. Any range inside a region's is a hit.
//! - A hit takes no lock and allocates nothing.
//! - A miss registers in the caller's thread, one miss at a time, so that no range is registered
//!   twice. Idle regions above the limits are then deregistered in the same thread ([`Mr::close`]).
//! - Invalidation is for the owner of the memory. Idle regions are deregistered when the call
//!   returns. A region in use is not found again; its last user deregisters it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Condvar, Mutex};

use gaudi_ranges::{Cache, Held, Limits, Span, Stats, Tag};
use gaudi_seam::{CloseError, Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{IgnorePoison, lock};

use crate::access::Access;
use crate::context::Pd;
use crate::invalid;
use crate::mr::Mr;
use crate::wr::{MrAddr, Sge};

/// Key of a cached region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrKey {
    /// Number of the allocation, which its owner never reuses, so that a reused address is no hit.
    pub generation: u64,
    /// First byte, as the region's keys count it: usually the device address or the host address.
    pub addr: MrAddr,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Exact rights.
    pub access: Access,
}

impl MrKey {
    #[inline]
    fn tag(&self) -> Tag {
        [self.generation, u64::from(self.access.bits())]
    }

    #[inline]
    fn span(&self) -> Option<Span> {
        Span::new(self.addr.0, self.len)
    }
}

/// A reference to a cached region. The region is deregistered once it has left the cache and the
/// last reference is dropped.
#[derive(Clone)]
pub struct CachedMr {
    held: Held<Mr>,
}

/// Result of an invalidation.
#[derive(Debug, Default)]
#[must_use = "regions in use still block their memory"]
pub struct Invalidated {
    /// Regions that were deregistered.
    pub closed: usize,
    /// Regions in use, which their last user deregisters.
    pub in_use: usize,
    /// Errors of the NIC. The next invalidation tries these regions again.
    pub refused: Vec<Error>,
}

/// Cached memory regions of a domain. See the [module](self).
pub struct MrCache {
    pd: Pd,
    /// The process that owns the domain.
    owner: OwnerProcess,
    /// Boxed, so that the cache is small enough to return in an error.
    cache: Box<Cache<Mr>>,
    /// Locked while a region is created, and while regions are invalidated, so that no region is
    /// kept for freed memory. Not locked during deregistration.
    making: Mutex<()>,
    /// Regions that the NIC did not deregister.
    refused: Mutex<Vec<Mr>>,
    leaving: Box<Leaving>,
}

/// Evicted regions that are being deregistered. No table has them, but they still block their
/// memory.
#[derive(Debug, Default)]
struct Leaving {
    regions: Mutex<Vec<(Span, Tag)>>,
    /// Signaled when one is deregistered.
    removed: Condvar,
}

/// An evicted region. Dropping it deregisters the region, and then removes its entry in `Leaving`,
/// even if deregistering panics.
struct Evicted<'a> {
    // Before `_entry`: fields are dropped in this order.
    held: Held<Mr>,
    _entry: Entry<'a>,
}

struct Entry<'a> {
    leaving: &'a Leaving,
    region: (Span, Tag),
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut regions = lock(&self.leaving.regions);
        if let Some(at) = regions.iter().position(|other| *other == self.region) {
            regions.swap_remove(at);
        }
        drop(regions);
        self.leaving.removed.notify_all();
    }
}

impl Leaving {
    fn list(&self, held: Held<Mr>) -> Evicted<'_> {
        let region = (held.span(), held.tag());
        lock(&self.regions).push(region);
        let leaving = self;
        Evicted {
            held,
            _entry: Entry { leaving, region },
        }
    }

    /// Waits until the selected regions that overlap a span are deregistered.
    fn wait(&self, span: Span, mut which: impl FnMut(Tag) -> bool) {
        let mut regions = lock(&self.regions);
        while regions.iter().any(|(of, tag)| of.overlaps(span) && which(*tag)) {
            regions = self.removed.wait(regions).ignore_poison();
        }
    }
}

impl MrCache {
    /// Returns an empty cache for regions of a domain.
    pub fn new(pd: &Pd, limits: Limits) -> Self {
        Self {
            pd: pd.clone(),
            owner: OwnerProcess::current(),
            cache: Box::new(Cache::new(limits)),
            making: Mutex::new(()),
            refused: Mutex::default(),
            leaving: Box::default(),
        }
    }

    /// Returns the domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns its counters.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns a cached region that contains the range. Takes no lock, allocates nothing.
    #[inline]
    pub fn get(&self, key: &MrKey) -> Option<CachedMr> {
        if self.owner.is_foreign() {
            return None;
        }
        let held = self.cache.get(key.span()?, key.tag())?;
        Some(CachedMr { held })
    }

    /// Returns a region that contains the range: a cached one, or otherwise the result of
    /// `register`, which is then cached.
    ///
    /// `register` may register more than the range, such as the whole allocation. Other misses of
    /// this cache wait while it runs. It must not use the cache.
    ///
    /// # Errors
    /// The error of `register`; `InvalidInput` if its region is of another domain, has other
    /// rights, or does not contain the range; `Forked` in a fork child.
    pub fn get_or_register(
        &self,
        key: &MrKey,
        register: impl FnOnce(&Pd, &MrKey) -> Result<Mr>,
    ) -> Result<CachedMr> {
        const OPERATION: &str = "MrCache::get_or_register";
        self.pd.context().check_process(OPERATION)?;
        let span = key.span().ok_or_else(|| {
            invalid(OPERATION, "the range is empty or leaves the address space")
                .saw(format!("{} bytes at {}", key.len, key.addr), "an end below 2^64")
        })?;
        if let Some(held) = self.cache.get(span, key.tag()) {
            return Ok(CachedMr { held });
        }
        let making = lock(&self.making);
        // Another thread may have registered the range while this one waited for the lock.
        if let Some(held) = self.cache.get(span, key.tag()) {
            return Ok(CachedMr { held });
        }
        let mr = register(&self.pd, key)?;
        let made = self.check(OPERATION, key, span, &mr)?;
        let inserted = self.cache.insert(made, key.tag(), mr, |_| true);
        let evicted = inserted.evicted.into_iter();
        let evicted: Vec<_> = evicted.map(|held| self.leaving.list(held)).collect();
        drop(making);
        let name = self.pd.context().name();
        tracing::debug!(nic = name, region = %made, generation = key.generation, evicted = evicted.len(), "registered");
        for one in evicted {
            tracing::debug!(nic = name, region = %one.held.span(), "evicted");
            drop(one);
        }
        Ok(CachedMr { held: inserted.held })
    }

    /// Checks a new region against the request. Returns its range.
    fn check(&self, operation: &'static str, key: &MrKey, asked: Span, mr: &Mr) -> Result<Span> {
        let made = Span::new(mr.addr().0, mr.len());
        let wrong =
            |cause| invalid(operation, cause).saw(format!("{mr:?}"), format!("{key:?} of {:?}", self.pd));
        if !mr.pd().is_same(&self.pd) {
            return Err(wrong("the new region is of another domain"));
        }
        if mr.access() != key.access {
            return Err(wrong("the new region has other rights"));
        }
        made.filter(|made| made.contains(asked))
            .ok_or_else(|| wrong("the new region does not contain the range"))
    }

    /// Removes the regions of an allocation that is about to be freed.
    pub fn invalidate_generation(&self, generation: u64) -> Invalidated {
        self.invalidate(Span::ALL, |tag| tag[0] == generation)
    }

    /// Removes the regions that overlap a range that is about to be freed, of one generation or of
    /// all.
    pub fn invalidate_range(&self, generation: Option<u64>, addr: MrAddr, len: u64) -> Invalidated {
        let Some(span) = Span::new(addr.0, len) else {
            // An empty range overlaps nothing.
            return Invalidated::default();
        };
        self.invalidate(span, |tag| {
            generation.is_none_or(|generation| tag[0] == generation)
        })
    }

    /// Removes all regions, before the device is reset or closed.
    pub fn invalidate_all(&self) -> Invalidated {
        self.invalidate(Span::ALL, |_| true)
    }

    fn invalidate(&self, span: Span, mut which: impl FnMut(Tag) -> bool) -> Invalidated {
        let mut done = Invalidated::default();
        // In a fork child the regions are the parent's.
        if self.pd.context().check_process("MrCache::invalidate").is_err() {
            return done;
        }
        let making = lock(&self.making);
        let removed = self.cache.invalidate(span, |held| which(held.tag()));
        drop(making);
        let again = std::mem::take(&mut *lock(&self.refused));
        let mut idle = again;
        for held in removed {
            tracing::debug!(nic = self.pd.context().name(), region = %held.span(), "invalidated");
            match held.into_value() {
                Ok(mr) => idle.push(mr),
                Err(held) => {
                    done.in_use += 1;
                    drop(held);
                }
            }
        }
        for mr in idle {
            match mr.close() {
                Ok(()) => done.closed += 1,
                Err(CloseError { object: mr, error }) => {
                    done.refused.push(error);
                    lock(&self.refused).push(mr);
                }
            }
        }
        // Regions that other threads evicted before this one had the lock.
        self.leaving.wait(span, which);
        done
    }

    /// Deregisters all regions, or returns the cache with those that it could not.
    ///
    /// # Errors
    /// `InUse` while a [`CachedMr`] lives; the NIC's error; `Forked` in a fork child.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        const OPERATION: &str = "MrCache::close";
        if let Err(error) = self.pd.context().check_process(OPERATION) {
            return Err(CloseError::new(self, error));
        }
        let mut done = self.invalidate_all();
        if let Some(error) = done.refused.pop() {
            return Err(CloseError::new(self, error));
        }
        if done.in_use > 0 {
            let error = Error::new(ErrorKind::InUse, OPERATION)
                .because(format!("{} cached regions are in use", done.in_use))
                .helped_by("wait for the work that uses them and drop them: the last one deregisters");
            return Err(CloseError::new(self, error));
        }
        Ok(())
    }
}

impl fmt::Debug for MrCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MrCache({:?}, {:?})", self.pd, self.cache)
    }
}

impl CachedMr {
    /// Returns whether the cache still has the region. If not, drop it soon: it blocks the release
    /// of its memory.
    pub fn is_current(&self) -> bool {
        self.held.is_kept()
    }

    /// Returns the `length` bytes at an address as a local element.
    ///
    /// # Errors
    /// `InvalidInput` if they leave the region.
    pub fn sge_at(&self, addr: MrAddr, length: u32) -> Result<Sge> {
        let offset = addr.0.wrapping_sub(self.addr().0);
        self.sge(offset, length)
    }
}

impl Deref for CachedMr {
    type Target = Mr;

    #[inline]
    fn deref(&self) -> &Mr {
        &self.held
    }
}

impl fmt::Debug for CachedMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cached{:?}", **self)
    }
}
