//! Host memory of this crate, and the size of its pages.

use std::fmt;

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::{PAGE, RawMapping};

/// The page size of host memory. Larger pages need fewer entries of the card's MMU, and fewer steps
/// to pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of 4 KiB.
    #[default]
    Small,
    /// Pages of 4 KiB that the kernel may join to huge ones (`MADV_HUGEPAGE`).
    Transparent,
    /// Reserved pages of 2 MiB (`MAP_HUGETLB`, `/proc/sys/vm/nr_hugepages`).
    Huge2MiB,
    /// Reserved pages of 1 GiB (`hugepagesz=1G hugepages=N` on the kernel's command line).
    Huge1GiB,
}

impl Pages {
    const ALL: [Self; 4] = [Self::Small, Self::Transparent, Self::Huge2MiB, Self::Huge1GiB];

    /// Returns the guaranteed page size in bytes: 4096 for transparent huge pages.
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

/// What an allocation does if the requested pages are not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fallback {
    /// Uses the next smaller pages, down to 4 KiB. [`HostBuffer::pages`](crate::HostBuffer::pages)
    /// and [`HostMapping::pages`](crate::HostMapping::pages) report which.
    #[default]
    Smaller,
    /// Fails.
    Refuse,
}

/// Zeroed, populated memory. A device can write to it once it is mapped, so it is never a slice.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) map: RawMapping,
    pub(crate) pages: Pages,
}

impl Memory {
    /// # Errors
    /// - `InvalidInput`: `len` is 0.
    /// - `OutOfMemory`, or the error of `mmap`, for the first kind of pages that was tried.
    pub(crate) fn new(len: usize, pages: Pages, fallback: Fallback) -> Result<Self> {
        if len == 0 {
            return Err(
                Error::new(ErrorKind::InvalidInput, "mmap").because("host memory needs at least one byte")
            );
        }
        let mut first = None;
        for pages in Pages::ALL.into_iter().rev().filter(|&smaller| smaller <= pages) {
            match pages.map(len) {
                Ok(map) => return Ok(Self { map, pages }),
                Err(error) if fallback == Fallback::Refuse => return Err(error),
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) => Err(error),
            None => unreachable!("every kind of pages is at least Small, which is tried"),
        }
    }
}
