//! The type of any address: host memory, or the memory of a card.
//!
//! - *A lookup takes no lock and allocates nothing.* Most addresses are host memory: two loads
//!   compare them with the bounds of all device memory.
//! - *Events are explicit*: allocations of this library, and those that the program announces. No
//!   call of malloc(3) or mmap(2) is intercepted.
//! - *One map for the process*, shared by all cards. Addresses of two cards differ, because each
//!   domain places its memory in an own part of the address space.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use gaudi_device::{DeviceId, Error, ErrorKind, Result};
use gaudi_ranges::{Class, RangeMap, Span, Tag};
use gaudi_sys::{PerProcess, lock};

use crate::config::Config;
use crate::kind::MemoryType;

/// The range alone is the key.
const TAG: Tag = [0, 0];

/// The type of a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Typed {
    /// Where the memory lies.
    pub kind: MemoryType,
    /// The card that has the memory; `None` for host memory, and for the parent's memory in a fork
    /// child.
    pub device: Option<DeviceId>,
}

impl Typed {
    const HOST: Self = Self {
        kind: MemoryType::Host,
        device: None,
    };
    /// Of the parent of a fork child.
    const INHERITED: Self = Self {
        kind: MemoryType::Device,
        device: None,
    };

    fn of(device: DeviceId) -> Self {
        Self {
            kind: MemoryType::Device,
            device: Some(device),
        }
    }
}

/// Device memory appeared or is about to disappear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryEvent {
    /// The memory was allocated. The address is not known to the program yet.
    Alloc {
        /// The first address.
        address: u64,
        /// Bytes.
        len: u64,
        /// The card.
        device: DeviceId,
    },
    /// The memory is about to be freed. A free that fails afterwards sends `Alloc` again.
    Free {
        /// The first address.
        address: u64,
        /// Bytes.
        len: u64,
        /// The card.
        device: DeviceId,
    },
}

/// A receiver of events. It runs in the thread that allocates or frees, under no lock of this
/// library, and must not free memory.
pub trait MemoryEvents: Send + Sync {
    /// Receives an event.
    fn on_event(&self, event: MemoryEvent);
}

/// Counters of a [`MemoryTypeCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TypeStats {
    /// Ranges of device memory now.
    pub ranges: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Ranges that were added.
    pub added: u64,
    /// Ranges that were removed.
    pub removed: u64,
}

/// The ranges of device memory of this process. A fork child begins with none.
///
/// [`memory_types`] returns the one that this library fills.
pub struct MemoryTypeCache {
    is_on: AtomicBool,
    /// The lowest and the highest address of device memory since the cache was empty, of this
    /// process and of its parents.
    low: AtomicU64,
    high: AtomicU64,
    own: PerProcess<Own>,
}

/// The ranges of one process. A fork child makes its own: the map and the lock of its parent may be
/// in the middle of a change of another thread.
struct Own {
    /// The bounds of its parents' memory.
    inherited: (u64, u64),
    map: RangeMap<(DeviceId, Option<Class>)>,
    /// The cards by class. Ranges of further cards have none.
    cards: [OnceLock<DeviceId>; Class::COUNT],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By first address: the last address and the card.
    ranges: BTreeMap<u64, (u64, DeviceId)>,
    added: u64,
    removed: u64,
    listeners: Vec<Weak<dyn MemoryEvents>>,
}

/// Returns the types of this process's memory.
pub fn memory_types() -> &'static MemoryTypeCache {
    static TYPES: OnceLock<MemoryTypeCache> = OnceLock::new();
    TYPES.get_or_init(|| {
        let is_on = Config::from_environment().map_or(true, |config| config.memtype_cache);
        MemoryTypeCache::new(is_on)
    })
}

impl MemoryTypeCache {
    /// Returns an empty cache. If it is off, lookups search a table under a lock.
    pub fn new(is_on: bool) -> Self {
        Self {
            is_on: AtomicBool::new(is_on),
            low: AtomicU64::new(u64::MAX),
            high: AtomicU64::new(0),
            own: PerProcess::new(),
        }
    }

    fn own(&self) -> &Own {
        self.own.get_or(|| Own {
            // This process has added no memory yet.
            inherited: (
                self.low.load(Ordering::Relaxed),
                self.high.load(Ordering::Relaxed),
            ),
            map: RangeMap::with_classes(|(_, class)| *class),
            cards: Default::default(),
            state: Mutex::default(),
        })
    }

    /// Whether lookups use the lock-free map (`GAUDI_MEMTYPE_CACHE`).
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Returns the type of `len` bytes from `address`: device memory if a card has all of them. A
    /// length of 0 counts as 1.
    ///
    /// In a fork child device memory of the parent has no card: the child cannot use it.
    #[inline]
    pub fn lookup(&self, address: u64, len: u64) -> Typed {
        // The program learnt the address from the call that stored the bounds, so it sees them.
        if address < self.low.load(Ordering::Relaxed) || address > self.high.load(Ordering::Relaxed) {
            return Typed::HOST;
        }
        self.lookup_in_bounds(address, len)
    }

