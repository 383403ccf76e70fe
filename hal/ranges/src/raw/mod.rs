//! The map: entries on the heap, a tree that points to them, and pins that keep them alive.
//!
//! An entry is not freed while it is in use:
//! 1. A reader walks the tree only inside a section ([`record::Section`]). Before the section ends
//!    it publishes a hazard for the entry, or increments its count.
//! 2. A writer unlinks, waits for every open section ([`record::grace`]), and frees then. If a
//!    hazard holds an entry, clearing the hazard frees it ([`record::retire`]).
//! 3. The last count frees an entry: the map has one, and each pin without a hazard has one.
//!
//! The modules' heads report the gain of each technique: time per hit without it over time with it,
//! medians of five alternating pairs of `cargo run --release -p gaudi-bench -- --only regions` (2
//! virtual Xeons, 2026-11).

#![expect(
    unsafe_code,
    reason = "readers walk memory that writers unlink: the contracts are here and in the modules below"
)]

mod barrier;
mod record;
mod slab;
mod tree;

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use self::record::{Hazard, Section, Unlinked};
pub use self::tree::Class;
use self::tree::{Garbage, Head, Tree};
use crate::span::Span;
use crate::sync::{AtomicU32, Guard, Mutex, Stamp, fence, lock};

/// The part of a key that is not an address. Tags are compared for equality only. A cache of memory
/// regions stores the allocation's generation and the access rights here.
pub type Tag = [u64; 2];

/// Aligned so that words of the tree have room for a [`Class`].
#[repr(C, align(64))]
struct Entry<V> {
    head: Head,
    value: V,
}

impl<V> Entry<V> {
    fn leak(self) -> NonNull<Self> {
        // SAFETY: the size of an entry is not zero.
        let memory = unsafe { slab::take(Layout::new::<Self>()) }.cast::<Self>();
        // SAFETY: fresh memory of this layout.
        unsafe { memory.write(self) };
        // SAFETY: `take` does not return null.
        unsafe { NonNull::new_unchecked(memory) }
    }

    /// # Safety
    /// `entry` comes from [`leak`](Self::leak), and nothing else refers to it.
    unsafe fn take(entry: *mut Self) -> Self {
        // SAFETY: by contract; the memory is not read again.
        let whole = unsafe { entry.read() };
        // SAFETY: as above; its layout is that of `leak`.
        unsafe { slab::give(entry.cast(), Layout::new::<Self>()) };
        whole
    }
}

/// A map from address ranges to values.
///
/// - *A hit takes no lock and allocates nothing*: any thread can call [`get`](Self::get) while
///   other threads insert and remove.
/// - *A pin keeps its entry alive*, also after the entry was removed or the map was dropped. The
///   last pin drops the value.
/// - *Entries may overlap*, with equal tags too. A lookup returns any entry that matches.
/// - *Inserting and removing* take the map's lock. Removing, and inserting where ranges overlap,
///   wait a few microseconds until all lookups in progress have ended.
/// - *Memory*: a directory of 0.2 KiB for every 64 KiB that contains the start or the end of an
///   entry, of 1 KiB for every 8 MiB, of 4 KiB for every 4 GiB, 2 TiB, …; freed with the entries.
///
/// A fork child must not use the map: a thread of the parent may have held the lock or been inside
/// a lookup. The child may drop the map and its pins.
pub struct RangeMap<V: Send + Sync + 'static> {
    tree: Tree,
    /// The number of entries. A writer of the tree holds this lock.
    writing: Mutex<usize>,
    /// Returns the class of a value; runs under the lock.
    class: fn(&V) -> Option<Class>,
    entries: PhantomData<Entry<V>>,
}

/// A reference to an entry: its value, range and tag do not change.
///
/// The last pin of a removed entry drops the value.
pub struct Pin<V: Send + Sync + 'static> {
    entry: NonNull<Entry<V>>,
    /// `None` if the entry's count includes this pin.
    hazard: Option<Hazard>,
}

// SAFETY: a pin shares `&V` between threads and drops `V` in any of them; the bounds of `V` allow
// both.
unsafe impl<V: Send + Sync + 'static> Send for Pin<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync + 'static> Sync for Pin<V> {}
// SAFETY: as above, for the map's entries; the tree changes only under the lock.
unsafe impl<V: Send + Sync + 'static> Send for RangeMap<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync + 'static> Sync for RangeMap<V> {}

/// Increments the count of an entry that the caller keeps alive.
fn count(refs: &AtomicU32) {
    if refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
        // Leaked pins would wrap the count around, and the value would be dropped while in use.
        std::process::abort();
    }
}

