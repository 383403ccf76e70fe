//! [`MrCache`]: memory regions of one domain that are kept for the next request, since registering costs more than a transfer does.
//!
//! - *The key* is the allocation's generation, the range as the region's own keys count it ([`Mr::addr`]), and the rights, exactly: a
//!   region with more rights than were asked for is another one. The domain is the cache's. Any range inside a region's is a hit.
//! - *A hit* takes no lock and allocates nothing. It waits for no registration and no deregistration of anybody else.
//! - *A miss* registers in the caller's thread, one miss at a time, so that a range is not registered twice. What is over the limits
//!   then is deregistered in that thread too, after the lock is let go: idle regions, the longest unused first. That can take long
//!   ([`Mr::close`]); a cache that is larger than what is used at a time never does it.
//! - *Invalidation* is for who frees or resets what regions stand on: [`invalidate_generation`](MrCache::invalidate_generation),
//!   [`invalidate_range`](MrCache::invalidate_range), [`invalidate_all`](MrCache::invalidate_all). What nobody uses is deregistered
//!   when the call returns, what another thread's miss is just deregistering too. What is in use is not found again from then on; who
//!   has it goes on with keys that stay good, learns of it from [`CachedMr::is_current`], and the last one to let go deregisters it, in
//!   his thread.

use std::fmt;
use std::ops::Deref;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use gaudi_ranges::{Cache, Held, Limits, Span, Stats, Tag};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;

use crate::access::Access;
use crate::context::Pd;
use crate::invalid;
use crate::mr::Mr;
use crate::wr::{MrAddr, Sge};

/// What a region is asked for by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrKey {
    /// Which allocation: a number that its owner never gives twice, so that an address that was freed and given anew is no hit.
    pub generation: u64,
    /// The first byte, as the region's keys are to count it: by default the device address, or the address in this process.
    pub addr: MrAddr,
    /// Bytes, at least one.
    pub len: u64,
    /// The rights, exactly.
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

/// A region in use: deregistered when it has left the cache and the last of these has gone.
#[derive(Clone)]
pub struct CachedMr {
    held: Held<Mr>,
}

/// What an invalidation came to.
#[derive(Debug, Default)]
#[must_use = "regions that are in use still block the memory that they stand on"]
pub struct Invalidated {
    /// Regions that are deregistered.
    pub closed: usize,
    /// Regions that somebody uses: they go with the last user.
    pub in_use: usize,
    /// Why the NIC kept regions. They are tried again at the next invalidation.
    pub refused: Vec<Error>,
}

/// Memory regions of a domain. See the [module](self).
pub struct MrCache {
    pd: Pd,
    /// The domain's process is this one or an earlier one.
    owner: OwnerProcess,
    /// Boxed, so that the whole is small enough to hand back in an error.
    cache: Box<Cache<Mr>>,
    /// Held while a region is made, and while regions are invalidated: what is made for memory must not be kept after it went. Never
    /// while one is deregistered.
    making: Mutex<()>,
    /// What the NIC did not deregister.
    refused: Mutex<Vec<Mr>>,
    leaving: Box<Leaving>,
}

/// What was evicted and is being deregistered: it is in no table any more, and still blocks the memory that it stands on.
#[derive(Debug, Default)]
struct Leaving {
    regions: Mutex<Vec<(Span, Tag)>>,
    /// Some of them went.
    went: Condvar,
}

/// One of them: what is dropped with it is deregistered first, and then told as gone, however that ends.
struct Evicted<'a> {
    // Before `_gone`: fields are dropped in this order.
    held: Held<Mr>,
    _gone: Gone<'a>,
}

struct Gone<'a> {
    leaving: &'a Leaving,
    region: (Span, Tag),
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let mut regions = lock(&self.leaving.regions);
        if let Some(at) = regions.iter().position(|other| *other == self.region) {
            regions.swap_remove(at);
        }
        drop(regions);
        self.leaving.went.notify_all();
    }
}

