//! Memory for entries and directories: many blocks of few sizes.
//!
//! Blocks come from the global allocator until a size has [`FEW`] bytes of them; then from chunks
//! of a huge page each, so that the entries lie close together and few address translations reach
//! them all. A chunk is freed with its last block.
//!
//! Buys, with 100 000 entries: 1.65 (1 thread), 1.61 (2 threads); the huge pages alone 1.05 and
//! 1.07. With 1 000 entries: nothing.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Mutex;

use gaudi_sys::lock;
use nix::libc;

use crate::raw::record::is_foreign;

/// Every block is a multiple of a cache line.
const LINE: usize = 64;
/// What is larger, or aligned otherwise, is the global allocator's alone.
const LARGEST: usize = 8 << 10;
const CHUNK: usize = 2 << 20;
/// Bytes of one size that are in use before chunks are.
const FEW: usize = 64 << 10;

static SLAB: Mutex<Slab> = Mutex::new(Slab {
    chunks: BTreeMap::new(),
    sizes: BTreeMap::new(),
});

struct Slab {
    /// By the address of the first byte.
    chunks: BTreeMap<usize, Chunk>,
    /// By bytes a block.
    sizes: BTreeMap<usize, Size>,
}

#[derive(Default)]
struct Size {
    /// Blocks in use, wherever they come from.
    live: usize,
    /// Chunks that have a block to give, by address.
    with_room: BTreeSet<usize>,
}

struct Chunk {
    start: NonNull<u8>,
    live: usize,
    /// Blocks that were never given, from here on.
    fresh: usize,
    /// Offsets of those that came back.
    free: Vec<usize>,
}

// SAFETY: a chunk is plain memory of the process; its blocks are given out under the lock, each to
// one.
unsafe impl Send for Chunk {}

const fn chunk_layout() -> Layout {
    // The size is a multiple of the alignment, a power of two.
    match Layout::from_size_align(CHUNK, CHUNK) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<()>(),
    }
}

/// Bytes of a block for a layout; `None` where it is none of ours.
fn block(layout: Layout) -> Option<usize> {
    let size = layout.size().next_multiple_of(LINE);
    (!cfg!(loom) && layout.align() <= LINE && size <= LARGEST).then_some(size)
}

/// # Safety
/// The layout has bytes.
unsafe fn global(layout: Layout) -> *mut u8 {
    // SAFETY: the caller says so.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// Memory for a layout that has bytes; never null.
///
/// # Safety
/// The layout has bytes.
pub(super) unsafe fn take(layout: Layout) -> *mut u8 {
    let Some(size) = block(layout) else {
        // SAFETY: the caller's promise.
        return unsafe { global(layout) };
    };
    let mut slab = lock(&SLAB);
    let Slab { chunks, sizes } = &mut *slab;
    let of_size = sizes.entry(size).or_default();
    of_size.live += 1;
    let at = match of_size.with_room.first() {
        Some(&at) => at,
        None if of_size.live * size <= FEW => {
            // SAFETY: the caller's promise.
            return unsafe { global(layout) };
        }
        None => {
            // SAFETY: a chunk has bytes.
            let start = unsafe { global(chunk_layout()) };
            // SAFETY: advice about memory of our own; whether it is heard does not matter.
            unsafe { libc::madvise(start.cast(), CHUNK, libc::MADV_HUGEPAGE) };
            let chunk = Chunk {
                // SAFETY: `global` gives no null.
                start: unsafe { NonNull::new_unchecked(start) },
                live: 0,
                fresh: 0,
                free: Vec::new(),
            };
            of_size.with_room.insert(start.addr());
            chunks.insert(start.addr(), chunk);
            start.addr()
        }
    };
    let Some(chunk) = chunks.get_mut(&at) else {
        unreachable!("a chunk with room is a chunk");
    };
    let offset = chunk.free.pop().unwrap_or_else(|| {
        chunk.fresh += size;
        chunk.fresh - size
    });
    chunk.live += 1;
    if chunk.free.is_empty() && chunk.fresh + size > CHUNK {
        of_size.with_room.remove(&at);
    }
    // SAFETY: the block lies within the chunk.
    unsafe { chunk.start.as_ptr().add(offset) }
}

/// Gives memory back. In a fork child it stays: the lock may never open there.
///
/// # Safety
/// It is from [`take`] with this layout, and nobody has it any more.
pub(super) unsafe fn give(memory: *mut u8, layout: Layout) {
    let Some(size) = block(layout) else {
        // SAFETY: the caller's promise; such a layout is the global allocator's.
        return unsafe { dealloc(memory, layout) };
    };
    if is_foreign() {
        return;
    }
    let mut slab = lock(&SLAB);
    let Slab { chunks, sizes } = &mut *slab;
    let of_size = sizes.entry(size).or_default();
    of_size.live = of_size.live.saturating_sub(1);
    let at = memory.addr() & !(CHUNK - 1);
    let Some(chunk) = chunks.get_mut(&at) else {
        drop(slab);
        // SAFETY: the caller's promise; what is in no chunk is the global allocator's.
        return unsafe { dealloc(memory, layout) };
    };
    chunk.live -= 1;
    if chunk.live > 0 {
        chunk.free.push(memory.addr() - at);
        of_size.with_room.insert(at);
        return;
    }
    of_size.with_room.remove(&at);
    let start = chunk.start;
    chunks.remove(&at);
    drop(slab);
    // SAFETY: from `global` with this layout, and no block of it is in use.
    unsafe { dealloc(start.as_ptr(), chunk_layout()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_freed_with_their_last_block() {
        // A size that nothing else in these tests has.
        let layout = Layout::from_size_align(4544, 64).expect("a layout");
        let chunks = || {
            let slab = SLAB.lock().expect("no panic");
            slab.chunks.len()
        };
        let before = chunks();
        let mut blocks: Vec<*mut u8> = (0..2000)
            // SAFETY: the layout has bytes.
            .map(|_| unsafe { take(layout) })
            .collect();
        assert!(chunks() >= before + 3, "{} chunks for 9 MB", chunks() - before);
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            assert!(pair[1].addr() - pair[0].addr() >= 4544, "no two share a byte");
        }
        // Every other one first, then the rest: what came back is given again.
        for at in (0..2000).step_by(2) {
            // SAFETY: each once.
            unsafe { give(blocks[at], layout) };
        }
        let full = chunks();
        for at in (0..2000).step_by(2) {
            // SAFETY: as above.
            blocks[at] = unsafe { take(layout) };
        }
        assert!(chunks() <= full + 1, "what came back was given again");
        for block in blocks {
            // SAFETY: each once.
            unsafe { give(block, layout) };
        }
        assert_eq!(chunks(), before, "all chunks are gone");
    }
}
