//! Host memory of this crate: pages of the size that was asked for, or a truthful word about what was got instead.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::{PAGE, RawMapping};

use crate::cache::Cache;
use crate::context::lock;

/// Pages in which host memory lies. Larger ones take fewer entries of the card's MMU, and fewer steps to pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of 4 KiB.
    #[default]
    Small,
    /// Pages of 4 KiB, which the kernel was asked to join to huge ones where it can (`MADV_HUGEPAGE`). Whether it did is its own affair.
    Transparent,
    /// Reserved pages of 2 MiB (`MAP_HUGETLB`, `/proc/sys/vm/nr_hugepages`).
    Huge2MiB,
    /// Reserved pages of 1 GiB (`hugepagesz=1G hugepages=N` on the kernel's command line).
    Huge1GiB,
}

impl Pages {
    const ALL: [Self; 4] = [Self::Small, Self::Transparent, Self::Huge2MiB, Self::Huge1GiB];

    /// Bytes of a page that every address of such memory lies in: 4096 for what is joined by the kernel's grace.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Small | Self::Transparent => PAGE,
            Self::Huge2MiB => 2 << 20,
            Self::Huge1GiB => 1 << 30,
        }
    }

    fn map(self, len: usize) -> Result<RawMapping> {
        let answer = match self {
            Self::Small => RawMapping::anonymous(len, true),
            Self::Transparent => RawMapping::anonymous_transparent(len),
            Self::Huge2MiB => RawMapping::anonymous_huge(len, 21),
            Self::Huge1GiB => RawMapping::anonymous_huge(len, 30),
        };
        answer.map_err(|errno| {
            let error =
                Error::from_errno("mmap", errno).because(format!("no {len} bytes of host memory in {self}"));
            match self {
                Self::Huge2MiB => error.helped_by("reserve them: sudo sysctl vm.nr_hugepages=N, 2 MiB each"),
                Self::Huge1GiB => error.helped_by("reserve them at boot: hugepagesz=1G hugepages=N"),
                _ => error,
            }
        })
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "pages of 4 KiB",
            Self::Transparent => "transparent huge pages",
            Self::Huge2MiB => "huge pages of 2 MiB",
            Self::Huge1GiB => "huge pages of 1 GiB",
        })
    }
}

/// What happens where the pages that were asked for are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Otherwise {
    /// The next smaller ones, down to 4 KiB; [`HostBuffer::pages`] and [`HostMapping::pages`](crate::HostMapping::pages) tell which.
    #[default]
    Smaller,
    /// An error.
    Refuse,
}

/// Zeroed memory, present. Device-visible once mapped, so that it is never a slice.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) map: RawMapping,
    pub(crate) pages: Pages,
}

impl Memory {
    pub(crate) fn new(len: usize, pages: Pages, otherwise: Otherwise) -> Result<Self> {
        if len == 0 {
            return Err(
                Error::new(ErrorKind::InvalidInput, "mmap").because("host memory needs at least one byte")
            );
        }
        let ladder = Pages::ALL.into_iter().rev().filter(|&step| step <= pages);
        let mut first = None;
        for step in ladder {
            match step.map(len) {
                Ok(map) => return Ok(Self { map, pages: step }),
                Err(error) if otherwise == Otherwise::Refuse => return Err(error),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(ErrorKind::OutOfMemory, "mmap")))
    }
}

/// Host memory to be mapped by any device, again and again without pinning it again: see [`Device::map`](crate::Device::map).
///
/// Dropping it takes it out of every device's cache of mappings first: a mapping in use keeps the pages until it goes, so that no
/// device ever reaches pages that have become somebody else's.
pub struct HostBuffer {
    memory: Arc<Memory>,
    len: usize,
    caches: Mutex<Vec<Weak<Cache>>>,
}

impl HostBuffer {
    /// Zeroed memory in pages of 4 KiB.
    pub fn new(len: usize) -> Result<Self> {
        Self::with_pages(len, Pages::Small, Otherwise::Refuse)
    }

    /// Zeroed memory in pages of a kind. Reserved pages are taken whole: `len` is what may be used, not what is taken.
    pub fn with_pages(len: usize, pages: Pages, otherwise: Otherwise) -> Result<Self> {
        Ok(Self {
            memory: Arc::new(Memory::new(len, pages, otherwise)?),
            len,
            caches: Mutex::default(),
        })
    }

    /// Bytes that were asked for.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a buffer has at least one byte: none is refused"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pages that it got.
    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    /// The first byte, for foreign functions; by the rules of [`HostMapping::as_ptr`](crate::HostMapping::as_ptr).
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.map.as_ptr()
    }

    /// Copies bytes out. `BadAddress` where the range leaves the buffer.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.inside("HostBuffer::read", offset, into.len())?;
        let answer = self.memory.map.read(offset, into);
        answer.map_err(|errno| Error::from_errno("HostBuffer::read", errno))
    }

    /// Copies bytes in. `BadAddress` where the range leaves the buffer.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.inside("HostBuffer::write", offset, from.len())?;
        let answer = self.memory.map.write(offset, from);
        answer.map_err(|errno| Error::from_errno("HostBuffer::write", errno))
    }

    /// The memory may be larger than the buffer.
    fn inside(&self, operation: &'static str, offset: usize, len: usize) -> Result<()> {
        if self.memory.map.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation)
                .because("the memory belongs to the parent of this process")
                .helped_by("allocate it after the fork"));
        }
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(Error::from_errno(operation, gaudi_seam::Errno::EFAULT)
            .because("the range leaves the buffer")
            .saw(
                format!("{len} bytes at {offset}"),
                format!("within {} bytes", self.len),
            ))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// A cache has mappings of the memory from now on.
    pub(crate) fn known_to(&self, cache: &Arc<Cache>) {
        let mut caches = lock(&self.caches);
        if !caches.iter().any(|known| known.as_ptr() == Arc::as_ptr(cache)) {
            caches.retain(|known| known.strong_count() > 0);
            caches.push(Arc::downgrade(cache));
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let start = self.as_ptr().addr().get();
        // Not by its lock: in a fork child another thread may have held it for ever.
        let caches = self.caches.get_mut().unwrap_or_else(PoisonError::into_inner);
        for cache in caches.drain(..).filter_map(|cache| cache.upgrade()) {
            cache.let_go(start, self.len);
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes in {})", self.len, self.memory.pages)
    }
}
