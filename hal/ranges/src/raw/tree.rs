//! A radix tree of directories with lock-free readers and one writer at a time.
//!
//! - *Levels have different sizes* ([`SHIFTS`]): a cell covers 4 KiB, 64 KiB, 8 MiB, 4 GiB and up.
//!   Low directories are small, so more of them fit the cache: a gain of 1.2 over 9 bits per level.
//! - *Entries are linked as high as possible*: a cell names an entry that covers it; a cell of the
//!   lowest level names every entry with a byte in its page. A walk compares the entries of one
//!   cell.
//! - *The root is as low as the entries allow*: a walk takes two to four steps of at most seven.
//! - *A cell that its entry covers names the entry's class too* ([`Class`]), so that a lookup of
//!   the class alone reads no entry: a gain of 1.1 with 1 000 entries and of 1.6 with 100 000.
//! - *The caller frees directories* after a grace period, when their last entry is unlinked.
//!
//! Constant shifts of the lower levels gain 1.25 with 1 000 entries and 1.1 with 100 000; comparing
//! word by word ([`Head::fits`]) gains 1.1 with 1 000.

use std::alloc::Layout;
use std::num::NonZeroU8;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use crate::raw::slab;
use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Stamp};

/// log2 of the bytes that a cell covers, by level; the last is the size of the address space. Loom
/// gets few, coarse levels, so that its models stay small.
#[cfg(not(loom))]
const SHIFTS: [u32; 8] = [12, 16, 23, 32, 41, 50, 59, 64];
#[cfg(loom)]
const SHIFTS: [u32; 5] = [60, 61, 62, 63, 64];

/// The bits of a word that hold its kind; 0 is an empty cell.
const TAGS: usize = 3;
/// The bits of an entry's word above its kind that hold the entry's class, if the entry covers the
/// cell. Entries are aligned to 64 bytes.
const CLASS: usize = 15 << CLASS_SHIFT;
const CLASS_SHIFT: u32 = 2;
const ENTRY: usize = 1;
const SEVERAL: usize = 2;
const DIRECTORY: usize = 3;

/// One of 15 classes of entries: see [`RangeMap::with_classes`](super::RangeMap::with_classes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class(NonZeroU8);

impl Class {
    /// The number of classes.
    pub const COUNT: usize = CLASS >> CLASS_SHIFT;

    /// Returns the class of an index; `None` from [`COUNT`](Self::COUNT) on.
    pub fn from_index(index: usize) -> Option<Self> {
        let number = u8::try_from(index).ok()?.checked_add(1)?;
        let class = NonZeroU8::new(number).map(Self);
        class.filter(|_| index < Self::COUNT)
    }

    /// Returns the index, below [`COUNT`](Self::COUNT).
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Returns the class that a word names; `None` if no single entry covers the cell.
    #[inline]
    fn of_word(word: *mut ()) -> Option<Self> {
        let class = NonZeroU8::new(((word.addr() & CLASS) >> CLASS_SHIFT) as u8);
        class.map(Self).filter(|_| word.addr() & TAGS == ENTRY)
    }

    /// Returns the bits of a word.
    fn bits(self) -> usize {
        usize::from(self.0.get()) << CLASS_SHIFT
    }
}

/// The key and counters of an entry; the first field of every entry.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct Head {
    pub(super) span: Span,
    pub(super) tag: [u64; 2],
    /// One for the map while the entry is linked, and one for each pin without a hazard.
    pub(super) refs: AtomicU32,
    /// See [`super::Pin::stamp`].
    pub(super) stamp: Stamp,
}

impl Head {
    /// Whether the entry matches a lookup.
    #[inline]
    fn fits(&self, span: Span, tag: [u64; 2]) -> bool {
        // Word by word: a comparison of whole arrays loads 16 bytes that the caller has just stored
        // as two words. Store forwarding fails, and the load waits for all earlier hits.
        let other = (self.tag[0] ^ tag[0]) | (self.tag[1] ^ tag[1]);
        self.span.contains(span) && other == 0
    }
}

/// The head of a directory; its cells follow in memory, 2^(SHIFTS\[level + 1\] - SHIFTS\[level\])
/// of them.
#[repr(C)]
struct Directory {
    /// The first address; a multiple of the bytes that the directory covers.
    base: u64,
    level: usize,
    /// Cells that are not empty; only the writer uses it.
    used: AtomicUsize,
    cells: [AtomicPtr<()>; 0],
}

