//! The tree of directories: read by many threads without a lock, changed by one.
//!
//! - *Levels are of unequal size* ([`SHIFTS`]): a cell covers 4 KiB, then 64 KiB, 8 MiB, 4 GiB and
//!   up. Low directories are small, so that more of them fit the cache: 1.2 on all rows, against 9
//!   bits each.
//! - *An entry stands as high as it can*: a cell that lies inside the entry names it; a lowest cell
//!   names every entry with a byte in its page. A walk ends at one cell, whose entries are
//!   compared.
//! - *The root is as low as the entries allow*: an address is found in two to four steps of seven.
//! - *Directories are freed with their entries*, by the caller after a grace period.
//!
//! Constant shifts of the lower levels buy 1.25 with 1 000 entries and 1.1 with 100 000; the
//! comparison word by word ([`Head::fits`]) 1.1 with 1 000.

use std::alloc::Layout;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use crate::raw::slab;
use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Stamp};

/// log2 of the bytes that a cell covers, by level; above the last is the end of the address space.
/// Few and coarse under loom, so that models stay small.
#[cfg(not(loom))]
const SHIFTS: [u32; 8] = [12, 16, 23, 32, 41, 50, 59, 64];
#[cfg(loom)]
const SHIFTS: [u32; 5] = [60, 61, 62, 63, 64];

/// What a word names, in its lowest bits; a word without a bit names nothing.
const TAGS: usize = 3;
const ENTRY: usize = 1;
const SEVERAL: usize = 2;
const DIRECTORY: usize = 3;

/// What an entry is compared by; the first field of every entry.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct Head {
    pub(super) span: Span,
    pub(super) tag: [u64; 2],
    /// The map's hold on a linked entry is one, and each pin without a hazard.
    pub(super) refs: AtomicU32,
    /// The map's owner's.
    pub(super) stamp: Stamp,
}

impl Head {
    /// Whether it is a hit.
    #[inline]
    fn fits(&self, span: Span, tag: [u64; 2]) -> bool {
        // Word by word: a comparison of whole arrays reads what the caller has just written by
        // halves, and waits until it is in memory, which is when all earlier hits are done.
        let other = (self.tag[0] ^ tag[0]) | (self.tag[1] ^ tag[1]);
        self.span.contains(span) && other == 0
    }
}

/// The head of a directory; its cells follow in memory, 2^(SHIFTS\[level + 1\] - SHIFTS\[level\])
/// of them.
#[repr(C)]
struct Directory {
    /// The first address; a multiple of what the directory covers.
    base: u64,
    level: usize,
    /// Cells that are not empty; the writer's.
    used: AtomicUsize,
    cells: [AtomicPtr<()>; 0],
}

/// The entries of a cell that names several.
type Several = Vec<*const Head>;

/// What a cell says.
enum Cell<'a> {
    Empty,
    Directory(Walked),
    Entry(*const Head),
    Several(&'a Several),
}

/// # Safety
/// The word comes from a cell of this tree, whose directories and lists live as long as the answer.
#[inline]
unsafe fn read<'a>(word: *mut ()) -> Cell<'a> {
    let bare = word.map_addr(|address| address & !TAGS);
    match word.addr() & TAGS {
        ENTRY => Cell::Entry(bare.cast()),
        // SAFETY: the tag says what the word was made of; the caller promises that it lives.
        SEVERAL => Cell::Several(unsafe { &*bare.cast::<Several>() }),
        DIRECTORY => Cell::Directory(Walked(bare.cast())),
        _ => Cell::Empty,
    }
}

/// The directory that a word names.
#[inline]
fn directory(word: *mut ()) -> Option<*const Directory> {
    (word.addr() & TAGS == DIRECTORY).then(|| word.wrapping_byte_sub(DIRECTORY).cast_const().cast())
}

/// One directory down; a word that names none stays.
///
/// # Safety
/// As [`read`]; a directory is of this level.
#[inline]
unsafe fn step(word: *mut (), level: usize, address: u64) -> *mut () {
    match directory(word) {
        // SAFETY: the caller's promise.
        Some(directory) => unsafe { Directory::cell(directory, level, index(level, address)) },
        None => word,
    }
}

fn entry_word(head: *const Head) -> *mut () {
    head.cast_mut().cast::<()>().map_addr(|address| address | ENTRY)
}

