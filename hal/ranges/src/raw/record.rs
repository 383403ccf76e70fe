//! What threads publish so that writers free nothing they use: a record per thread, with a section
//! and a few hazards.
//!
//! - *Section*: open while a thread walks a tree. A writer that unlinked something waits until
//!   every open section has closed ([`grace`]): nanoseconds, unless a thread is preempted inside.
//! - *Hazard*: the entry that a pin of this thread holds. Published inside the section.
//! - *Orphan*: an unlinked entry with hazards. They are marked; clearing the last one releases it.
//!
//! A record is never freed: the next new thread takes it, with the hazards of pins that outlive the
//! old one. Hazards instead of counts buy 2.2 (1 thread) and 3.6 (2 threads) with 1 000 entries,
//! 1.2 and 1.3 with 100 000; [`FAST`] buys 1.1 with 1 000.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use gaudi_sys::fork::OwnerProcess;

use crate::raw::barrier::{heavy, is_free, light, prepare};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, lock, yield_now};

/// Hazards of a thread; a pin beyond them counts its entry. With the four words they fill two cache
/// lines.
const HAZARDS: usize = if cfg!(loom) { 1 } else { 12 };
/// A mark of each.
const ALL: usize = (1 << HAZARDS) - 1;

/// One thread's.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Record {
    /// Odd while the thread is in a section. Written by the thread alone.
    section: AtomicUsize,
    /// The lower [`HAZARDS`] bits say of which hazard to look closer when it is cleared, as many
    /// above them which hold an orphan. Both are the same where the barrier is free; else all lower
    /// ones are set, so that a fence comes before the upper ones are read. Written under the
    /// registry's lock.
    marked: AtomicUsize,
    /// Which one it is, from 0.
    number: usize,
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

// SAFETY: the entry is one of a map whose values are `Send` and `Sync`; whoever holds this owns the
// map's hold on it.
unsafe impl Send for Unlinked {}

struct Registry {
    /// The newest record; read without the lock, also in a fork child, where nobody may have been
    /// left to open it.
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

/// Whether this is a fork child of the process that made the first record. Others' records stand
/// still there, and the lock may too.
pub(super) fn is_foreign() -> bool {
    static OWNER: OnceLock<OwnerProcess> = OnceLock::new();
    OWNER.get_or_init(OwnerProcess::current).is_foreign()
}

/// Gives the thread's record to the next one. Not under loom, which drops the registry before the
/// locals of some threads.
struct Mine(&'static Record);

#[cfg(not(loom))]
impl Drop for Mine {
    fn drop(&mut self) {
        FAST.set(None);
        if !is_foreign() {
            lock(&REGISTRY.locked).free.push(self.0);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    /// The thread's record, where the barrier is free. Without a destructor, so that a hit finds it
    /// in one load.
    static FAST: std::cell::Cell<Option<&'static Record>> = const { std::cell::Cell::new(None) };
    static MINE: Mine = Mine(take());
}
#[cfg(loom)]
loom::thread_local! {
    static MINE: Mine = Mine(take());
}

fn take() -> &'static Record {
    prepare();
    is_foreign();
    let mut locked = lock(&REGISTRY.locked);
    if let Some(record) = locked.free.pop() {
        return record;
    }
    let next = REGISTRY.records().next();
    let record: &'static Record = Box::leak(Box::new(Record {
        number: next.map_or(0, |next| next.number + 1),
        next,
        section: AtomicUsize::new(0),
        marked: AtomicUsize::new(if is_free() { 0 } else { ALL }),
        hazards: std::array::from_fn(|_| AtomicPtr::default()),
    }));
    // Under the lock: nobody else publishes one.
    REGISTRY
        .newest
        .store(std::ptr::from_ref(record).cast_mut(), Ordering::Release);
    record
}

/// A section of this thread, where its record is known and the barrier free. Entering another
/// inside it closes it early.
#[inline]
pub(crate) fn free_section() -> Option<Section> {
    #[cfg(not(loom))]
    return FAST
        .get()
        .map(|record| record.enter(|| compiler_fence(Ordering::SeqCst), true));
    #[cfg(loom)]
    None
}