/// The entries of a cell that names several.
type Several = Vec<*const Head>;

/// The decoded word of a cell.
enum Cell<'a> {
    Empty,
    Directory(Walked),
    Entry(*const Head),
    Several(&'a Several),
}

/// Decodes a word.
///
/// # Safety
/// The word comes from a cell of this tree, whose directories and lists outlive the result.
#[inline]
unsafe fn read<'a>(word: *mut ()) -> Cell<'a> {
    let bare = word.map_addr(|address| address & !TAGS);
    match word.addr() & TAGS {
        ENTRY => Cell::Entry(entry(word)),
        // SAFETY: the kind bits match the pointer's type; the list lives by contract.
        SEVERAL => Cell::Several(unsafe { &*bare.cast::<Several>() }),
        DIRECTORY => Cell::Directory(Walked(bare.cast())),
        _ => Cell::Empty,
    }
}

/// Returns the directory that a word names.
#[inline]
fn directory(word: *mut ()) -> Option<*const Directory> {
    (word.addr() & TAGS == DIRECTORY).then(|| word.wrapping_byte_sub(DIRECTORY).cast_const().cast())
}

/// The last cell of a walk.
#[derive(Clone, Copy)]
struct Walk {
    word: *mut (),
    /// log2 of the bytes that the cell covers.
    shift: u32,
}

impl Walk {
    /// Descends one level, unless the cell names no directory.
    ///
    /// # Safety
    /// As [`read`]; a directory has this level.
    #[inline]
    unsafe fn step(self, level: usize, address: u64) -> Self {
        match directory(self.word) {
            Some(directory) => Self {
                // SAFETY: by contract.
                word: unsafe { Directory::cell(directory, level, index(level, address)) },
                shift: SHIFTS[level],
            },
            None => self,
        }
    }
}

/// Returns the entry that a word of this kind names.
#[inline]
fn entry(word: *mut ()) -> *const Head {
    word.map_addr(|address| address & !(TAGS | CLASS))
        .cast_const()
        .cast()
}

/// Returns a matching entry of a cell that names several.
///
/// # Safety
/// As [`read`]; the entries in the list live too.
unsafe fn find_among(word: *mut (), span: Span, tag: [u64; 2]) -> Option<*const Head> {
    // SAFETY: by contract.
    let Cell::Several(heads) = (unsafe { read(word) }) else {
        return None;
    };
    // SAFETY: by contract.
    let mut heads = heads.iter().map(|&head| unsafe { &*head });
    heads.find(|head| head.fits(span, tag)).map(std::ptr::from_ref)
}

fn directory_word(directory: *mut Directory) -> *mut () {
    directory.cast::<()>().map_addr(|address| address | DIRECTORY)
}

fn several_word(several: Several) -> *mut () {
    let boxed = Box::into_raw(Box::new(several)).cast::<()>();
    boxed.map_addr(|address| address | SEVERAL)
}

/// Whether a directory of `level` that covers `one` also covers `other`.
#[inline]
const fn reaches(level: usize, one: u64, other: u64) -> bool {
    match (one ^ other).checked_shr(SHIFTS[level + 1]) {
        Some(apart) => apart == 0,
        None => true,
    }
}

#[inline]
const fn index(level: usize, address: u64) -> usize {
    (address >> SHIFTS[level]) as usize & (cells(level) - 1)
}

/// Returns the number of cells of a directory.
#[inline]
const fn cells(level: usize) -> usize {
    1 << (SHIFTS[level + 1] - SHIFTS[level])
}

impl Directory {
    fn layout(level: usize) -> Layout {
        let cells = Layout::array::<AtomicPtr<()>>(cells(level));
        let both = cells.and_then(|cells| Layout::new::<Self>().extend(cells));
        both.map_or_else(|_| Layout::new::<Self>(), |(both, _)| both.pad_to_align())
    }

    /// Returns the first cell, which follows the head.
    #[inline]
    const fn first(this: *const Self) -> *const AtomicPtr<()> {
        this.wrapping_byte_add(std::mem::offset_of!(Self, cells)).cast()
    }