/// Decrements the count of an entry, and frees the entry with the last count.
///
/// # Safety
/// `entry` is a leaked `Entry<V>`, and the caller owns one count of it.
unsafe fn uncount<V>(entry: *mut ()) {
    let entry = entry.cast::<Entry<V>>();
    // SAFETY: the caller's count keeps the entry alive until here.
    let before = unsafe { &(*entry).head.refs }.fetch_sub(1, Ordering::Release);
    if before == 1 {
        fence(Ordering::Acquire);
        // SAFETY: this was the last count, so nothing refers to the entry.
        drop(unsafe { Entry::take(entry) });
    }
}

/// Copies range and value of an entry.
///
/// # Safety
/// `head` is that of an `Entry<V>`, which lives during the call.
#[inline]
unsafe fn copy_of<V: Copy>(head: *const Head) -> (Span, V) {
    // SAFETY: by contract.
    let entry = unsafe { &*head.cast::<Entry<V>>() };
    (entry.head.span, entry.value)
}

impl<V: Send + Sync + 'static> Default for RangeMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Send + Sync + 'static> RangeMap<V> {
    /// Returns an empty map. It allocates nothing before the first insert.
    pub fn new() -> Self {
        Self::with_classes(|_| None)
    }

    /// As [`new`](Self::new); `class` returns the class of an entry's value, always the same one,
    /// for [`class_of`](Self::class_of). It runs under the map's lock and must not use the map.
    pub fn with_classes(class: fn(&V) -> Option<Class>) -> Self {
        Self {
            tree: Tree::default(),
            writing: Mutex::new(0),
            class,
            entries: PhantomData,
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        *lock(&self.writing)
    }

    /// Whether the map has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of directories, of 0.2 to 4 KiB each.
    pub fn directories(&self) -> usize {
        self.tree.directories()
    }

    /// Returns an entry with this tag whose range contains `span`.
    #[inline]
    pub fn get(&self, span: Span, tag: Tag) -> Option<Pin<V>> {
        self.get_then(span, tag, |pin, _| Some(pin))
    }

    /// Returns a copy of the value, and the range, of an entry with this tag whose range contains
    /// `span`. Cheaper than [`get`](Self::get): nothing is pinned.
    #[inline]
    pub fn copied(&self, span: Span, tag: Tag) -> Option<(Span, V)>
    where
        V: Copy,
    {
        let Some(section) = record::free_section() else {
            return self.copied_slowly(span, tag);
        };
        // SAFETY: this is a section, and writers wait for it before they free (see the module).
        let head = unsafe { self.tree.find(span, tag) }?;
        // SAFETY: the entry lives until the section ends. `V` is `Copy`, so no code of it runs
        // inside the section.
        let copy = unsafe { copy_of(head) };
        drop(section);
        Some(copy)
    }

    #[cold]
    fn copied_slowly(&self, span: Span, tag: Tag) -> Option<(Span, V)>
    where
        V: Copy,
    {
        record::any_section(|_| {
            // SAFETY: as in `copied`.
            let head = unsafe { self.tree.find(span, tag) }?;
            // SAFETY: as in `copied`.
            Some(unsafe { copy_of(head) })
        })
    }

    /// Returns the class of an entry that contains `span`, whatever its tag. Cheaper than
    /// [`copied`](Self::copied): no entry is read.
    ///
    /// `None` decides nothing: an entry that contains `span` may have no class, share a 4 KiB page
    /// of `span` with another entry, or begin or end inside of one.
    #[inline]
    pub fn class_of(&self, span: Span) -> Option<Class> {
        let Some(section) = record::free_section() else {
            return self.class_of_slowly(span);
        };
        // SAFETY: this is a section, and writers wait for it before they free (see the module).
        let class = unsafe { self.tree.class_of(span) };
        drop(section);
        class
    }

    #[cold]
    fn class_of_slowly(&self, span: Span) -> Option<Class> {
        // SAFETY: as in `class_of`.
        record::any_section(|_| unsafe { self.tree.class_of(span) })
    }

    /// As [`get`](Self::get), and passes the pin to `then` with the number of this thread's record.
    /// No two threads have the same number at a time; `None` if this thread has no record.
    #[inline]
    pub(crate) fn get_then<T>(
        &self,
        span: Span,
        tag: Tag,
        then: impl FnOnce(Pin<V>, Option<usize>) -> Option<T>,
    ) -> Option<T> {
        let Some(section) = record::free_section() else {
            return self.get_slowly(span, tag, then);
        };
        let (pin, thread) = self.find(&section, span, tag)?;
        drop(section);
        then(pin, thread)
    }

    #[cold]
    fn get_slowly<T>(
        &self,
        span: Span,
        tag: Tag,
        then: impl FnOnce(Pin<V>, Option<usize>) -> Option<T>,
    ) -> Option<T> {
        let (pin, thread) = record::any_section(|section| self.find(section, span, tag))?;
        then(pin, thread)
    }

    #[inline]
    fn find(&self, section: &Section, span: Span, tag: Tag) -> Option<(Pin<V>, Option<usize>)> {
        // SAFETY: this is a section, and writers wait for it before they free (see the module).
        let head = unsafe { self.tree.find(span, tag) }?;
        let entry = NonNull::new(head.cast_mut().cast::<Entry<V>>())?;
        let hazard = section.hold(head.cast_mut().cast());
        if hazard.is_none() {
            // SAFETY: the entry lives until the section ends, and the map still has its count.
            count(unsafe { &(*head).refs });
        }
        Some((Pin { entry, hazard }, section.number()))
    }

    /// # Safety
    /// `head` is that of an entry of this map, which lives during the call.
    unsafe fn class_of_entry(&self, head: *const Head) -> Option<Class> {
        // SAFETY: by contract.
        (self.class)(unsafe { &(*head.cast::<Entry<V>>()).value })
    }

    /// Adds an entry. It may overlap or equal other entries.
    pub fn insert(&self, span: Span, tag: Tag, value: V) -> Pin<V> {
        self.insert_stamped(span, tag, 0, value)
    }

    /// As [`insert`](Self::insert), with a stamp.
    pub(crate) fn insert_stamped(&self, span: Span, tag: Tag, stamp: u32, value: V) -> Pin<V> {
        // One count for the map, one for the returned pin.
        let head = Head {
            span,
            tag,
            refs: AtomicU32::new(2),
            stamp: Stamp::new(stamp),
        };
        let entry = Entry { head, value }.leak();
        let mut entries = lock(&self.writing);
        *entries += 1;
        // SAFETY: a writer calls it with live entries of its tree.
        let class = |head| unsafe { self.class_of_entry(head) };
        // SAFETY: the lock is held until the writer is done; its garbage goes through `sweep`.
        let mut writer = unsafe { self.tree.writer(&class) };
        writer.link(entry.as_ptr().cast_const().cast());
        let garbage = std::mem::take(&mut writer.garbage);
        drop(entries);
        sweep(garbage, Vec::new());
        Pin { entry, hazard: None }
    }

    /// Returns every entry that overlaps `span`, in order of range.
    pub fn overlapping(&self, span: Span) -> Vec<Pin<V>> {
        let writing = lock(&self.writing);
        let pins = self.pins(span);
        drop(writing);
        pins
    }

    /// As [`overlapping`](Self::overlapping); the caller holds the lock.
    fn pins(&self, span: Span) -> Vec<Pin<V>> {
        // SAFETY: the caller holds the lock; this writer changes nothing.
        let writer = unsafe { self.tree.writer(&|_| None) };
        let heads = writer.overlapping(span);
        let pins = heads.into_iter().filter_map(|head| {
            // SAFETY: a linked entry lives while the lock is held, and has the map's count.
            count(unsafe { &(*head).refs });
            Some(Pin {
                entry: NonNull::new(head.cast_mut().cast())?,
                hazard: None,
            })
        });
        pins.collect()
    }

    /// Removes the entries that overlap `span` and for which `which` returns `true`, and returns
    /// their pins. No lookup that starts after this call returns one of them. Earlier pins stay
    /// valid, and the last pin drops the value.
    ///
    /// `which` runs under the map's lock and must not use the map.
    pub fn remove(&self, span: Span, mut which: impl FnMut(&Pin<V>) -> bool) -> Vec<Pin<V>> {
        let entries = lock(&self.writing);
        let mut pins = self.pins(span);
        pins.retain(|pin| which(pin));
        self.unlink(entries, &pins);
        pins
    }

    /// Removes the entries of these pins, except those that are already removed.
    pub(crate) fn remove_each(&self, pins: &[Pin<V>]) {
        let entries = lock(&self.writing);
        let linked = pins.iter().filter_map(|pin| {
            let mut here = self.pins(pin.span());
            here.retain(|other| other.is_same(pin));
            here.pop()
        });
        let linked: Vec<_> = linked.collect();
        self.unlink(entries, &linked);
    }

    /// Unlinks the entries of `pins`, which are linked in this map and occur once each.
    fn unlink(&self, mut entries: Guard<'_, usize>, pins: &[Pin<V>]) {
        // SAFETY: a writer calls it with live entries of its tree.
        let class = |head| unsafe { self.class_of_entry(head) };
        // SAFETY: the lock is held until the writer is done; its garbage and the entries go through
        // `sweep`.
        let mut writer = unsafe { self.tree.writer(&class) };
        for pin in pins {
            writer.unlink(pin.entry.as_ptr().cast_const().cast());
        }
        *entries -= pins.len();
        let garbage = std::mem::take(&mut writer.garbage);
        drop(entries);
        let unlinked = pins.iter().map(|pin| Unlinked {
            entry: pin.entry.as_ptr().cast(),
            release: uncount::<V>,
        });
        sweep(garbage, unlinked.collect());
    }
}

/// A snapshot of the entries that hazards hold.
#[derive(Debug)]
pub(crate) struct InUse(Vec<*mut ()>);

impl InUse {
    pub(crate) fn now() -> Self {
        Self(record::held())
    }

