//! Host memory for the engines of any device.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use gaudi_seam::{Errno, Error, ErrorKind, Result};

use crate::cache::Cache;
use crate::pages::{Fallback, Memory, Pages};
use crate::shared::{exclusive, lock};

/// Host memory that each device maps once, with [`Device::map`](crate::Device::map).
///
/// A drop removes it from every device's cache of mappings. A mapping in use holds the pages, so no
/// device accesses pages that were freed.
pub struct HostBuffer {
    memory: Arc<Memory>,
    len: usize,
    /// The caches that may have a mapping of it.
    caches: Mutex<Vec<Weak<Cache>>>,
}

impl HostBuffer {
    /// Allocates zeroed memory in pages of 4 KiB.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0.
    /// - `OutOfMemory`.
    pub fn new(len: usize) -> Result<Self> {
        Self::with_pages(len, Pages::Small, Fallback::Refuse)
    }

    /// Allocates zeroed memory in pages of a kind. Reserved pages are allocated whole; `len` bytes
    /// can be used.
    ///
    /// # Errors
    /// As [`new`](Self::new), with advice on how to reserve pages.
    pub fn with_pages(len: usize, pages: Pages, fallback: Fallback) -> Result<Self> {
        Ok(Self {
            memory: Arc::new(Memory::new(len, pages, fallback)?),
            len,
            caches: Mutex::default(),
        })
    }

    /// Returns the requested number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a buffer has at least one byte: 0 bytes are refused"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the pages of the memory.
    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    /// Returns the first byte, for foreign functions. The rules of
    /// [`HostMapping::as_ptr`](crate::HostMapping::as_ptr) apply.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.map.as_ptr()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// - `BadAddress`: the range leaves the buffer.
    /// - `Forked`.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        const OP: &str = "HostBuffer::read";
        self.check(OP, offset, into.len())?;
        let answer = self.memory.map.read(offset, into);
        answer.map_err(|errno| Error::from_errno(OP, errno))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        const OP: &str = "HostBuffer::write";
        self.check(OP, offset, from.len())?;
        let answer = self.memory.map.write(offset, from);
        answer.map_err(|errno| Error::from_errno(OP, errno))
    }

    /// Checks the process and the range. The memory may be larger than the buffer.
    fn check(&self, operation: &'static str, offset: usize, len: usize) -> Result<()> {
        if self.memory.map.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation)
                .because("the memory belongs to the parent of this process")
                .helped_by("allocate it after the fork"));
        }
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(Error::from_errno(operation, Errno::EFAULT)
            .because("the range leaves the buffer")
            .saw(
                format!("{len} bytes at {offset}"),
                format!("within {} bytes", self.len),
            ))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Records a cache that has a mapping of the memory.
    pub(crate) fn add_cache(&self, cache: &Arc<Cache>) {
        let mut caches = lock(&self.caches);
        if !caches.iter().any(|known| known.as_ptr() == Arc::as_ptr(cache)) {
            caches.retain(|known| known.strong_count() > 0);
            caches.push(Arc::downgrade(cache));
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let start = self.as_ptr();
        for cache in exclusive(&mut self.caches).drain(..) {
            if let Some(cache) = cache.upgrade() {
                cache.invalidate(start, self.len);
            }
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes in {})", self.len, self.memory.pages)
    }
}
