//! What this process holds: counted as buffers come and go, with the place in the program that made
//! each.
//!
//! - *Made to be always on*: a buffer is one addition to the totals, one subtraction and a few
//!   plain stores; the first thread that counts adds without an atomic exchange. A thread keeps the
//!   slot that it freed last for its next buffer, and claims another with one atomic exchange where
//!   it has none. No lock, no allocation after the first buffers. The benchmarks compare it with
//!   dup(2) and close(2).
//! - *The reader counts by exporter*: it walks the slots.
//! - *A leak has a place*: [`leaks`] names the line that made each buffer which lives. With
//!   `GAUDI_DMABUF_LEAKS` set in the environment the process prints them to standard error when it
//!   exits.

#![expect(
    unsafe_code,
    reason = "a slot keeps the address of a place in the program, which lives as long as the program"
)]

use std::cell::Cell;
use std::fmt;
use std::io::Write as _;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use gaudi_sys::PAGE;

use crate::export::Exporter;

/// The variable that prints a list of leaks at exit.
pub const LEAKS_VARIABLE: &str = "GAUDI_DMABUF_LEAKS";

/// Slots in a block; blocks come as they are needed.
const BLOCK: usize = 256;
/// Buffers beyond `BLOCK * BLOCKS` are counted and have no place.
const BLOCKS: usize = 256;

/// A buffer that lives, or the absence of one.
#[derive(Debug)]
struct Slot {
    /// `null` where free, [`KEPT`] where a thread keeps it for its next buffer.
    place: AtomicPtr<Location<'static>>,
    exporter: AtomicU8,
    bytes: AtomicU64,
    inode: AtomicU64,
}

