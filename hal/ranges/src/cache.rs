//! [`Cache`]: a [`RangeMap`] with limits, eviction and statistics.
//!
//! A hit is slow if it writes to cache lines that other threads use. With 2 threads and 1 000
//! entries, counting hits in parts gains a factor of 5.7, a separate cache line for `now` 1.9, and
//! writing a stamp only if it changes 3.0 ([`crate::raw`] describes the measurement).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::raw::{InUse, Pin, RangeMap, Tag};
use crate::span::Span;
use crate::sync::{Mutex, lock};

/// The limits of a cache. A limit of 0 switches the cache off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of entries.
    pub entries: usize,
    /// The maximum sum of the entries' range lengths in bytes.
    pub bytes: u64,
}

/// Statistics of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that found an entry.
    pub hits: u64,
    /// Values inserted after a miss.
    pub misses: u64,
    /// Entries evicted to stay within the limits.
    pub evictions: u64,
    /// Entries removed by [`Cache::invalidate`].
    pub invalidations: u64,
    /// Entries in the cache now.
    pub entries: usize,
    /// The sum of their range lengths in bytes, at most 2^64 - 1.
    pub bytes: u64,
}

/// A cache of values by range and tag. It evicts the least recently used entry first.
///
/// - *A hit takes no lock and allocates nothing.* It writes to memory that other threads write to
///   only once after each miss: the entry's stamp.
/// - *An entry in use is not evicted*, because its value would not be dropped. The limits apply to
///   idle entries; each miss enforces them.
/// - *The cache does not drop values itself.* It returns removed entries, and the last [`Held`]
///   drops the value, so the caller chooses where a slow drop runs. A value that another thread
///   still held is dropped in the thread that next finds it unused. That thread may belong to
///   another cache.
pub struct Cache<V: Send + Sync + 'static> {
    /// Advances with every miss. It has cache lines of its own, because every hit reads it.
    now: Apart<AtomicU32>,
    limits: Limits,
    map: RangeMap<Slot<V>>,
    hits: Hits,
    state: Mutex<State<V>>,
}

/// A value and its place in the eviction order. The entry's stamp is the time of its last use. It
/// wraps around after 2^31 misses, and the order of eviction is wrong for a while then.
#[repr(C)]
struct Slot<V> {
    /// Its key in `by_age`, written under the lock. 0 after removal: no lookup hits it any more.
    place: AtomicU64,
    value: V,
}

struct State<V: Send + Sync + 'static> {
    /// Entries by time of last use in the upper half of the key; the lower half makes it unique.
    /// The time is updated by [`Cache::make_room`] only, so the entry's stamp may be later.
    by_age: BTreeMap<u64, Pin<Slot<V>>>,
    next: u32,
    /// All but `hits` and `bytes`.
    stats: Stats,
    /// Two entries may have more bytes than a `u64` can hold.
    bytes: u128,
}

/// A reference to an entry. It keeps the value alive after the entry left the cache.
pub struct Held<V: Send + Sync + 'static> {
    pin: Pin<Slot<V>>,
}

/// What [`Cache::insert`] did.
#[derive(Debug)]
pub struct Inserted<V: Send + Sync + 'static> {
    /// The new entry.
    pub held: Held<V>,
    /// The evicted entries. Dropping a `Held` drops its value, unless another `Held` refers to it.
    pub evicted: Vec<Held<V>>,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Apart<T>(T);

/// A counter in parts: one thread at a time writes each part except the first, which all share.
#[derive(Debug)]
struct Hits {
    parts: Box<[Apart<AtomicU64>; Self::PARTS]>,
}

impl Hits {
    const PARTS: usize = 32;

    fn new() -> Self {
        Self {
            parts: Box::new(std::array::from_fn(|_| Apart::default())),
        }
    }