impl Leaving {
    fn list(&self, held: Held<Mr>) -> Evicted<'_> {
        let region = (held.span(), held.tag());
        lock(&self.regions).push(region);
        let leaving = self;
        Evicted {
            held,
            _gone: Gone { leaving, region },
        }
    }

    /// Returns when those are gone that have a byte of the span and fit.
    fn wait(&self, span: Span, mut which: impl FnMut(Tag) -> bool) {
        let mut regions = lock(&self.regions);
        while regions.iter().any(|(of, tag)| of.overlaps(span) && which(*tag)) {
            regions = self.went.wait(regions).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MrCache {
    /// An empty cache of a domain's regions.
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

    /// The domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// What it did, and what it keeps.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// A region that is kept and holds the range. Takes no lock, allocates nothing.
    #[inline]
    pub fn get(&self, key: &MrKey) -> Option<CachedMr> {
        if self.owner.is_foreign() {
            return None;
        }
        let held = self.cache.get(key.span()?, key.tag())?;
        Some(CachedMr { held })
    }

    /// A region that holds the range: one that is kept, or the one that `register` makes, which is kept for the next request.
    ///
    /// `register` may make more than was asked for, as the whole allocation: the region's own range is what is kept. It runs while other
    /// misses of this cache wait; it must not use the cache. `InvalidInput` where its region is of another domain, has other rights, or
    /// does not hold the range; `Forked` in a fork child; else what it failed with.
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
        // Who waited for the turn may find what he came for.
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

    /// The range of a region that was made for a request.
    fn check(&self, operation: &'static str, key: &MrKey, asked: Span, mr: &Mr) -> Result<Span> {
        let made = Span::new(mr.addr().0, mr.len());
        let wrong =
            |cause| invalid(operation, cause).saw(format!("{mr:?}"), format!("{key:?} of {:?}", self.pd));
        if !mr.pd().is_same(&self.pd) {
            return Err(wrong("the region that was made is of another domain"));
        }
        if mr.access() != key.access {
            return Err(wrong("the region that was made has other rights"));
        }
        made.filter(|made| made.contains(asked))
            .ok_or_else(|| wrong("the region that was made does not hold the range"))
    }

    /// An allocation is about to go: takes its regions out.
    pub fn invalidate_generation(&self, generation: u64) -> Invalidated {
        self.invalidate(Span::ALL, |tag| tag[0] == generation)
    }

    /// A part of an allocation, or of this process's memory, is about to go: takes the regions out that have a byte of it. Of every
    /// generation where that is `None`.
    pub fn invalidate_range(&self, generation: Option<u64>, addr: MrAddr, len: u64) -> Invalidated {
        let Some(span) = Span::new(addr.0, len) else {
            return Invalidated::default();
        };
        self.invalidate(span, |tag| {
            generation.is_none_or(|generation| tag[0] == generation)
        })
    }

    /// The device is about to be reset or closed: takes everything out.
    pub fn invalidate_all(&self) -> Invalidated {
        self.invalidate(Span::ALL, |_| true)
    }

    fn invalidate(&self, span: Span, mut which: impl FnMut(Tag) -> bool) -> Invalidated {
        let mut done = Invalidated::default();
        // A fork child's are the parent's.
        if self.pd.context().check_process("MrCache::invalidate").is_err() {
            return done;
        }
        let making = lock(&self.making);
        let gone = self.cache.invalidate(span, |held| which(held.tag()));
        drop(making);
        let again = std::mem::take(&mut *lock(&self.refused));
        let mut idle = again;
        for held in gone {
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
                Err((mr, error)) => {
                    done.refused.push(error);
                    lock(&self.refused).push(mr);
                }
            }
        }
        // Evicted before `making` was ours: in the list by then, and off it once deregistered.
        self.leaving.wait(span, which);
        done
    }

    /// Deregisters everything, or gives the cache back, empty but for what it could not: `InUse` while a [`CachedMr`] lives, else what
    /// the NIC said.
    pub fn close(self) -> Result<(), (Self, Error)> {
        const OPERATION: &str = "MrCache::close";
        if let Err(error) = self.pd.context().check_process(OPERATION) {
            return Err((self, error));
        }
        let mut done = self.invalidate_all();
        if let Some(error) = done.refused.pop() {
            return Err((self, error));
        }
        if done.in_use > 0 {
            let error = Error::new(ErrorKind::InUse, OPERATION)
                .because(format!("{} cached regions are in use", done.in_use))
                .helped_by("wait for the work that uses them and drop them: the last one deregisters");
            return Err((self, error));
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
    /// Whether the cache still gives it out. `false` after it was evicted, or invalidated: its memory is about to go, and holding it
    /// longer blocks that.
    pub fn is_current(&self) -> bool {
        self.held.is_kept()
    }

    /// The `length` bytes at an address as a local element. `InvalidInput` where they leave the region.
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
