//! Raw memory that the chip reads and writes: the only module with unsafe code.
#![expect(
    unsafe_code,
    reason = "the chip moves bytes of memory to which no reference may exist"
)]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gaudi_seam::engine::HostRange;
use gaudi_sys::arena::Arena;
use gaudi_sys::{RawMapping, shared};

/// Bytes of host memory that lie inside a range.
pub(crate) fn of_host(range: &HostRange, offset: usize, len: usize) -> Option<Span<'_>> {
    let end = offset.checked_add(len)?;
    if end > range.len() {
        return None;
    }
    // SAFETY: the offset stays inside the range, whose creator promised that it is one mapped range
    // while it lives; the span borrows it.
    let start = unsafe { range.start().add(offset) };
    Some(Span {
        start,
        len,
        shared: true,
        arena: None,
        owner: PhantomData,
    })
}

/// Contiguous bytes that may be accessed while their owner is borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    // Valid for reads and writes of `len` bytes during 'a: only the two constructors in this module
    // make one.
    start: NonNull<u8>,
    len: usize,
    // Host memory: other threads may use it at the same time, by atomics.
    shared: bool,
    // The arena that records writes, and the offset of the bytes in it.
    arena: Option<(&'a Arena, usize)>,
    owner: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// Bytes of a mapping of the chip's own, which engines reach with the chip borrowed
    /// exclusively.
    pub(crate) fn of(mapping: &'a RawMapping, offset: usize, len: usize) -> Option<Self> {
        let start = mapping.at(offset, len).ok()?;
        Some(Self {
            start,
            len,
            shared: false,
            arena: None,
            owner: PhantomData,
        })
    }

    /// As [`of`](Self::of), of an arena's mapping, which records the writes.
    pub(crate) fn in_arena(arena: &'a Arena, offset: usize, len: usize) -> Option<Self> {
        let span = Self::of(arena.map(), offset, len)?;
        Some(Self {
            arena: Some((arena, offset)),
            ..span
        })
    }

    // Records that the first `len` bytes are written.
    #[inline]
    fn mark(&self, len: usize) {
        if let Some((arena, offset)) = self.arena {
            arena.mark(offset, len);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The last `len` bytes, or all where there are fewer.
    pub(crate) fn last(self, len: usize) -> Self {
        let len = len.min(self.len);
        // SAFETY: at most the whole span is skipped, so the pointer stays inside it.
        let start = unsafe { self.start.add(self.len - len) };
        let skipped = self.len - len;
        let arena = self.arena.map(|(arena, offset)| (arena, offset + skipped));
        Self {
            start,
            len,
            arena,
            ..self
        }
    }

    /// Copies as many bytes as both have room for; they may overlap.
    pub(crate) fn copy_from(self, source: Span<'_>) -> usize {
        let len = self.len.min(source.len);
        self.mark(len);
        if self.shared || source.shared {
            // SAFETY: both spans are valid for `len` bytes, to which nothing has a reference; they
            // may overlap.
            unsafe { shared::copy_within(self.start, source.start, len) };
        } else {
            // SAFETY: as above; both are the chip's own memory, which nothing else in this process
            // uses while the chip is borrowed exclusively.
            unsafe { std::ptr::copy(source.start.as_ptr(), self.start.as_ptr(), len) };
        }
        len
    }

    /// Copies out as many bytes as both have room for.
    pub(crate) fn read(self, into: &mut [u8]) -> usize {
        let len = self.len.min(into.len());
        if self.shared {
            // SAFETY: the span is valid for `len` bytes, to which nothing has a reference.
            unsafe { shared::copy_out(self.start, into.get_mut(..len).unwrap_or_default()) };
        } else {
            // SAFETY: the span is valid for `len` bytes, unused by others as in `copy_from`, and
            // `into` is an exclusive borrow, which device-visible memory never is.
            unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), len) };
        }
        len
    }

    /// Copies in as many bytes as both have room for.
    pub(crate) fn write(self, from: &[u8]) -> usize {
        let len = self.len.min(from.len());
        self.mark(len);
        if self.shared {
            // SAFETY: as in `read`, turned round.
            unsafe { shared::copy_in(self.start, from.get(..len).unwrap_or_default()) };
        } else {
            // SAFETY: as in `read`, turned round.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr(), len) };
        }
        len
    }

    /// Writes a word so that a poller that sees it also sees what was written before; `false` where
    /// it does not lie at a multiple of 4.
    pub(crate) fn store_release(self, value: u32) -> bool {
        let word = self.start.cast::<AtomicU32>();
        if self.len < 4 || !word.is_aligned() {
            return false;
        }
        self.mark(4);
        // SAFETY: four valid, aligned bytes; an atomic may be shared with other writers.
        unsafe { word.as_ref() }.store(value.to_le(), Ordering::Release);
        true
    }

    /// Adds to a 64-bit counter, as [`store_release`](Self::store_release) stores; `false` where it
    /// does not lie at a multiple of 8.
    pub(crate) fn add_release(self, amount: u64) -> bool {
        let counter = self.start.cast::<AtomicU64>();
        if self.len < 8 || !counter.is_aligned() {
            return false;
        }
        self.mark(8);
        // SAFETY: eight valid, aligned bytes; an atomic may be shared with other writers.
        let counter = unsafe { counter.as_ref() };
        // Another writer of the counter only makes this try again.
        let sum = |now: u64| Some(u64::from_le(now).wrapping_add(amount).to_le());
        counter
            .fetch_update(Ordering::Release, Ordering::Relaxed, sum)
            .is_ok()
    }

    /// Fills the span with a repeated pattern, whose first byte is `pattern[0]`.
    pub(crate) fn fill(self, pattern: [u8; 4]) {
        self.mark(self.len);
        if pattern == [pattern[0]; 4] {
            if self.shared {
                // SAFETY: the span is valid for its whole length, to which nothing has a reference.
                unsafe { shared::fill(self.start, self.len, pattern[0]) };
            } else {
                // SAFETY: the span is valid for its whole length, unused by others as in
                // `copy_from`.
                unsafe { std::ptr::write_bytes(self.start.as_ptr(), pattern[0], self.len) };
            }
            return;
        }
        // A block of whole patterns, copied over and over: the speed of memcpy, whatever the
        // alignment.
        let mut block = [0; 4096];
        for four in block.chunks_exact_mut(4) {
            four.copy_from_slice(&pattern);
        }
        let mut done = 0;
        while done < self.len {
            let len = block.len().min(self.len - done);
            // SAFETY: `done < self.len`, so the pointer stays inside the span.
            let start = unsafe { self.start.add(done) };
            Span { start, len, ..self }.write(&block);
            done += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn host_memory_is_accessed_by_atomics() {
        let memory = Arc::new(RawMapping::anonymous(4096, true).unwrap());
        let whole = HostRange::of_mapping(Arc::clone(&memory));
        // SAFETY: `memory` outlives the range, and has no references.
        let part = unsafe { HostRange::new(memory.as_ptr(), 4096) };
        for range in [&whole, &part] {
            assert!(
                of_host(range, 8, 16).unwrap().shared,
                "safe code may access it meanwhile"
            );
        }
        let own = Span::of(&memory, 0, 16).unwrap();
        assert!(!own.shared, "the chip's own is borrowed exclusively");
    }
}