/// Runs `walk` in a section of this thread, wherever that has a record from. It must not enter
/// another: it runs no code of the caller's.
#[cold]
pub(crate) fn any_section<T>(walk: impl FnOnce(&Section) -> T) -> T {
    match MINE.try_with(|mine| mine.0) {
        Ok(record) => {
            #[cfg(not(loom))]
            FAST.set(is_free().then_some(record));
            walk(&record.enter(light, true))
        }
        // The thread ends and its locals are gone: a record for this once.
        Err(_) => {
            let record = take();
            let answer = walk(&record.enter(light, false));
            lock(&REGISTRY.locked).free.push(record);
            answer
        }
    }
}

/// An open section; closed when it is dropped.
pub(crate) struct Section {
    record: &'static Record,
    before: usize,
    /// Whether the thread keeps the record.
    own: bool,
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        self.record
            .section
            .store(self.before.wrapping_add(2), Ordering::Release);
    }
}

impl Section {
    /// The number of the thread's record, where it has one of its own: no two threads have the same
    /// at a time.
    #[inline]
    pub(crate) fn number(&self) -> Option<usize> {
        self.own.then_some(self.record.number)
    }

    /// Publishes an entry; `None` where every hazard is taken.
    #[inline]
    pub(crate) fn hold(&self, entry: *mut ()) -> Option<Hazard> {
        let record = self.record;
        let is_free = |hazard: &AtomicPtr<()>| hazard.load(Ordering::Acquire).is_null();
        let at = record.hazards.iter().position(is_free)?;
        record.hazards[at].store(entry, Ordering::Release);
        Some(Hazard { record, at })
    }
}

impl Record {
    /// `barrier` is [`light`], or what that is where the barrier is free.
    #[inline]
    fn enter(&'static self, barrier: impl FnOnce(), own: bool) -> Section {
        let before = self.section.load(Ordering::Relaxed);
        self.section.store(before.wrapping_add(1), Ordering::Release);
        barrier();
        Section {
            record: self,
            before,
            own,
        }
    }

    fn holds(&'static self) -> impl Iterator<Item = *mut ()> {
        let held = self.hazards.iter().map(|hazard| hazard.load(Ordering::Acquire));
        held.filter(|held| !held.is_null())
    }
}

impl Hazard {
    /// Lets go of the entry, and of every orphan that nothing holds then.
    #[inline]
    pub(crate) fn clear(self) {
        if let Some(hazard) = self.record.hazards.get(self.at) {
            hazard.store(std::ptr::null_mut(), Ordering::Release);
        }
        // All of `light` where the barrier is free; elsewhere every hazard is looked at.
        compiler_fence(Ordering::SeqCst);
        if self.record.marked.load(Ordering::Relaxed) & (1 << self.at) != 0 {
            self.look();
        }
    }

    #[cold]
    #[inline(never)]
    fn look(self) {
        light();
        if self.record.marked.load(Ordering::Relaxed) >> HAZARDS & (1 << self.at) != 0 {
            settle(Vec::new());
        }
    }
}

/// Every entry that a hazard holds now, sorted. What a pin takes meanwhile may be missing: for a
/// decision that may be wrong.
pub(crate) fn held() -> Vec<*mut ()> {
    let mut held: Vec<_> = REGISTRY.records().flat_map(Record::holds).collect();
    held.sort_unstable();
    held
}

/// Waits until nobody walks a tree who may have seen what was unlinked before the call. `false`
/// where that cannot be known: then nothing may be freed.
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

/// Releases entries that were unlinked before a [`grace`], now or when the last hazard of them
/// goes.
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
        // SAFETY: it was unlinked before a grace period and no hazard holds it; it comes out of the
        // list once.
        unsafe { (one.release)(one.entry) };
    }
}

/// Adds orphans, marks the hazards of all, and releases those that have none left.
#[cold]
fn settle(more: Vec<Unlinked>) {
    if is_foreign() {
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
        let orphans = bits.fold(0, |all, bit| all | bit);
        let look = if is_free() { orphans } else { ALL };
        record.marked.store(orphans << HAZARDS | look, Ordering::Relaxed);
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