    #[inline]
    fn lookup_in_bounds(&self, address: u64, len: u64) -> Typed {
        let Some(span) = Span::new(address, len.max(1)) else {
            return Typed::HOST;
        };
        // All memory within the bounds is the parents' if this process has added none.
        let Some(own) = self.own.made() else {
            return Typed::INHERITED;
        };
        let device = match self.is_on() {
            true => own.lookup_in_map(span),
            false => own.lookup_in_table(span),
        };
        match device {
            Some(device) => Typed::of(device),
            None if (own.inherited.0..=own.inherited.1).contains(&address) => Typed::INHERITED,
            None => Typed::HOST,
        }
    }

    /// Adds a range of device memory: one that a program allocated by other means than this
    /// library. Receivers of events get [`MemoryEvent::Alloc`].
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty or leaves the address space.
    /// - `InUse`: a part of it is in the cache already.
    pub fn insert(&self, address: u64, len: u64, device: DeviceId) -> Result<()> {
        const OP: &str = "memory type insert";
        let span = span(OP, address, len)?;
        let own = self.own();
        let mut state = lock(&own.state);
        let neighbour = state.ranges.range(..=span.last()).next_back();
        if let Some((&start, &(last, other))) = neighbour {
            if last >= span.start() {
                return Err(Error::new(ErrorKind::InUse, OP)
                    .on(device)
                    .because("another allocation has a part of the range")
                    .saw(format!("{start:#x}..={last:#x} of {other}"), "no allocation"));
            }
        }
        state.ranges.insert(span.start(), (span.last(), device));
        state.added += 1;
        self.low.fetch_min(span.start(), Ordering::Relaxed);
        self.high.fetch_max(span.last(), Ordering::Relaxed);
        drop(own.map.insert(span, TAG, (device, own.class(device))));
        let listeners = state.listeners();
        drop(state);
        let event = MemoryEvent::Alloc { address, len, device };
        listeners.iter().for_each(|listener| listener.on_event(event));
        Ok(())
    }

    /// Removes the range that starts at an address, before its memory is freed. Receivers of events
    /// get [`MemoryEvent::Free`] first. Returns whether the cache had the range.
    pub fn remove(&self, address: u64) -> bool {
        let Some(own) = self.own.made() else {
            return false;
        };
        let mut state = lock(&own.state);
        let Some(&(last, device)) = state.ranges.get(&address) else {
            return false;
        };
        let listeners = state.listeners();
        if !listeners.is_empty() {
            drop(state);
            let len = last - address + 1;
            let event = MemoryEvent::Free { address, len, device };
            listeners.iter().for_each(|listener| listener.on_event(event));
            state = lock(&own.state);
        }
        if state.ranges.remove(&address).is_none() {
            // Another thread removed it meanwhile.
            return false;
        }
        state.removed += 1;
        if let Some(span) = Span::new(address, last - address + 1) {
            drop(own.map.remove(span, |pin| pin.span() == span));
        }
        if state.ranges.is_empty() {
            self.low.store(own.inherited.0, Ordering::Relaxed);
            self.high.store(own.inherited.1, Ordering::Relaxed);
        }
        true
    }

    /// Adds a receiver of events. The cache holds a weak reference.
    pub fn subscribe(&self, listener: &Arc<dyn MemoryEvents>) {
        let listeners = &mut lock(&self.own().state).listeners;
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    /// Returns the counters.
    pub fn stats(&self) -> TypeStats {
        let Some(own) = self.own.made() else {
            return TypeStats::default();
        };
        let state = lock(&own.state);
        let bytes = state.ranges.iter().map(|(start, (last, _))| last - start + 1);
        TypeStats {
            ranges: state.ranges.len(),
            bytes: bytes.fold(0, u64::saturating_add),
            added: state.added,
            removed: state.removed,
        }
    }
}

fn span(operation: &'static str, address: u64, len: u64) -> Result<Span> {
    // No range has the last address: its length fits 64 bits.
    Span::new(address, len)
        .filter(|span| span.last() < u64::MAX)
        .ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, operation)
                .because("the range is empty or leaves the address space")
                .saw(
                    format!("{len} bytes at {address:#x}"),
                    "1 byte or more below 2^64 - 1",
                )
        })
}

impl Own {
    /// Returns the class of a card, one of its own if one is left. The caller holds the lock.
    fn class(&self, device: DeviceId) -> Option<Class> {
        let is_its = |card: &OnceLock<DeviceId>| *card.get_or_init(|| device) == device;
        self.cards.iter().position(is_its).and_then(Class::from_index)
    }

    #[inline]
    fn lookup_in_map(&self, span: Span) -> Option<DeviceId> {
        match self.map.class_of(span) {
            Some(class) => self.cards[class.index()].get().copied(),
            None => self.map.copied(span, TAG).map(|(_, (device, _))| device),
        }
    }