    #[inline]
    fn add(&self, thread: Option<usize>) {
        if let Some(part) = thread.and_then(|thread| self.parts[1..].get(thread)) {
            // No other thread has this number now, so no addition is lost.
            part.0
                .store(part.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            self.parts[0].0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sum(&self) -> u64 {
        self.parts.iter().map(|part| part.0.load(Ordering::Relaxed)).sum()
    }
}

impl<V: Send + Sync + 'static> State<V> {
    /// Returns an unused key for that time; never 0.
    fn vacant(&mut self, used: u32) -> u64 {
        loop {
            self.next = self.next.wrapping_add(1);
            let place = u64::from(used) << 32 | u64::from(self.next);
            if place != 0 && !self.by_age.contains_key(&place) {
                return place;
            }
        }
    }

    fn remove(&mut self, pin: &Pin<Slot<V>>) {
        self.by_age.remove(&pin.place.load(Ordering::Relaxed));
        pin.place.store(0, Ordering::Release);
        self.stats.entries -= 1;
        self.bytes -= u128::from(pin.span().len());
    }
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// Returns an empty cache.
    pub fn new(limits: Limits) -> Self {
        Self {
            now: Apart::default(),
            limits,
            map: RangeMap::new(),
            hits: Hits::new(),
            state: Mutex::new(State {
                by_age: BTreeMap::new(),
                next: 0,
                stats: Stats::default(),
                bytes: 0,
            }),
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the limits switch the cache off.
    pub fn is_off(&self) -> bool {
        self.limits.entries == 0 || self.limits.bytes == 0
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Stats {
        let state = lock(&self.state);
        let mut stats = state.stats;
        // `Stats::bytes` documents the bound.
        stats.bytes = u64::try_from(state.bytes).unwrap_or(u64::MAX);
        drop(state);
        stats.hits = self.hits.sum();
        stats
    }

    /// Returns an entry with this tag whose range contains `span`.
    #[inline]
    pub fn get(&self, span: Span, tag: Tag) -> Option<Held<V>> {
        self.map.get_then(span, tag, |pin, thread| {
            if pin.place.load(Ordering::Relaxed) == 0 {
                return None;
            }
            self.hits.add(thread);
            let now = self.now.0.load(Ordering::Relaxed);
            // Written once after each miss, not by every hit.
            if pin.stamp().load(Ordering::Relaxed) != now {
                pin.stamp().store(now, Ordering::Relaxed);
            }
            Some(Held { pin })
        })
    }

    /// Inserts a value, and evicts idle entries until the limits hold, the least recently used
    /// first. An entry is idle if no [`Held`] refers to it and `is_idle` returns `true` for its
    /// value. `is_idle` runs under the cache's lock and must not use the cache.
    pub fn insert(&self, span: Span, tag: Tag, value: V, is_idle: impl Fn(&V) -> bool) -> Inserted<V> {
        let mut state = lock(&self.state);
        // Later hits get a later time than this entry; earlier hits have an earlier one.
        let made = self.now.0.load(Ordering::Relaxed).wrapping_add(1);
        self.now.0.store(made.wrapping_add(1), Ordering::Relaxed);
        let place = state.vacant(made);
        let slot = Slot {
            place: AtomicU64::new(place),
            value,
        };
        let pin = self.map.insert_stamped(span, tag, made, slot);
        state.by_age.insert(place, pin.clone());
        state.stats.misses += 1;
        state.stats.entries += 1;
        state.bytes += u128::from(span.len());
        let evicted = self.make_room(&mut state, &pin, is_idle);
        drop(state);
        // Not under the lock: this may drop values that other threads released meanwhile.
        self.map.remove_each(&evicted);
        let evicted = evicted.into_iter().map(|pin| Held { pin }).collect();
        Inserted {
            held: Held { pin },
            evicted,
        }
    }

    fn make_room(
        &self,
        state: &mut State<V>,
        new: &Pin<Slot<V>>,
        is_idle: impl Fn(&V) -> bool,
    ) -> Vec<Pin<Slot<V>>> {
        let Limits { entries, bytes } = self.limits;
        // `u64::MAX` means unlimited.
        let most = if bytes == u64::MAX {
            u128::MAX
        } else {
            u128::from(bytes)
        };
        let over = |state: &State<V>| state.stats.entries > entries || state.bytes > most;
        if !over(state) {
            return Vec::new();
        }
        let in_use = InUse::now();
        let mut evicted = Vec::new();
        let mut from = 0;
        while over(state) {
            let Some((&at, pin)) = state.by_age.range(from..).next() else {
                break;
            };
            let used = pin.stamp().load(Ordering::Relaxed);
            if u64::from(used) > at >> 32 {
                // It was used since its key was made: move it to its new place. The loop ends,
                // because hits do not advance `now`.
                if let Some(pin) = state.by_age.remove(&at) {
                    let place = state.vacant(used);
                    pin.place.store(place, Ordering::Relaxed);
                    state.by_age.insert(place, pin);
                }
            } else if pin.is_same(new) || in_use.has(pin) || !is_idle(&pin.value) {
                let Some(next) = at.checked_add(1) else { break };
                from = next;
            } else {
                let pin = pin.clone();
                state.remove(&pin);
                state.stats.evictions += 1;
                evicted.push(pin);
            }
        }
        evicted
    }

    /// Returns every entry that overlaps `span`, in order of range. Counts no hit and no use.
    pub fn overlapping(&self, span: Span) -> Vec<Held<V>> {
        let pins = self.map.overlapping(span).into_iter();
        pins.map(|pin| Held { pin }).collect()
    }

    /// Removes the entries that overlap `span` and for which `which` returns `true`. No lookup that
    /// starts after this call returns one of them. `which` runs under the cache's lock and must not
    /// use the cache.
    pub fn take(&self, span: Span, mut which: impl FnMut(&Held<V>) -> bool) -> Vec<Held<V>> {
        let mut state = lock(&self.state);
        let mut removed = self.overlapping(span);
        removed.retain(|held| which(held) && held.is_kept());
        for held in &removed {
            state.remove(&held.pin);
        }
        drop(state);
        let pins: Vec<_> = removed.iter().map(|held| held.pin.clone()).collect();
        self.map.remove_each(&pins);
        removed
    }

    /// As [`take`](Self::take), and counts the entries as invalidated.
    pub fn invalidate(&self, span: Span, which: impl FnMut(&Held<V>) -> bool) -> Vec<Held<V>> {
        let removed = self.take(span, which);
        lock(&self.state).stats.invalidations += removed.len() as u64;
        removed
    }
}

impl<V: Send + Sync + 'static> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({:?} within {:?})", self.stats(), self.limits)
    }
}

impl<V: Send + Sync + 'static> Held<V> {
    /// Returns the range of the entry.
    pub fn span(&self) -> Span {
        self.pin.span()
    }

    /// Returns the tag of the entry.
    pub fn tag(&self) -> Tag {
        self.pin.tag()
    }

    /// Whether the entry is still in the cache: `false` after it was evicted or removed.
    pub fn is_kept(&self) -> bool {
        self.pin.place.load(Ordering::Acquire) != 0
    }

    /// Whether both refer to the same entry.
    pub fn is_same(&self, other: &Self) -> bool {
        self.pin.is_same(&other.pin)
    }

    /// Returns the value.
    ///
    /// # Errors
    /// The entry itself: it is still in the cache, or another `Held` uses it.
    pub fn into_value(self) -> Result<V, Self> {
        match self.pin.into_value() {
            Ok(slot) => Ok(slot.value),
            Err(pin) => Err(Self { pin }),
        }
    }
}

impl<V: Send + Sync + 'static> Clone for Held<V> {
    fn clone(&self) -> Self {
        Self {
            pin: self.pin.clone(),
        }
    }
}

impl<V: Send + Sync + 'static> Deref for Held<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.pin.value
    }
}

impl<V: Send + Sync + fmt::Debug + 'static> fmt::Debug for Held<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({}, {:?})", self.span(), &**self)
    }
}