    /// Whether anything but the map and this pin refers to the entry.
    pub(crate) fn has<V: Send + Sync + 'static>(&self, pin: &Pin<V>) -> bool {
        let counted = 1 + u32::from(pin.hazard.is_none());
        pin.head().refs.load(Ordering::Relaxed) > counted
            || self.0.binary_search(&pin.entry.as_ptr().cast()).is_ok()
    }
}

/// Makes every removal of this process free of system calls, at the price of a fence in each
/// lookup: for programs whose threads remove as often as they look up. A removal's membarrier(2)
/// also interrupts the processors of the other threads. Returns `false`, and changes nothing, if a
/// map of this process was used before.
pub fn prefer_cheap_removals() -> bool {
    barrier::prepare_fences()
}

/// Frees unlinked directories and entries after a grace period.
fn sweep(garbage: Garbage, unlinked: Vec<Unlinked>) {
    if garbage.is_empty() && unlinked.is_empty() {
        return;
    }
    if record::grace() {
        drop(garbage);
        record::retire(unlinked);
    } else {
        garbage.leak();
    }
}

impl<V: Send + Sync + 'static> Drop for RangeMap<V> {
    fn drop(&mut self) {
        // A map that is dropped has no reader, so this takes no lock and waits for no grace period.
        // Neither would end in a fork child. SAFETY: this is the only reference to the tree.
        let heads = unsafe { self.tree.writer(&|_| None) }.overlapping(Span::ALL);
        let unlinked = heads.into_iter().map(|head| Unlinked {
            entry: head.cast_mut().cast(),
            release: uncount::<V>,
        });
        record::retire(unlinked.collect());
    }
}

