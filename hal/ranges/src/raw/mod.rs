//! The map itself: entries on the heap, a tree that names them, pins that hold them.
//!
//! Why nothing is freed too early:
//! 1. A reader walks the tree only inside a section ([`record::Section`]). Before the section ends
//!    it publishes a hazard or a count for the entry that it holds.
//! 2. A writer unlinks, waits for every section that was open ([`record::grace`]), and only then
//!    frees. An entry that a hazard holds is freed with the hazard ([`record::retire`]).
//! 3. The last count frees an entry: the map has one, and each pin without a hazard has one.
//!
//! Each module says what its techniques buy: time per hit without it over with it, medians of five
//! alternating pairs of `cargo run --release -p gaudi-bench -- --only regions` (2 virtual Xeons,
//! 2026-11).

#![expect(
    unsafe_code,
    reason = "readers walk memory that others unlink: the contracts are here and in the modules below"
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
use self::tree::{Garbage, Head, Tree};
use crate::span::Span;
use crate::sync::{AtomicU32, Guard, Mutex, Stamp, fence, lock};

/// What of a key is not an address: two entries of one range with different tags are two entries.
/// Compared for equality, never interpreted; a cache of memory regions has the allocation's
/// generation and the rights here.
pub type Tag = [u64; 2];

#[repr(C)]
struct Entry<V> {
    head: Head,
    value: V,
}

impl<V> Entry<V> {
    fn leak(self) -> NonNull<Self> {
        // SAFETY: an entry has bytes.
        let memory = unsafe { slab::take(Layout::new::<Self>()) }.cast::<Self>();
        // SAFETY: fresh memory of this layout.
        unsafe { memory.write(self) };
        // SAFETY: `take` gives no null.
        unsafe { NonNull::new_unchecked(memory) }
    }

    /// # Safety
    /// It is from [`leak`](Self::leak), and nobody else has it or will.
    unsafe fn take(entry: *mut Self) -> Self {
        // SAFETY: the caller's promise; it is not read again.
        let whole = unsafe { entry.read() };
        // SAFETY: as above; its layout is that of `leak`.
        unsafe { slab::give(entry.cast(), Layout::new::<Self>()) };
        whole
    }
}

/// A map from address ranges to values.
///
/// - *A hit takes no lock and allocates nothing*: [`get`](Self::get) of any range inside an
///   entry's, from any thread, while others insert and remove.
/// - *A pin keeps its entry*, also after the entry was removed and the map is gone. The last one
///   drops the value.
/// - *Entries may overlap*, with equal tags too; any entry that fits is a hit.
/// - *Inserting and removing* take the map's lock. Removing, and inserting where ranges overlap,
///   wait until nobody is in the middle of a hit that began before: a few microseconds.
/// - *Memory*: a directory of 0.2 KiB for every 64 KiB in which an entry begins or ends within, of
///   1 KiB for every 8 MiB, of 4 KiB for every 4 GiB, 2 TiB, …; freed with the entries.
///
/// In a fork child it must not be used: another thread may have held the lock, or been in the
/// middle of a hit, for ever. Dropping it is fine there, and dropping pins.
pub struct RangeMap<V: Send + Sync + 'static> {
    tree: Tree,
    /// Held by whoever changes the tree. The number of entries.
    writing: Mutex<usize>,
    entries: PhantomData<Entry<V>>,
}

/// An entry that stays as it is: the value, its range and its tag.
///
/// The last pin of an entry that was removed drops the value.
pub struct Pin<V: Send + Sync + 'static> {
    entry: NonNull<Entry<V>>,
    /// `None` where the entry's count has one for this pin.
    hazard: Option<Hazard>,
}

// SAFETY: a pin gives `&V` to whoever has it, and drops a `V` in whatever thread it ends: both are
// allowed by the bounds of `V`.
unsafe impl<V: Send + Sync + 'static> Send for Pin<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync + 'static> Sync for Pin<V> {}
// SAFETY: as above, of the map's entries; the tree is changed under the lock alone.
unsafe impl<V: Send + Sync + 'static> Send for RangeMap<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync + 'static> Sync for RangeMap<V> {}

/// One more; the caller has the entry otherwise.
fn count(refs: &AtomicU32) {
    if refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
        // Counts that are never given up again: before they come round, and a value is dropped that
        // is in use.
        std::process::abort();
    }
}

/// # Safety
/// `entry` is a leaked `Entry<V>`, and the caller gives one count of it up.
unsafe fn uncount<V>(entry: *mut ()) {
    let entry = entry.cast::<Entry<V>>();
    // SAFETY: the caller's count keeps it until here.
    let before = unsafe { &(*entry).head.refs }.fetch_sub(1, Ordering::Release);
    if before == 1 {
        fence(Ordering::Acquire);
        // SAFETY: the last count is gone, and with it every way to reach it.
        drop(unsafe { Entry::take(entry) });
    }
}

impl<V: Send + Sync + 'static> Default for RangeMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Send + Sync + 'static> RangeMap<V> {
    /// An empty one. Takes no memory until something is inserted.
    pub fn new() -> Self {
        Self {
            tree: Tree::default(),
            writing: Mutex::new(0),
            entries: PhantomData,
        }
    }

