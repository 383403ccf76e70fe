//! Reader of a ring buffer map (Documentation/bpf/ringbuf.rst).

#![expect(
    unsafe_code,
    reason = "the buffer and its positions are memory shared with the kernel"
)]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::bpf::kernel::Map;

/// `BPF_RINGBUF_BUSY_BIT`, `BPF_RINGBUF_DISCARD_BIT`, `BPF_RINGBUF_HDR_SZ`.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;

#[derive(Debug)]
pub(crate) struct Ring {
    /// The page with the consumer position, which the kernel reads.
    consumer: NonNull<u8>,
    /// The page with the producer position, then the buffer, mapped twice in a row.
    producer: NonNull<u8>,
    page: usize,
    size: usize,
}

impl Ring {
    /// Maps a ring buffer. `size` is its size in bytes, which is the map's number of entries.
    pub(crate) fn new(map: &Map, size: usize) -> Result<Self, Errno> {
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|page| usize::try_from(page).ok());
        let page = page.ok_or(Errno::EINVAL)?;
        let both = size.checked_mul(2).and_then(|bytes| bytes.checked_add(page));
        let both = both.and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
        let one = NonZeroUsize::new(page).ok_or(Errno::EINVAL)?;
        let shared = MapFlags::MAP_SHARED;
        let write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other mapping.
        let consumer = unsafe { mmap(None, one, write, shared, map, 0) }?.cast();
        let offset = page.try_into().map_err(|_| Errno::EINVAL)?;
        // SAFETY: as above.
        match unsafe { mmap(None, both, ProtFlags::PROT_READ, shared, map, offset) } {
            Ok(producer) => Ok(Self {
                consumer,
                producer: producer.cast(),
                page,
                size,
            }),
            Err(errno) => {
                // SAFETY: the mapping was made above, and nothing refers to it.
                unsafe { munmap(consumer.cast(), page) }?;
                Err(errno)
            }
        }
    }

    /// Passes up to `limit` records to `take`. Returns the number of records.
    pub(crate) fn drain(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        // SAFETY: both pages start with an aligned 8-byte position, are mapped while `self` lives,
        // and are only accessed with atomics.
        let consumed = unsafe { AtomicU64::from_ptr(self.consumer.as_ptr().cast()) };
        // SAFETY: as above; the page is read-only, and this code only loads from it.
        let produced = unsafe { AtomicU64::from_ptr(self.producer.as_ptr().cast()) };
        let mut position = consumed.load(Ordering::Relaxed);
        let end = produced.load(Ordering::Acquire);
        let mut published = position;
        let mut count = 0;
        while position < end && count < limit {
            let at = self.page + (position as usize & (self.size - 1));
            // SAFETY: `at` is less than one page plus the buffer's size, so it is inside the
            // mapping.
            let header = unsafe { self.producer.add(at) };
            // SAFETY: records start at multiples of 8, so the header is aligned; it is mapped.
            let header = unsafe { AtomicU32::from_ptr(header.as_ptr().cast()) };
            let word = header.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break;
            }
            let length = (word & !(BUSY | DISCARDED)) as usize;
            // The kernel writes no record longer than the buffer.
            if length > self.size - HEADER {
                break;
            }
            if word & DISCARDED == 0 {
                // SAFETY: the second mapping of the buffer makes the bytes after `at` contiguous.
                let start = unsafe { self.producer.add(at + HEADER) };
                // SAFETY: `length` bytes are mapped after `start`, and the kernel does not write to
                // a committed record before the consumer position passes it.
                let record = unsafe { std::slice::from_raw_parts(start.as_ptr(), length) };
                take(record);
                count += 1;
            }
            position += (length + HEADER).next_multiple_of(8) as u64;
            // The kernel reads the position for each record, so it is not written for each.
            if position - published > (self.size / 8) as u64 {
                published = position;
                consumed.store(position, Ordering::Release);
            }
        }
        consumed.store(position, Ordering::Release);
        count
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (start, bytes) in [
            (self.consumer, self.page),
            (self.producer, self.page + 2 * self.size),
        ] {
            // SAFETY: `new` created the mapping with this size, and no reference into it exists.
            let done = unsafe { munmap(start.cast(), bytes) };
            debug_assert!(done.is_ok(), "munmap(2) of an own mapping: {done:?}");
        }
    }
}