/// A hit among several.
///
/// # Safety
/// As [`read`]; the entries that are named live too.
unsafe fn find_among(word: *mut (), span: Span, tag: [u64; 2]) -> Option<*const Head> {
    // SAFETY: the caller's promise.
    let Cell::Several(heads) = (unsafe { read(word) }) else {
        return None;
    };
    // SAFETY: the caller's promise.
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

/// Whether a directory of a level that covers one address covers the other.
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

/// Cells of a directory.
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

    /// Its first cell, behind the head.
    #[inline]
    const fn first(this: *const Self) -> *const AtomicPtr<()> {
        this.wrapping_byte_add(std::mem::offset_of!(Self, cells)).cast()
    }

    /// An empty one of a level that covers an address.
    fn new(level: usize, inside: u64) -> *mut Self {
        // A shift by 64: the directory covers every address.
        let above = inside.checked_shr(SHIFTS[level + 1]).unwrap_or(0);
        let base = above.checked_shl(SHIFTS[level + 1]).unwrap_or(0);
        let layout = Self::layout(level);
        // SAFETY: the layout has bytes.
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
            // SAFETY: the layout has so many cells behind the head, aligned as it is.
            let cell = unsafe { Self::first(directory).add(at) }.cast_mut();
            // SAFETY: as above.
            unsafe { cell.write(AtomicPtr::new(null_mut())) };
        }
        directory
    }

    /// # Safety
    /// It was made by `new`, and nobody has it any more.
    unsafe fn free(directory: *mut Self) {
        // SAFETY: the caller says that it lives.
        let level = unsafe { (*directory).level };
        // Cells need no drop, but for loom's, which forgets them with the model.
        // SAFETY: made by `new` with this layout.
        unsafe { slab::give(directory.cast(), Self::layout(level)) };
    }

    /// # Safety
    /// The reference was made from the whole directory's pointer, and `level` is its level.
    #[inline]
    unsafe fn cell(this: *const Self, level: usize, at: usize) -> *mut () {
        debug_assert!(at < cells(level), "masked by the level");
        // SAFETY: the layout has so many cells behind the head.
        let cell = unsafe { Self::first(this).add(at) };
        // SAFETY: as above; the directory lives while it is walked.
        unsafe { (*cell).load(Ordering::Acquire) }
    }
}

/// A directory that lives, by the pointer to all of it: a reference would cover the head alone.
#[derive(Clone, Copy)]
struct Walked(*const Directory);

impl Walked {
    fn head(&self) -> &Directory {
        // SAFETY: it lives while this is used (see `read`).
        unsafe { &*self.0 }
    }

    fn level(self) -> usize {
        self.head().level
    }

    fn cells(&self) -> &[AtomicPtr<()>] {
        // SAFETY: so many cells of the level are behind the head, and live while this is used.
        unsafe { std::slice::from_raw_parts(Directory::first(self.0), cells(self.level())) }
    }

    /// The addresses of a cell.
    fn span_of(self, at: usize) -> Span {
        let shift = SHIFTS[self.level()];
        let start = self.head().base | ((at as u64) << shift);
        // Only one cell of all addresses has no length that a u64 holds.
        Span::new(start, 1 << shift).unwrap_or(Span::ALL)
    }

    /// The cells that have an address of the span, which overlaps the directory.
    fn cells_of(self, span: Span) -> std::ops::RangeInclusive<usize> {
        let (base, level) = (self.head().base, self.level());
        // A shift by 64: every address.
        let covered = 1_u64.checked_shl(SHIFTS[level + 1]).unwrap_or(0).wrapping_sub(1);
        let last = base | covered;
        index(level, span.start().max(base))..=index(level, span.last().min(last))
    }

    fn word(self, at: usize) -> *mut () {
        self.cells()[at].load(Ordering::Acquire)
    }

    /// The writer's: also counts.
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

    /// The one word of all cells, where they name the same entry.
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

/// What was unlinked of the tree itself. Freed when it is dropped: after a grace period.
#[derive(Default)]
pub(super) struct Garbage {
    words: Vec<*mut ()>,
}

impl Garbage {
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Does not free it, ever.
    pub(super) fn leak(mut self) {
        self.words.clear();
    }