impl<V: Send + Sync + 'static> fmt::Debug for RangeMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RangeMap({} entries, {} directories)",
            self.len(),
            self.directories()
        )
    }
}

impl<V: Send + Sync + 'static> Pin<V> {
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: the pin keeps the entry alive.
        unsafe { &(*self.entry.as_ptr()).head }
    }

    /// Returns the range of the entry.
    pub fn span(&self) -> Span {
        self.head().span
    }

    /// Returns the tag of the entry.
    pub fn tag(&self) -> Tag {
        self.head().tag
    }

    /// Returns the entry's stamp, whose meaning the owner of the map defines.
    #[inline]
    pub(crate) fn stamp(&self) -> &Stamp {
        &self.head().stamp
    }

    /// Whether both refer to the same entry.
    pub fn is_same(&self, other: &Self) -> bool {
        self.entry == other.entry
    }

    /// Returns the value.
    ///
    /// # Errors
    /// The pin itself: its entry is still in the map, or another pin holds it.
    pub fn into_value(self) -> Result<V, Self> {
        let refs = &self.head().refs;
        // A pin with a hazard has no count, so a count of one belongs to the map or another pin.
        if self.hazard.is_some()
            || refs
                .compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return Err(self);
        }
        let pin = ManuallyDrop::new(self);
        // SAFETY: the only count was this pin's, so nothing else refers to the entry. This pin does
        // not drop it.
        Ok(unsafe { Entry::take(pin.entry.as_ptr()) }.value)
    }
}

impl<V: Send + Sync + 'static> Clone for Pin<V> {
    fn clone(&self) -> Self {
        count(&self.head().refs);
        Self {
            entry: self.entry,
            hazard: None,
        }
    }
}

impl<V: Send + Sync + 'static> Deref for Pin<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: the pin keeps the entry alive.
        unsafe { &(*self.entry.as_ptr()).value }
    }
}

impl<V: Send + Sync + 'static> Drop for Pin<V> {
    #[inline]
    fn drop(&mut self) {
        match self.hazard {
            Some(hazard) => hazard.clear(),
            // SAFETY: this pin owns one count, and releases it only here.
            None => unsafe { uncount::<V>(self.entry.as_ptr().cast()) },
        }
    }
}

impl<V: Send + Sync + fmt::Debug + 'static> fmt::Debug for Pin<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({}, {:?})", self.span(), &**self)
    }
}
