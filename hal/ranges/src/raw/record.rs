//! What threads publish so that others free nothing under them: one record a thread, with a section and a few hazards.
//!
//! - *A section* is open while a thread walks a tree. Who has unlinked something waits until every section that was open has closed
//!   ([`grace`]): nanoseconds, or as long as a thread that was interrupted inside is off the processor.
//! - *A hazard* is the address of an entry that a pin of this thread keeps. It is published within the section, so that whoever
//!   waited for the section sees it.
//! - *An orphan* is an entry that is unlinked and still has hazards. Each of these is marked in its record, and the pin that takes the
//!   last one away releases the entry.
//!
//! Records are never freed: a thread's is the next thread's when it ends, with the hazards of pins that outlive it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use gaudi_sys::fork::Birth;

use crate::raw::barrier::{heavy, light, prepare};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, lock, yield_now};

/// Hazards of a thread; a pin beyond them counts its entry. With the four words they fill two cache lines.
const HAZARDS: usize = if cfg!(loom) { 1 } else { 12 };

/// One thread's.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Record {
    /// Odd while the thread is in a section. Written by the thread alone.
    section: AtomicUsize,
    /// A bit for each hazard that holds an orphan. Written under the registry's lock.
    marked: AtomicUsize,
    /// Which one it is, from 0. No two threads have the same at a time.
    pub(crate) number: usize,
    /// The one that was made before it.
    next: Option<&'static Record>,
    hazards: [AtomicPtr<()>; HAZARDS],
}

/// A hazard that holds an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hazard {
    record: &'static Record,
    at: usize,
}

/// An entry that is unlinked from its map, and how to let go of the map's hold on it.
pub(crate) struct Unlinked {
    pub(crate) entry: *mut (),
    /// # Safety
    /// To be called once, with `entry`, when no hazard holds it and none can.
    pub(crate) release: unsafe fn(*mut ()),
}

// SAFETY: the entry is one of a map whose values are `Send` and `Sync`; whoever holds this owns the map's hold on it.
unsafe impl Send for Unlinked {}

struct Registry {
    /// The newest record; read without the lock, also in a fork child, where nobody may have been left to open it.
    newest: AtomicPtr<Record>,
    locked: Mutex<Locked>,
}

#[derive(Default)]
struct Locked {
    /// Records that no thread has now.
    free: Vec<&'static Record>,
    orphans: Vec<Unlinked>,
}

#[cfg(not(loom))]
static REGISTRY: Registry = Registry {
    newest: AtomicPtr::new(std::ptr::null_mut()),
    locked: Mutex::new(Locked {
        free: Vec::new(),
        orphans: Vec::new(),
    }),
};
#[cfg(loom)]
loom::lazy_static! {
    static ref REGISTRY: Registry = Registry {
        newest: AtomicPtr::new(std::ptr::null_mut()),
        locked: Mutex::default(),
    };
}

impl Registry {
    /// All, the newest first.
    fn records(&self) -> impl Iterator<Item = &'static Record> + use<> {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: a record is published when it is whole, and never freed.
        std::iter::successors(unsafe { newest.as_ref() }, |record| record.next)
    }
}

/// Whether this is a fork child of the process that made the first record. Others' records stand still there, and the lock may too.
pub(super) fn is_elsewhere() -> bool {
    static BIRTH: OnceLock<Birth> = OnceLock::new();
    BIRTH.get_or_init(Birth::here).is_elsewhere()
}

/// Gives the thread's record to the next one. Not under loom, which drops the registry before the locals of some threads.
struct Mine(&'static Record);

#[cfg(not(loom))]
impl Drop for Mine {
    fn drop(&mut self) {
        FAST.set(None);
        if !is_elsewhere() {
            lock(&REGISTRY.locked).free.push(self.0);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    /// Without a destructor, so that a hit finds it in one load.
    static FAST: std::cell::Cell<Option<&'static Record>> = const { std::cell::Cell::new(None) };
    static MINE: Mine = Mine(take());
}
#[cfg(loom)]
loom::thread_local! {
    static MINE: Mine = Mine(take());
}

fn take() -> &'static Record {
    prepare();
    is_elsewhere();
    let mut locked = lock(&REGISTRY.locked);
    if let Some(record) = locked.free.pop() {
        return record;
    }
    let next = REGISTRY.records().next();
    let record: &'static Record = Box::leak(Box::new(Record {
        number: next.map_or(0, |next| next.number + 1),
        next,
        section: AtomicUsize::new(0),
        marked: AtomicUsize::new(0),
        hazards: std::array::from_fn(|_| AtomicPtr::default()),
    }));
    // Under the lock: nobody else publishes one.
    REGISTRY
        .newest
        .store(std::ptr::from_ref(record).cast_mut(), Ordering::Release);
    record
}