    fn free(word: *mut ()) {
        let bare = word.map_addr(|address| address & !TAGS);
        if word.addr() & TAGS == SEVERAL {
            // SAFETY: made by `several_word`, out of every cell, and nobody walks it any more (see
            // the type).
            drop(unsafe { Box::from_raw(bare.cast::<Several>()) });
        } else {
            // SAFETY: as above; any other word is of a directory.
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
    /// Directories that are linked; the writer's.
    directories: AtomicUsize,
}

/// The writer's view: to be had once at a time. What it unlinks, readers may walk until a grace
/// period is over.
pub(super) struct Writer<'a> {
    tree: &'a Tree,
    pub(super) garbage: Garbage,
}

impl Tree {
    /// An entry that holds the span and has the tag.
    ///
    /// # Safety
    /// Within a section of the calling thread, and every change goes through [`Writer`]s whose
    /// garbage is freed after a grace period: then what is walked lives, and the entry until the
    /// section ends.
    #[inline]
    pub(super) unsafe fn find(&self, span: Span, tag: [u64; 2]) -> Option<*const Head> {
        let at = span.start();
        let mut word = self.root.load(Ordering::Acquire);
        // The root lives as the caller promises.
        let root = Walked(directory(word)?);
        let (base, level) = (root.head().base, root.level());
        if !reaches(level, base, at) {
            return None;
        }
        for level in (4..=level).rev() {
            // SAFETY: as the root.
            word = unsafe { step(word, level, at) };
        }
        // Spelt out, so that every shift and mask is a constant: few instructions between two waits
        // for memory let the processor begin the next hit while this one waits.
        if level >= 3 {
            // SAFETY: as the root; it is of this level, or names no directory.
            word = unsafe { step(word, 3, at) };
        }
        if level >= 2 {
            // SAFETY: as above.
            word = unsafe { step(word, 2, at) };
        }
        if level >= 1 {
            // SAFETY: as above.
            word = unsafe { step(word, 1, at) };
        }
        // SAFETY: as above.
        word = unsafe { step(word, 0, at) };
        if word.addr() & TAGS != ENTRY {
            // SAFETY: as the root.
            return unsafe { find_among(word, span, tag) };
        }
        let head = word.wrapping_byte_sub(ENTRY).cast_const().cast::<Head>();
        // SAFETY: a linked entry lives until a grace period after it was unlinked.
        unsafe { &*head }.fits(span, tag).then_some(head)
    }

    /// Directories now.
    pub(super) fn directories(&self) -> usize {
        self.directories.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The caller is the only writer while the answer lives, and frees its garbage only after a
    /// grace period. No entry that is linked is freed.
    pub(super) unsafe fn writer(&self) -> Writer<'_> {
        Writer {
            tree: self,
            garbage: Garbage::default(),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fn all_below(directory: Walked, words: &mut Vec<*mut ()>) {
            for cell in directory.cells() {
                let word = cell.load(Ordering::Acquire);
                // SAFETY: nobody else has the tree any more: everything in it lives.
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
        // SAFETY: the writer alone unlinks, and what it has unlinked it does not free (see
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
        // SAFETY: linked entries live, and so does the one that is linked or unlinked now.
        unsafe { (*head).span }
    }

    fn count(&self, more: usize, fewer: usize) {
        let now = self.tree.directories.load(Ordering::Relaxed);
        self.tree.directories.store(now + more - fewer, Ordering::Relaxed);
    }

    /// A word of a directory that is not linked yet.
    fn make(&self, level: usize, inside: u64) -> *mut () {
        self.count(1, 0);
        directory_word(Directory::new(level, inside))
    }

    /// Links an entry in all its cells.
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

    /// Names the entry in the cells of a directory, and below, that have an address of `within`.
    fn put(&mut self, directory: *mut (), head: *const Head, within: Span) {
        // SAFETY: as in `root`; a directory that was just made lives too.
        let Cell::Directory(directory) = (unsafe { read(directory) }) else {
            return;
        };
        for at in directory.cells_of(within) {
            let word = directory.word(at);
            let cell = directory.span_of(at);
            let whole = within.contains(cell) || directory.level() == 0;
            match self.read(word) {
                Cell::Directory(_) => self.put(word, head, within),
                Cell::Empty if whole => directory.set(at, entry_word(head)),
                Cell::Entry(other) if whole => directory.set(at, several_word(vec![other, head])),
                Cell::Several(others) if whole => {
                    let mut all = others.clone();
                    all.push(head);
                    directory.set(at, several_word(all));
                    self.garbage.words.push(word);
                }
                // The cell is too large for this entry: a directory of smaller ones takes over what
                // it named.
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

    /// Takes an entry out of all its cells, and directories that are no longer needed with it.
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
                        [one] => entry_word(one),
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

    /// Makes the root as low as the entries allow.
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

    /// Every entry that has an address of the span, once each.
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