    /// Allocates an empty directory of `level` that covers the address `inside`.
    fn new(level: usize, inside: u64) -> *mut Self {
        // A shift by 64 fails: that directory covers every address and starts at 0.
        let above = inside.checked_shr(SHIFTS[level + 1]).unwrap_or(0);
        let base = above.checked_shl(SHIFTS[level + 1]).unwrap_or(0);
        let layout = Self::layout(level);
        // SAFETY: the size of the layout is not zero.
        let directory = unsafe { slab::take(layout) }.cast::<Self>();
        let head = Self {
            base,
            level,
            used: AtomicUsize::new(0),
            cells: [],
        };
        // SAFETY: fresh memory of this layout.
        unsafe { directory.write(head) };
        for at in 0..cells(level) {
            // SAFETY: the layout has `cells(level)` aligned cells behind the head.
            let cell = unsafe { Self::first(directory).add(at) }.cast_mut();
            // SAFETY: as above.
            unsafe { cell.write(AtomicPtr::new(null_mut())) };
        }
        directory
    }

    /// # Safety
    /// `new` made the directory, and nothing refers to it.
    unsafe fn free(directory: *mut Self) {
        // SAFETY: the directory lives by contract.
        let level = unsafe { (*directory).level };
        // Cells need no drop; loom's are dropped with the model.
        // SAFETY: `new` allocated it with this layout.
        unsafe { slab::give(directory.cast(), Self::layout(level)) };
    }

    /// Loads the word of a cell.
    ///
    /// # Safety
    /// The pointer covers the whole live directory, and `level` is its level.
    #[inline]
    unsafe fn cell(this: *const Self, level: usize, at: usize) -> *mut () {
        debug_assert!(at < cells(level), "masked by the level");
        // SAFETY: `at` is below the number of cells behind the head.
        let cell = unsafe { Self::first(this).add(at) };
        // SAFETY: as above; the directory lives while it is walked.
        unsafe { (*cell).load(Ordering::Acquire) }
    }
}

/// A pointer to a whole live directory; a reference would cover only the head.
#[derive(Clone, Copy)]
struct Walked(*const Directory);

impl Walked {
    fn head(&self) -> &Directory {
        // SAFETY: the directory lives while this value is used (see `read`).
        unsafe { &*self.0 }
    }

    fn level(self) -> usize {
        self.head().level
    }

    fn cells(&self) -> &[AtomicPtr<()>] {
        // SAFETY: `cells(level)` cells follow the head, and live while this value is used.
        unsafe { std::slice::from_raw_parts(Directory::first(self.0), cells(self.level())) }
    }

    /// Returns the addresses that a cell covers.
    fn span_of(self, at: usize) -> Span {
        let shift = SHIFTS[self.level()];
        let start = self.head().base | ((at as u64) << shift);
        // `new` fails only for a cell that covers 2^64 bytes.
        Span::new(start, 1 << shift).unwrap_or(Span::ALL)
    }

    /// Returns the cells that overlap `span`, which overlaps the directory.
    fn cells_of(self, span: Span) -> std::ops::RangeInclusive<usize> {
        let (base, level) = (self.head().base, self.level());
        // A shift by 64 fails: that directory covers every address.
        let covered = 1_u64.checked_shl(SHIFTS[level + 1]).unwrap_or(0).wrapping_sub(1);
        let last = base | covered;
        index(level, span.start().max(base))..=index(level, span.last().min(last))
    }

    fn word(self, at: usize) -> *mut () {
        self.cells()[at].load(Ordering::Acquire)
    }

    /// Stores the word of a cell and updates `used`. Only the writer calls it.
    fn set(self, at: usize, word: *mut ()) {
        let cell = &self.cells()[at];
        let before = cell.load(Ordering::Relaxed);
        let used = self.used() + usize::from(before.is_null()) - usize::from(word.is_null());
        self.head().used.store(used, Ordering::Relaxed);
        cell.store(word, Ordering::Release);
    }

    fn used(self) -> usize {
        self.head().used.load(Ordering::Relaxed)
    }

    /// Returns the word of all cells if they all name the same single entry.
    fn uniform(self) -> Option<*mut ()> {
        let (word, cells) = (self.word(0), self.cells());
        let same = self.used() == cells.len()
            && word.addr() & TAGS == ENTRY
            && cells
                .iter()
                .rev()
                .all(|cell| cell.load(Ordering::Relaxed) == word);
        same.then_some(word)
    }
}

/// Unlinked directories and lists. Its drop frees them; drop it after a grace period.
#[derive(Default)]
pub(super) struct Garbage {
    words: Vec<*mut ()>,
}

impl Garbage {
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Leaks the directories and lists.
    pub(super) fn leak(mut self) {
        self.words.clear();
    }