    /// Entries now.
    pub fn len(&self) -> usize {
        *lock(&self.writing)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Directories now, of 0.2 to 4 KiB each: what the map needs beside its entries.
    pub fn directories(&self) -> usize {
        self.tree.directories()
    }

    /// An entry with this tag whose range holds all of the span.
    #[inline]
    pub fn get(&self, span: Span, tag: Tag) -> Option<Pin<V>> {
        self.get_then(span, tag, |pin, _| Some(pin))
    }

    /// The same, made into something by `then`, which is also told a number that no other thread
    /// has at a time, where the thread has one.
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
            // SAFETY: the entry lives until the section ends; the map's own count is there, so that
            // this is no first one.
            count(unsafe { &(*head).refs });
        }
        Some((Pin { entry, hazard }, section.number()))
    }

    /// Adds an entry, beside others that may overlap it or even equal it.
    pub fn insert(&self, span: Span, tag: Tag, value: V) -> Pin<V> {
        self.insert_stamped(span, tag, 0, value)
    }

    /// The same, with a stamp on it.
    pub(crate) fn insert_stamped(&self, span: Span, tag: Tag, stamp: u32, value: V) -> Pin<V> {
        // One count is the map's, one the answer's.
        let head = Head {
            span,
            tag,
            refs: AtomicU32::new(2),
            stamp: Stamp::new(stamp),
        };
        let entry = Entry { head, value }.leak();
        let mut entries = lock(&self.writing);
        *entries += 1;
        // SAFETY: the lock is held until the writer is done; its garbage goes through `sweep`.
        let mut writer = unsafe { self.tree.writer() };
        writer.link(entry.as_ptr().cast_const().cast());
        let garbage = std::mem::take(&mut writer.garbage);
        drop(entries);
        sweep(garbage, Vec::new());
        Pin { entry, hazard: None }
    }

    /// Every entry that has an address of the span, by range.
    pub fn overlapping(&self, span: Span) -> Vec<Pin<V>> {
        let writing = lock(&self.writing);
        let pins = self.pins(span);
        drop(writing);
        pins
    }

    /// With the lock held.
    fn pins(&self, span: Span) -> Vec<Pin<V>> {
        // SAFETY: the caller holds the lock; this writer changes nothing.
        let writer = unsafe { self.tree.writer() };
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

    /// Removes the entries that have an address of the span and please `which`, and gives them out,
    /// pinned. No hit finds them after the call began to return; those who pinned them before keep
    /// them, and the last one drops the value.
    ///
    /// `which` runs under the map's lock: it must not use the map.
    pub fn remove(&self, span: Span, mut which: impl FnMut(&Pin<V>) -> bool) -> Vec<Pin<V>> {
        let entries = lock(&self.writing);
        let mut pins = self.pins(span);
        pins.retain(|pin| which(pin));
        self.unlink(entries, &pins);
        pins
    }

    /// Removes those of the pins' entries that are in the map.
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

    /// The pins are of this map's linked entries, each once.
    fn unlink(&self, mut entries: Guard<'_, usize>, pins: &[Pin<V>]) {
        // SAFETY: the lock is held until the writer is done; its garbage and the entries go through
        // `sweep`.
        let mut writer = unsafe { self.tree.writer() };
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

/// The entries that hits keep, as it was a moment ago.
#[derive(Debug)]
pub(crate) struct InUse(Vec<*mut ()>);

impl InUse {
    pub(crate) fn now() -> Self {
        Self(record::held())
    }

    /// Whether the entry is kept by more than the map, a hit counted and this pin.
    pub(crate) fn has<V: Send + Sync + 'static>(&self, pin: &Pin<V>) -> bool {
        let counted = 1 + u32::from(pin.hazard.is_none());
        pin.head().refs.load(Ordering::Relaxed) > counted
            || self.0.binary_search(&pin.entry.as_ptr().cast()).is_ok()
    }
}

/// Frees what was unlinked, once nobody can have it any more.
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
        // Nobody else has the map, so nobody walks it: no lock is needed, and no grace period. In a
        // fork child neither would end. SAFETY: as said.
        let heads = unsafe { self.tree.writer() }.overlapping(Span::ALL);
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
        // SAFETY: the pin keeps the entry.
        unsafe { &(*self.entry.as_ptr()).head }
    }

    /// The range of the entry.
    pub fn span(&self) -> Span {
        self.head().span
    }

    /// The tag of the entry.
    pub fn tag(&self) -> Tag {
        self.head().tag
    }

    /// A number beside the entry's range, for whoever made the map.
    #[inline]
    pub(crate) fn stamp(&self) -> &Stamp {
        &self.head().stamp
    }

    /// Whether both keep the same entry.
    pub fn is_same(&self, other: &Self) -> bool {
        self.entry == other.entry
    }

    /// Returns the value.
    ///
    /// # Errors
    /// The pin itself: its entry is still in the map, or another pin holds it.
    pub fn into_value(self) -> Result<V, Self> {
        let refs = &self.head().refs;
        // A pin by hazard has no count of its own, so that one count is somebody else's.
        if self.hazard.is_some()
            || refs
                .compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return Err(self);
        }
        let pin = ManuallyDrop::new(self);
        // SAFETY: the count was this pin's alone and is zero: nobody else can reach the entry, and
        // this pin does not drop it.
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
        // SAFETY: the pin keeps the entry.
        unsafe { &(*self.entry.as_ptr()).value }
    }
}

impl<V: Send + Sync + 'static> Drop for Pin<V> {
    #[inline]
    fn drop(&mut self) {
        match self.hazard {
            Some(hazard) => hazard.clear(),
            // SAFETY: the count of this pin, given up here and nowhere else.
            None => unsafe { uncount::<V>(self.entry.as_ptr().cast()) },
        }
    }
}

impl<V: Send + Sync + fmt::Debug + 'static> fmt::Debug for Pin<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({}, {:?})", self.span(), &**self)
    }
}