    #[cold]
    fn lookup_in_table(&self, span: Span) -> Option<DeviceId> {
        let state = lock(&self.state);
        let (_, &(last, device)) = state.ranges.range(..=span.start()).next_back()?;
        (span.last() <= last).then_some(device)
    }
}

impl State {
    fn listeners(&self) -> Vec<Arc<dyn MemoryEvents>> {
        self.listeners.iter().filter_map(Weak::upgrade).collect()
    }
}

impl std::fmt::Debug for MemoryTypeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryTypeCache({:?})", self.stats())
    }
}

#[cfg(test)]
mod tests {
    use gaudi_seam::Backend;

    use super::*;

    const CARD: DeviceId = DeviceId::new(Backend::Mock, 3);

    #[test]
    fn lookup_finds_interior_and_boundaries() {
        for is_on in [true, false] {
            let types = MemoryTypeCache::new(is_on);
            types.insert(0x10_0000, 0x1001, CARD).expect("inserted");
            let kind = |address, len| types.lookup(address, len).kind;
            assert_eq!(kind(0x10_0000, 0x1001), MemoryType::Device, "the whole, {is_on}");
            assert_eq!(kind(0x10_1000, 1), MemoryType::Device, "the last byte");
            assert_eq!(kind(0x10_1000, 0), MemoryType::Device, "no bytes count as one");
            assert_eq!(kind(0x10_1001, 1), MemoryType::Host, "the byte after it");
            assert_eq!(kind(0xf_ffff, 1), MemoryType::Host, "the byte before it");
            assert_eq!(kind(0x10_1000, 2), MemoryType::Host, "a range that leaves it");
            assert_eq!(kind(u64::MAX, 2), MemoryType::Host, "a range that wraps");
            assert_eq!(types.lookup(0x10_0000, 1).device, Some(CARD));
            assert!(types.remove(0x10_0000));
            assert!(!types.remove(0x10_0000), "it is removed once");
            assert_eq!(kind(0x10_0000, 1), MemoryType::Host, "after the removal");
        }
    }

    #[test]
    fn more_cards_than_classes_are_told_apart() {
        let types = MemoryTypeCache::new(true);
        let card = |number| DeviceId::new(Backend::Mock, number);
        let place = |number: u32, again: u32| 0x7f00_0000_0000 + (u64::from(number + 40 * again) << 21);
        for again in 0..2 {
            for number in 0..40 {
                let inserted = types.insert(place(number, again), 1 << 21, card(number));
                inserted.expect("inserted");
            }
        }
        for (number, again) in (0..40).flat_map(|number| [(number, 0), (number, 1)]) {
            let all = types.lookup(place(number, again), 1 << 21);
            assert_eq!(all, Typed::of(card(number)), "card {number}");
            let across = types.lookup(place(number, again) + 4096, 1 << 21);
            assert_eq!(across, Typed::HOST, "no card has memory of two");
        }
    }

    #[test]
    fn overlapping_and_invalid_ranges_are_refused() {
        let types = MemoryTypeCache::new(true);
        types.insert(0x1000, 0x1000, CARD).expect("inserted");
        for (address, len) in [(0x1fff, 1), (0xfff, 2), (0, 0x10_0000), (0x1000, 0x1000)] {
            let error = types.insert(address, len, CARD).expect_err("it overlaps");
            assert_eq!(error.kind(), ErrorKind::InUse, "{address:#x}+{len:#x}");
        }
        for (address, len) in [(0x5000, 0), (u64::MAX, 2), (u64::MAX, 1), (0, u64::MAX)] {
            let error = types.insert(address, len, CARD).expect_err("it is invalid");
            let wanted = [ErrorKind::InvalidInput, ErrorKind::InUse];
            assert!(wanted.contains(&error.kind()), "{address:#x}+{len:#x}: {error}");
        }
        types.insert(0x2000, 1, CARD).expect("the next byte is free");
        assert_eq!(types.stats().ranges, 2);
        assert_eq!(types.stats().bytes, 0x1001);
    }

    #[test]
    fn listener_receives_alloc_and_free() {
        #[derive(Default)]
        struct Log(Mutex<Vec<MemoryEvent>>);
        impl MemoryEvents for Log {
            fn on_event(&self, event: MemoryEvent) {
                lock(&self.0).push(event);
            }
        }
        let types = MemoryTypeCache::new(true);
        let log = Arc::new(Log::default());
        let listener: Arc<dyn MemoryEvents> = log.clone();
        types.subscribe(&listener);
        types.insert(0x1000, 16, CARD).expect("inserted");
        types.remove(0x1000);
        drop(listener);
        let (address, len, device) = (0x1000, 16, CARD);
        assert_eq!(
            *lock(&log.0),
            [
                MemoryEvent::Alloc { address, len, device },
                MemoryEvent::Free { address, len, device }
            ]
        );
    }
}