    fn free(word: *mut ()) {
        let bare = word.map_addr(|address| address & !TAGS);
        if word.addr() & TAGS == SEVERAL {
            // SAFETY: `several_word` made it, no cell names it, and no reader walks it after the
            // grace period.
            drop(unsafe { Box::from_raw(bare.cast::<Several>()) });
        } else {
            // SAFETY: as above; every other word names a directory.
            unsafe { Directory::free(bare.cast()) };
        }
    }
}

impl Drop for Garbage {
    fn drop(&mut self) {
        self.words.drain(..).for_each(Self::free);
    }
}

/// The tree. It does not own the entries.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: AtomicPtr<()>,
    /// Linked directories; only the writer changes it.
    directories: AtomicUsize,
}

/// The writer's view of the tree; at most one exists at a time. Readers may walk what it unlinks
/// until the end of a grace period.
pub(super) struct Writer<'a> {
    tree: &'a Tree,
    /// Returns the class of a live entry.
    class: &'a dyn Fn(*const Head) -> Option<Class>,
    pub(super) garbage: Garbage,
}

impl Tree {
    /// Returns the last cell on the way to an address; `None` if the root does not cover it. Its
    /// few callers have it inlined: a call would cost a hit a fifth of its time.
    ///
    /// # Safety
    /// The calling thread is in a section. Every change goes through a [`Writer`] whose garbage is
    /// freed after a grace period. The word's entries live until the section ends.
    #[inline(always)]
    unsafe fn walk(&self, at: u64) -> Option<Walk> {
        let word = self.root.load(Ordering::Acquire);
        // The root lives by contract.
        let root = Walked(directory(word)?);
        let (base, level) = (root.head().base, root.level());
        if !reaches(level, base, at) {
            return None;
        }
        let mut walk = Walk { word, shift: 0 };
        for level in (4..=level).rev() {
            // SAFETY: by contract; the word names a directory of this level, or none.
            walk = unsafe { walk.step(level, at) };
        }
        // Unrolled, so that every shift and mask is a constant. With few instructions between two
        // loads the processor can start the next hit while this one waits for memory.
        if level >= 3 {
            // SAFETY: as above.
            walk = unsafe { walk.step(3, at) };
        }
        if level >= 2 {
            // SAFETY: as above.
            walk = unsafe { walk.step(2, at) };
        }
        if level >= 1 {
            // SAFETY: as above.
            walk = unsafe { walk.step(1, at) };
        }
        // SAFETY: as above.
        Some(unsafe { walk.step(0, at) })
    }

    /// Returns an entry with this tag that contains `span`.
    ///
    /// # Safety
    /// As [`walk`](Self::walk).
    #[inline]
    pub(super) unsafe fn find(&self, span: Span, tag: [u64; 2]) -> Option<*const Head> {
        // SAFETY: by contract.
        let word = unsafe { self.walk(span.start()) }?.word;
        if word.addr() & TAGS != ENTRY {
            // SAFETY: by contract.
            return unsafe { find_among(word, span, tag) };
        }
        let head = entry(word);
        // SAFETY: an entry lives until the end of a grace period after its unlinking.
        unsafe { &*head }.fits(span, tag).then_some(head)
    }

    /// Returns the class of an entry that contains `span`, if the first and the last cell of `span`
    /// lie inside the entry and name no other.
    ///
    /// # Safety
    /// As [`walk`](Self::walk).
    #[inline]
    pub(super) unsafe fn class_of(&self, span: Span) -> Option<Class> {
        // SAFETY: by contract.
        let first = unsafe { self.walk(span.start()) }?;
        let class = Class::of_word(first.word)?;
        if (span.start() ^ span.last()) >> first.shift == 0 {
            return Some(class);
        }
        // The cells of one entry have the same word, and an entry has all bytes between two of its
        // cells. SAFETY: by contract.
        let last = unsafe { self.word_at(span.last()) };
        (last == Some(first.word)).then_some(class)
    }

    /// As [`walk`](Self::walk), for calls that are rare enough not to be inlined.
    ///
    /// # Safety
    /// As [`walk`](Self::walk).
    #[inline(never)]
    unsafe fn word_at(&self, at: u64) -> Option<*mut ()> {
        // SAFETY: by contract.
        Some(unsafe { self.walk(at) }?.word)
    }

    /// Returns the number of linked directories.
    pub(super) fn directories(&self) -> usize {
        self.directories.load(Ordering::Relaxed)
    }

