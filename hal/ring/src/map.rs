//! A mapping of the session's memory, and atomic access to its words.

#![allow(unsafe_code, reason = "memory that is shared with other processes")]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping. Words are at multiples of 8 bytes.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is accessed with atomics, or between a reservation and its publication.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of a file that is sealed at that size at least.
    pub(crate) fn new(file: impl AsFd, len: usize) -> Result<Self, Errno> {
        let length = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other mapping.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// Returns the word at a byte offset.
    ///
    /// # Panics
    /// If the offset is not a multiple of 8 inside the mapping: the caller masks it.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset % 8 == 0 && offset < self.len,
            "a word outside of the mapping"
        );
        // SAFETY: the offset is inside the mapping.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: the word is aligned, inside the mapping that lives as long as `self`, and all
        // processes access it atomically.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// Returns the address of a range of bytes.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "a range outside of the mapping"
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Moves words out: appends them to `out` and zeroes them. Both ends are multiples of 8.
    pub(crate) fn take(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        for at in (offset..offset + len).step_by(8) {
            let word = self.word(at);
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            word.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn zero(&self, offset: usize, len: usize) {
        for at in (offset..offset + len).step_by(8) {
            self.word(at).store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