/// Runs `walk` in a section of this thread. It must not enter another: it runs no code of the caller's.
#[inline(always)]
pub(crate) fn section<T>(walk: impl FnOnce(&'static Record) -> T) -> T {
    #[cfg(not(loom))]
    if let Some(record) = FAST.get() {
        return record.enter(walk);
    }
    first_section(walk)
}

#[cold]
fn first_section<T>(walk: impl FnOnce(&'static Record) -> T) -> T {
    let mine = MINE.try_with(|mine| mine.0).ok();
    #[cfg(not(loom))]
    FAST.set(mine);
    match mine {
        Some(record) => record.enter(walk),
        // The thread ends and its locals are gone: a record for this once.
        None => {
            let record = take();
            let answer = record.enter(walk);
            lock(&REGISTRY.locked).free.push(record);
            answer
        }
    }
}

impl Record {
    #[inline(always)]
    fn enter<T>(&'static self, walk: impl FnOnce(&'static Self) -> T) -> T {
        let before = self.section.load(Ordering::Relaxed);
        self.section.store(before.wrapping_add(1), Ordering::Release);
        light();
        let answer = walk(self);
        self.section.store(before.wrapping_add(2), Ordering::Release);
        answer
    }

    /// Publishes an entry; `None` where every hazard is taken. Within a section of this thread.
    #[inline(always)]
    pub(crate) fn hold(&'static self, entry: *mut ()) -> Option<Hazard> {
        for (at, hazard) in self.hazards.iter().enumerate() {
            if hazard.load(Ordering::Acquire).is_null() {
                hazard.store(entry, Ordering::Release);
                return Some(Hazard { record: self, at });
            }
        }
        None
    }

    fn holds(&'static self) -> impl Iterator<Item = *mut ()> {
        let held = self.hazards.iter().map(|hazard| hazard.load(Ordering::Acquire));
        held.filter(|held| !held.is_null())
    }
}

impl Hazard {
    /// Lets go of the entry, and of every orphan that nothing holds then.
    #[inline(always)]
    pub(crate) fn clear(self) {
        self.record.hazards[self.at].store(std::ptr::null_mut(), Ordering::Release);
        light();
        if self.record.marked.load(Ordering::Relaxed) & (1 << self.at) != 0 {
            settle(Vec::new());
        }
    }
}

/// Every entry that a hazard holds now, sorted. What a pin takes meanwhile may be missing: for a decision that may be wrong.
pub(crate) fn held() -> Vec<*mut ()> {
    let mut held: Vec<_> = REGISTRY.records().flat_map(Record::holds).collect();
    held.sort_unstable();
    held
}

/// Waits until nobody walks a tree who may have seen what was unlinked before the call. `false` where that cannot be known: then
/// nothing may be freed.
#[must_use]
pub(crate) fn grace() -> bool {
    prepare();
    if !heavy() {
        tracing::error!("membarrier(2) is refused now: what was removed stays until the process ends");
        return false;
    }
    for record in REGISTRY.records() {
        let seen = record.section.load(Ordering::Acquire);
        let mut tries = 0_u32;
        while seen % 2 == 1 && record.section.load(Ordering::Acquire) == seen {
            tries += 1;
            if tries > 64 || cfg!(loom) {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
    true
}

/// Releases entries that were unlinked before a [`grace`], now or when the last hazard of them goes.
pub(crate) fn retire(unlinked: Vec<Unlinked>) {
    if unlinked.is_empty() {
        return;
    }
    let held = held();
    let (pinned, idle): (Vec<_>, Vec<_>) = unlinked
        .into_iter()
        .partition(|unlinked| held.binary_search(&unlinked.entry).is_ok());
    release(idle);
    if !pinned.is_empty() {
        settle(pinned);
    }
}

fn release(unlinked: Vec<Unlinked>) {
    for one in unlinked {
        // SAFETY: it was unlinked before a grace period and no hazard holds it; it comes out of the list once.
        unsafe { (one.release)(one.entry) };
    }
}

/// Adds orphans, marks the hazards of all, and releases those that have none left.
#[cold]
fn settle(more: Vec<Unlinked>) {
    if is_elsewhere() {
        // What is held stays: the lock may never open, and the process that matters is the parent.
        return;
    }
    let mut locked = lock(&REGISTRY.locked);
    let orphans = &mut locked.orphans;
    orphans.extend(more);
    let is_orphan = |entry: *mut ()| orphans.iter().any(|orphan| orphan.entry == entry);
    for record in REGISTRY.records() {
        let bits = record.hazards.iter().enumerate().map(|(at, hazard)| {
            let held = hazard.load(Ordering::Acquire);
            usize::from(!held.is_null() && is_orphan(held)) << at
        });
        record
            .marked
            .store(bits.fold(0, |all, bit| all | bit), Ordering::Relaxed);
    }
    // Either a pin that goes sees its mark, or its hazard is seen to be gone here.
    if !heavy() {
        return;
    }
    let held = held();
    let (kept, gone) = std::mem::take(orphans)
        .into_iter()
        .partition(|orphan| held.binary_search(&orphan.entry).is_ok());
    *orphans = kept;
    drop(locked);
    // Values are dropped here, which may take long and may come back to this crate.
    release(gone);
}