    /// Returns the writer's view.
    ///
    /// # Safety
    /// No other writer exists while the result lives, which calls `class` with live entries of this
    /// tree. The caller frees the garbage only after a grace period, and frees no linked entry.
    pub(super) unsafe fn writer<'a>(&'a self, class: &'a dyn Fn(*const Head) -> Option<Class>) -> Writer<'a> {
        Writer {
            tree: self,
            class,
            garbage: Garbage::default(),
        }
    }
}

impl Drop for Writer<'_> {
    /// Leaks the garbage that the caller has not taken, after a panic of `class`: readers may walk
    /// it.
    fn drop(&mut self) {
        std::mem::take(&mut self.garbage).leak();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fn all_below(directory: Walked, words: &mut Vec<*mut ()>) {
            for cell in directory.cells() {
                let word = cell.load(Ordering::Acquire);
                // SAFETY: a dropped tree has no reader and no writer, so everything in it lives.
                match unsafe { read(word) } {
                    Cell::Directory(below) => {
                        all_below(below, words);
                        words.push(word);
                    }
                    Cell::Several(_) => words.push(word),
                    Cell::Empty | Cell::Entry(_) => {}
                }
            }
        }
        let mut garbage = Garbage::default();
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: as in `all_below`.
        if let Cell::Directory(directory) = unsafe { read(root) } {
            all_below(directory, &mut garbage.words);
            garbage.words.push(root);
        }
    }
}