impl Slot {
    const fn free() -> Self {
        Self {
            place: AtomicPtr::new(ptr::null_mut()),
            exporter: AtomicU8::new(0),
            bytes: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }
}

static SLOTS: [OnceLock<Box<[Slot]>>; BLOCKS] = [const { OnceLock::new() }; BLOCKS];
/// Buffers that live, from this bit on, above the pages in them: one addition counts both.
const LIVE_SHIFT: u32 = 40;
const PAGES: u64 = (1 << LIVE_SHIFT) - 1;
/// The most pages that one buffer counts for (1 TiB), so that what another process claims of its
/// buffer spills into no other count.
const MOST_PAGES: u64 = 1 << 28;
/// No process has so many descriptors.
const MOST_COUNTED: u64 = 1 << 23;
/// The totals are the sum of two words, either of which may have wrapped: the first thread writes
/// its own with plain stores, and all others add to the shared one.
static FIRST: AtomicU64 = AtomicU64::new(0);
static SHARED: AtomicU64 = AtomicU64::new(0);
static FIRST_TAKEN: AtomicBool = AtomicBool::new(false);
static MOST_LIVE: AtomicU64 = AtomicU64::new(0);
static MOST_IN_PAGES: AtomicU64 = AtomicU64::new(0);
static AT_EXIT: Once = Once::new();

/// No `Location` lies there.
const KEPT: *mut Location<'static> = ptr::without_provenance_mut(1);

/// The slots that a thread tries next.
struct Next {
    /// The slot that the thread freed last and reuses first.
    kept: Cell<Option<&'static Slot>>,
    /// Where the search starts otherwise: behind the slot that the thread took last.
    hint: Cell<usize>,
    /// Whether this thread writes [`FIRST`]; `None` until that is known.
    first: Cell<Option<bool>>,
}

impl Next {
    #[inline]
    fn is_first(&self) -> bool {
        self.first.get().unwrap_or_else(|| {
            let taken = FIRST_TAKEN.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            self.first.set(Some(taken.is_ok()));
            taken.is_ok()
        })
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if self.first.replace(Some(false)) == Some(true) {
            // The next thread goes on with the word as it is.
            FIRST_TAKEN.store(false, Ordering::Release);
        }
        if let Some(slot) = self.kept.take() {
            slot.place.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

thread_local! {
    static NEXT: Next = const { Next { kept: Cell::new(None), hint: Cell::new(0), first: Cell::new(None) } };
}

/// The entry of one buffer; it goes with the buffer.
#[derive(Debug)]
pub(crate) struct Record {
    slot: Option<&'static Slot>,
    counted: u64,
}

impl Record {
    /// Counts a buffer.
    #[inline]
    pub(crate) fn new(
        exporter: &Exporter,
        bytes: u64,
        inode: u64,
        place: &'static Location<'static>,
    ) -> Self {
        let counted = 1 << LIVE_SHIFT | bytes.div_ceil(PAGE).min(MOST_PAGES);
        let all = add(counted);
        if let Some((live, pages)) = split(all) {
            raise(&MOST_LIVE, live);
            raise(&MOST_IN_PAGES, pages);
        }
        let slot = claim(place);
        if let Some(slot) = slot {
            slot.exporter.store(exporter.tag(), Ordering::Relaxed);
            slot.bytes.store(bytes, Ordering::Relaxed);
            slot.inode.store(inode, Ordering::Relaxed);
        }
        Self { slot, counted }
    }
}

impl Drop for Record {
    #[inline]
    fn drop(&mut self) {
        add(self.counted.wrapping_neg());
        if let Some(slot) = self.slot {
            let keep = |next: &Next| {
                let free = next.kept.get().is_none();
                if free {
                    slot.place.store(KEPT, Ordering::Release);
                    next.kept.set(Some(slot));
                }
                free
            };
            // A thread that is about to end keeps nothing.
            if !NEXT.try_with(keep).unwrap_or(false) {
                slot.place.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

/// Buffers and pages of a sum; `None` where threads counted meanwhile and the end of a buffer was
/// seen without its beginning.
#[inline]
fn split(all: u64) -> Option<(u64, u64)> {
    let (live, pages) = (all >> LIVE_SHIFT, all & PAGES);
    (live <= MOST_COUNTED && pages <= PAGES / 2).then_some((live, pages))
}

/// Adds to the totals, and returns them.
#[inline]
fn add(counted: u64) -> u64 {
    // A thread whose locals are destroyed counts in the shared word.
    if NEXT.try_with(Next::is_first).unwrap_or(false) {
        let own = FIRST.load(Ordering::Relaxed).wrapping_add(counted);
        FIRST.store(own, Ordering::Release);
        own.wrapping_add(SHARED.load(Ordering::Acquire))
    } else {
        let shared = SHARED.fetch_add(counted, Ordering::AcqRel).wrapping_add(counted);
        shared.wrapping_add(FIRST.load(Ordering::Acquire))
    }
}

#[inline]
fn raise(mark: &AtomicU64, to: u64) {
    // A look before the write: a mark is reached much more often than it is raised.
    if mark.load(Ordering::Relaxed) < to {
        mark.fetch_max(to, Ordering::Relaxed);
    }
}

#[inline]
fn claim(place: &'static Location<'static>) -> Option<&'static Slot> {
    let place = ptr::from_ref(place).cast_mut();
    match NEXT.try_with(|next| next.kept.take()) {
        Ok(Some(slot)) => {
            // The slot is this thread's: no other thread takes it.
            slot.place.store(place, Ordering::Relaxed);
            Some(slot)
        }
        _ => search(place),
    }
}

#[cold]
fn search(place: *mut Location<'static>) -> Option<&'static Slot> {
    let take = |index: usize| {
        let block = SLOTS[index / BLOCK].get_or_init(|| {
            AT_EXIT.call_once(watch_exit);
            (0..BLOCK).map(|_| Slot::free()).collect()
        });
        let slot = &block[index % BLOCK];
        slot.place
            .compare_exchange(ptr::null_mut(), place, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some((slot, index))
    };
    let all = BLOCK * BLOCKS;
    // Without thread locals the search begins at the first slot.
    let first = NEXT.try_with(|next| next.hint.get()).unwrap_or(0);
    let (slot, index) = (first..first + all).find_map(|index| take(index % all))?;
    let _ = NEXT.try_with(|next| next.hint.set((index + 1) % all));
    Some(slot)
}

fn watch_exit() {
    if std::env::var_os(LEAKS_VARIABLE).is_some_and(|value| !value.is_empty()) {
        // SAFETY: the handler only reads atomics and writes to standard error.
        let answer = unsafe { nix::libc::atexit(print_leaks) };
        debug_assert_eq!(answer, 0, "atexit(3) fails only without memory for one handler");
    }
}

extern "C" fn print_leaks() {
    for leak in leaks() {
        // The process exits: a closed standard error cannot be reported.
        let _ = writeln!(std::io::stderr(), "gaudi-dmabuf: never closed: {leak}");
    }
}

/// Buffers of one exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// `udmabuf`, `stand-in`, …
    pub exporter: &'static str,
    /// How many live.
    pub live: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// What this process holds now, and held at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Buffers that live. Clones, windows and attachments of one are one.
    pub live: u64,
    /// Bytes in them, in whole pages; a buffer counts for 1 TiB at most.
    pub bytes: u64,
    /// The most that lived at a time.
    pub most_live: u64,
    /// The most bytes at a time.
    pub most_bytes: u64,
    /// Exporters with at least one.
    pub exporters: Vec<Count>,
}

/// A live buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// The line of the program that made it.
    pub place: String,
    /// Its exporter's name.
    pub exporter: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Its inode.
    pub inode: u64,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            exporter,
            bytes,
            inode,
        } = self;
        write!(f, "{exporter} inode {inode}, {bytes} bytes, made at {place}")
    }
}

/// Every buffer of this process that lives. A buffer that is made or closed meanwhile may be
/// missing or have its neighbour's figures.
pub fn leaks() -> Vec<Leak> {
    let slots = SLOTS
        .iter()
        .filter_map(OnceLock::get)
        .flat_map(|block| block.iter());
    slots
        .filter_map(|slot| {
            let place = slot.place.load(Ordering::Acquire);
            if place == KEPT {
                return None;
            }
            // SAFETY: what is neither null nor kept came from a `&'static Location`.
            let place = unsafe { place.as_ref() }?;
            Some(Leak {
                place: place.to_string(),
                exporter: Exporter::LABELS[usize::from(slot.exporter.load(Ordering::Relaxed))],
                bytes: slot.bytes.load(Ordering::Relaxed),
                inode: slot.inode.load(Ordering::Relaxed),
            })
        })
        .collect()
}

/// The counts of this process.
pub fn stats() -> Stats {
    let mut exporters: Vec<Count> = Exporter::LABELS
        .iter()
        .map(|&exporter| Count {
            exporter,
            live: 0,
            bytes: 0,
        })
        .collect();
    for leak in leaks() {
        if let Some(count) = exporters.iter_mut().find(|count| count.exporter == leak.exporter) {
            count.live += 1;
            count.bytes = count.bytes.saturating_add(leak.bytes);
        }
    }
    exporters.retain(|count| count.live > 0);
    let read = |_| {
        SHARED
            .load(Ordering::Acquire)
            .wrapping_add(FIRST.load(Ordering::Acquire))
    };
    // Threads counted during each of 64 reads: the marks below are still right.
    let (live, pages) = (0..64).map(read).find_map(split).unwrap_or_default();
    Stats {
        live,
        bytes: pages * PAGE,
        most_live: MOST_LIVE.load(Ordering::Relaxed),
        most_bytes: MOST_IN_PAGES.load(Ordering::Relaxed) * PAGE,
        exporters,
    }
}

/// The entry of a buffer that is none: what counting one costs, for the benchmark that compares it
/// with the system calls of a descriptor.
#[doc(hidden)]
#[derive(Debug)]
pub struct Entry(#[expect(dead_code, reason = "held until it is dropped")] Record);

#[doc(hidden)]
impl Entry {
    #[inline]
    #[track_caller]
    pub fn new(bytes: u64) -> Self {
        Self(Record::new(&Exporter::Udmabuf, bytes, 1, Location::caller()))
    }
}