impl Writer<'_> {
    fn root(&self) -> Option<Walked> {
        // SAFETY: only the writer unlinks, and it frees nothing that it unlinked (see
        // `Tree::writer`).
        match unsafe { read(self.tree.root.load(Ordering::Relaxed)) } {
            Cell::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    fn read(&self, word: *mut ()) -> Cell<'_> {
        // SAFETY: as in `root`.
        unsafe { read(word) }
    }

    fn span(&self, head: *const Head) -> Span {
        // SAFETY: linked entries live, and so does the entry that the caller links or unlinks.
        unsafe { (*head).span }
    }

    /// Returns the word of a cell that names this entry alone.
    fn entry_word(&self, head: *const Head, cell: Span) -> *mut () {
        let class = (self.class)(head).filter(|_| self.span(head).contains(cell));
        let class = class.map_or(0, Class::bits);
        let head = head.cast_mut().cast::<()>();
        debug_assert_eq!(head.addr() & (TAGS | CLASS), 0, "entries are aligned");
        head.map_addr(|address| address | class | ENTRY)
    }

    fn count(&self, more: usize, fewer: usize) {
        let now = self.tree.directories.load(Ordering::Relaxed);
        self.tree.directories.store(now + more - fewer, Ordering::Relaxed);
    }

    /// Allocates a directory and returns its word, which is not linked yet.
    fn make(&self, level: usize, inside: u64) -> *mut () {
        self.count(1, 0);
        directory_word(Directory::new(level, inside))
    }

    /// Links an entry into all its cells.
    pub(super) fn link(&mut self, head: *const Head) {
        let span = self.span(head);
        self.grow(span);
        let root = self.tree.root.load(Ordering::Relaxed);
        self.put(root, head, span);
    }

    /// Makes the root cover a span.
    fn grow(&mut self, span: Span) {
        loop {
            let word = match self.root() {
                Some(root) => {
                    let (base, level) = (root.head().base, root.level());
                    if reaches(level, base, span.start()) && reaches(level, base, span.last()) {
                        return;
                    }
                    let above = self.make(level + 1, base);
                    let word = self.tree.root.load(Ordering::Relaxed);
                    let now = root.uniform().inspect(|_| {
                        self.count(0, 1);
                        self.garbage.words.push(word);
                    });
                    if let Some(above) = directory(above) {
                        Walked(above).set(index(level + 1, base), now.unwrap_or(word));
                    }
                    above
                }
                None => {
                    let mut level = 0;
                    while !reaches(level, span.start(), span.last()) {
                        level += 1;
                    }
                    self.make(level, span.start())
                }
            };
            self.tree.root.store(word, Ordering::Release);
        }
    }

    /// Adds the entry to the cells of a directory, and below, that overlap `within`.
    fn put(&mut self, directory: *mut (), head: *const Head, within: Span) {
        // SAFETY: as in `root`; a new directory lives too.
        let Cell::Directory(directory) = (unsafe { read(directory) }) else {
            return;
        };
        for at in directory.cells_of(within) {
            let word = directory.word(at);
            let cell = directory.span_of(at);
            let whole = within.contains(cell) || directory.level() == 0;
            match self.read(word) {
                Cell::Directory(_) => self.put(word, head, within),
                Cell::Empty if whole => directory.set(at, self.entry_word(head, cell)),
                Cell::Entry(other) if whole => directory.set(at, several_word(vec![other, head])),
                Cell::Several(others) if whole => {
                    let mut all = others.clone();
                    all.push(head);
                    directory.set(at, several_word(all));
                    self.garbage.words.push(word);
                }
                // The entry covers a part of the cell: replace it by a directory of smaller cells
                // with the entries that it named.
                named => {
                    let before = match named {
                        Cell::Entry(other) => vec![other],
                        Cell::Several(others) => others.clone(),
                        Cell::Empty | Cell::Directory(_) => Vec::new(),
                    };
                    if before.len() > 1 {
                        self.garbage.words.push(word);
                    }
                    let below = self.make(directory.level() - 1, cell.start());
                    for other in before {
                        let span = self.span(other);
                        self.put(below, other, span);
                    }
                    self.put(below, head, within);
                    directory.set(at, below);
                }
            }
        }
    }

    /// Removes an entry from all its cells, and unlinks directories that become empty or uniform.
    pub(super) fn unlink(&mut self, head: *const Head) {
        let span = self.span(head);
        if let Some(root) = self.root() {
            self.take(root, head, span);
        }
        self.shrink();
    }

    fn take(&mut self, directory: Walked, head: *const Head, span: Span) {
        for at in directory.cells_of(span) {
            let word = directory.word(at);
            match self.read(word) {
                Cell::Entry(found) if std::ptr::eq(found, head) => directory.set(at, null_mut()),
                Cell::Several(all) if all.contains(&head) => {
                    let mut rest = all.clone();
                    rest.retain(|other| !std::ptr::eq(*other, head));
                    let now = match rest[..] {
                        [] => null_mut(),
                        [one] => self.entry_word(one, directory.span_of(at)),
                        _ => several_word(rest),
                    };
                    directory.set(at, now);
                    self.garbage.words.push(word);
                }
                Cell::Directory(below) => {
                    self.take(below, head, span);
                    let now = if below.used() == 0 {
                        null_mut()
                    } else if let Some(uniform) = below.uniform() {
                        uniform
                    } else {
                        continue;
                    };
                    directory.set(at, now);
                    self.garbage.words.push(word);
                    self.count(0, 1);
                }
                _ => {}
            }
        }
    }

    /// Lowers the root as far as the entries allow.
    fn shrink(&mut self) {
        while let Some(root) = self.root() {
            let next = match root.used() {
                0 => null_mut(),
                1 => {
                    let only = root.cells().iter().map(|cell| cell.load(Ordering::Relaxed));
                    let only = only.filter(|word| !word.is_null()).last().unwrap_or(null_mut());
                    match self.read(only) {
                        Cell::Directory(_) => only,
                        _ => return,
                    }
                }
                _ => return,
            };
            let word = self.tree.root.swap(next, Ordering::AcqRel);
            self.garbage.words.push(word);
            self.count(0, 1);
        }
    }

    /// Returns every entry that overlaps `span`, once each.
    pub(super) fn overlapping(&self, span: Span) -> Vec<*const Head> {
        fn collect(writer: &Writer<'_>, directory: Walked, span: Span, all: &mut Vec<*const Head>) {
            for at in directory.cells_of(span) {
                let mut add = |head: *const Head| {
                    if all.last() != Some(&head) && writer.span(head).overlaps(span) {
                        all.push(head);
                    }
                };
                match writer.read(directory.word(at)) {
                    Cell::Empty => {}
                    Cell::Entry(head) => add(head),
                    Cell::Several(heads) => heads.iter().copied().for_each(add),
                    Cell::Directory(below) => collect(writer, below, span, all),
                }
            }
        }
        let mut all = Vec::new();
        if let Some(root) = self.root() {
            let (base, level) = (root.head().base, root.level());
            let inside = reaches(level, base, span.start())
                || reaches(level, base, span.last())
                || (span.start() < base && span.last() > base);
            if inside {
                collect(self, root, span, &mut all);
            }
        }
        all.sort_unstable();
        all.dedup();
        all.sort_by_key(|head| self.span(*head));
        all
    }
}
