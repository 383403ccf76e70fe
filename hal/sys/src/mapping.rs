//! Memory that others may write to: raw mappings with bounds, never slices.

#![expect(
    unsafe_code,
    reason = "copies to and from shared memory go through raw pointers"
)]

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::fd::errno_of;
use crate::fork::OwnerProcess;
use crate::{Errno, SysResult, arena, shared};

/// A mapping that a device or another process may change at any time; unmapped on drop.
///
/// All access copies bytes or goes through atomics; a reference to the memory itself is never made.
/// Threads may read and write one range at the same time: a reader then gets any mixture of old and
/// new bytes ([`shared`]).
///
/// A mapping is valid in the process that created it. A fork child may have a hole there, or
/// another mapping: drivers map with `VM_DONTCOPY`, and registered memory is `MADV_DONTFORK`. So in
/// a fork child every access is `EFAULT`, and drop does not unmap.
#[derive(Debug)]
pub struct RawMapping {
    /// `None` if the mapping is empty.
    source: Option<Source>,
    len: usize,
    owner: OwnerProcess,
}

#[derive(Debug)]
enum Source {
    Map(MmapRaw),
    /// The bytes from `at` of another mapping.
    Part {
        whole: Arc<RawMapping>,
        at: usize,
        /// Held as long as the part is used.
        _lease: Arc<dyn Any + Send + Sync>,
    },
}

impl Drop for RawMapping {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            std::mem::forget(self.source.take());
        }
    }
}

impl RawMapping {
    /// An empty range needs no mapping.
    fn of(len: usize, map: impl FnOnce() -> std::io::Result<MmapRaw>) -> SysResult<Self> {
        Ok(Self {
            source: (len > 0)
                .then(map)
                .transpose()
                .map_err(errno_of)?
                .map(Source::Map),
            len,
            owner: OwnerProcess::current(),
        })
    }

    fn zeroed(len: usize, with: impl FnOnce(&mut MmapOptions) -> &mut MmapOptions) -> SysResult<Self> {
        let map = || with(MmapOptions::new().len(len)).map_anon().map(MmapRaw::from);
        Self::of(len, map)
    }

    /// Maps `len` bytes of `fd` from `offset`, shared, readable and writable. Sparse files stay
    /// sparse.
    ///
    /// # Errors
    /// mmap(2)'s: `EINVAL` for a file without mmap.
    pub fn of_fd(fd: impl AsFd, offset: u64, len: usize) -> SysResult<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len).no_reserve_swap();
        Self::of(len, || options.map_raw(fd.as_fd().as_raw_fd()))
    }

    /// Returns `len` bytes of another mapping from `at`, which stays mapped while the part lives.
    /// `lease` is dropped with the part.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the mapping.
    pub fn part_of(
        whole: &Arc<Self>,
        at: usize,
        len: usize,
        lease: Arc<dyn Any + Send + Sync>,
    ) -> SysResult<Self> {
        whole.at(at, len)?;
        Ok(Self::part(Arc::clone(whole), at, len, lease))
    }

    fn part(whole: Arc<Self>, at: usize, len: usize, lease: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            owner: whole.owner,
            source: Some(Source::Part {
                whole,
                at,
                _lease: lease,
            }),
            len,
        }
    }

    /// Maps zeroed memory of this process, page aligned. With `populate` its pages are present.
    /// A thread that reuses memory ([`arena::Region`]) gets a part of its region.
    ///
    /// # Errors
    /// mmap(2)'s: `ENOMEM`.
    pub fn anonymous(len: usize, populate: bool) -> SysResult<Self> {
        if let Some((whole, at, lease)) = arena::take(len) {
            return Ok(Self::part(whole, at, len, lease));
        }
        Self::zeroed(len, |options| if populate { options.populate() } else { options })
    }

    /// Maps zeroed memory of this process. It uses host memory only where it is written, and
    /// reserves none.
    ///
    /// # Errors
    /// `ENOMEM`: no address space is left.
    pub fn anonymous_sparse(len: usize) -> SysResult<Self> {
        Self::zeroed(len, MmapOptions::no_reserve_swap)
    }

    /// Maps zeroed memory of this process in reserved huge pages of `1 << page_bits` bytes
    /// (`MAP_HUGETLB`, mmap(2)), all present; `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// - `ENOMEM`: not enough pages are reserved.
    /// - `EINVAL`: the processor has no pages of this size.
    pub fn anonymous_huge(len: usize, page_bits: u8) -> SysResult<Self> {
        let page = 1_usize.checked_shl(page_bits.into()).ok_or(Errno::EINVAL)?;
        let len = len.checked_next_multiple_of(page).ok_or(Errno::ENOMEM)?;
        Self::zeroed(len, |options| options.huge(Some(page_bits)).populate())
    }

    /// Maps zeroed memory of this process, all present, with the advice to use huge pages
    /// (`MADV_HUGEPAGE`, madvise(2)).
    ///
    /// # Errors
    /// `EINVAL`: the kernel has no transparent huge pages.
    pub fn anonymous_transparent(len: usize) -> SysResult<Self> {
        let mapping = Self::zeroed(len, |options| options)?;
        if let Some(Source::Map(map)) = &mapping.source {
            map.advise(Advice::HugePage).map_err(errno_of)?;
            map.advise(Advice::PopulateWrite).map_err(errno_of)?;
        }
        Ok(mapping)
    }

    /// Bytes in the mapping.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the calling process is a fork child of the process that made the mapping.
    pub fn is_foreign(&self) -> bool {
        self.owner.is_foreign()
    }

    /// The first byte; dangling where the mapping is empty. Valid for `len` bytes as long as `self`
    /// lives, in the process that created the mapping.
    pub fn as_ptr(&self) -> NonNull<u8> {
        let start = match &self.source {
            None => None,
            Some(Source::Map(map)) => NonNull::new(map.as_mut_ptr()),
            // SAFETY: `part_of` and `arena::take` checked that the part lies in the mapping, which
            // is one allocated object.
            Some(Source::Part { whole, at, .. }) => Some(unsafe { whole.as_ptr().add(*at) }),
        };
        start.unwrap_or(NonNull::dangling())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the mapping.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> SysResult<()> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `at` proved that the range lies in this live mapping, to which no
        // reference exists.
        unsafe { shared::copy_out(from, into) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the mapping.
    pub fn write(&self, offset: usize, from: &[u8]) -> SysResult<()> {
        let to = self.at(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { shared::copy_in(to, from) };
        Ok(())
    }

    /// Copies `len` bytes from another mapping; the ranges may overlap.
    ///
    /// # Errors
    /// `EFAULT`: a range leaves its mapping.
    pub fn copy_from(
        &self,
        offset: usize,
        source: &RawMapping,
        source_offset: usize,
        len: usize,
    ) -> SysResult<()> {
        let (to, from) = (self.at(offset, len)?, source.at(source_offset, len)?);
        // SAFETY: as in `read`, of both ranges, which may overlap.
        unsafe { shared::copy_within(to, from, len) };
        Ok(())
    }

    /// Sets `len` bytes to `value`.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the mapping.
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> SysResult<()> {
        let to = self.at(offset, len)?;
        // SAFETY: as in `read`.
        unsafe { shared::fill(to, len, value) };
        Ok(())
    }

    /// Frees whole pages of anonymous memory, which read as zeros afterwards (`MADV_DONTNEED`,
    /// madvise(2)).
    ///
    /// # Errors
    /// - `EINVAL`: the range is not whole pages.
    /// - `EFAULT`: it leaves the mapping.
    pub fn discard(&self, offset: usize, len: usize) -> SysResult<()> {
        self.at(offset, len)?;
        let page = usize::try_from(crate::PAGE).map_err(|_| Errno::EINVAL)?;
        if offset % page != 0 || len % page != 0 {
            return Err(Errno::EINVAL);
        }
        let map = match &self.source {
            Some(Source::Map(map)) if len > 0 => map,
            Some(Source::Part { .. }) => return self.fill(offset, len, 0),
            _ => return Ok(()),
        };
        // SAFETY: the range lies in this live mapping, to which no reference exists. Other threads
        // that access it at the same time read old bytes or zeros.
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) }.map_err(errno_of)
    }

    /// Loads a 32-bit word that other processes or devices change, for polling.
    ///
    /// # Errors
    /// - `EFAULT`: the word leaves the mapping.
    /// - `EINVAL`: it is not aligned to 4.
    pub fn load_u32(&self, offset: usize, order: Ordering) -> SysResult<u32> {
        let word = self.aligned::<AtomicU32>(offset)?;
        // SAFETY: in range and aligned; an atomic may be shared with other writers.
        Ok(unsafe { word.as_ref() }.load(order))
    }

    /// Loads a 64-bit word that other processes or devices change, for polling.
    ///
    /// # Errors
    /// - `EFAULT`: the word leaves the mapping.
    /// - `EINVAL`: it is not aligned to 8.
    pub fn load_u64(&self, offset: usize, order: Ordering) -> SysResult<u64> {
        let word = self.aligned::<AtomicU64>(offset)?;
        // SAFETY: in range and aligned; an atomic may be shared with other writers.
        Ok(unsafe { word.as_ref() }.load(order))
    }

    /// Returns the address of `len` bytes at `offset`.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the mapping, or this is a fork child.
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> SysResult<NonNull<u8>> {
        if self.owner.is_foreign() {
            return Err(Errno::EFAULT);
        }
        match offset.checked_add(len) {
            // SAFETY: the offset stays inside (or one past) the mapping, which is one allocated
            // object.
            Some(end) if end <= self.len => Ok(unsafe { self.as_ptr().add(offset) }),
            _ => Err(Errno::EFAULT),
        }
    }

    fn aligned<T>(&self, offset: usize) -> SysResult<NonNull<T>> {
        let at = self.at(offset, size_of::<T>())?.cast::<T>();
        at.is_aligned().then_some(at).ok_or(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memfd;

    #[test]
    fn mappings_of_one_file_share_bytes() {
        let file = Memfd::sparse(c"two", 8192).unwrap();
        let a = RawMapping::of_fd(&file, 0, 8192).unwrap();
        let b = RawMapping::of_fd(&file, 4096, 4096).unwrap();
        a.write(4100, b"seen").unwrap();
        let mut got = [0; 4];
        b.read(4, &mut got).unwrap();
        assert_eq!(
            &got, b"seen",
            "bytes written through one mapping are read through the other"
        );
    }

    #[test]
    fn every_access_past_the_end_is_efault() {
        let map = RawMapping::anonymous(4096, false).unwrap();
        let mut one = [0; 1];
        assert_eq!(map.read(4096, &mut one), Err(Errno::EFAULT));
        assert_eq!(map.write(usize::MAX, &one), Err(Errno::EFAULT));
        assert_eq!(map.fill(1, 4096, 0), Err(Errno::EFAULT));
        assert_eq!(map.load_u32(4093, Ordering::Relaxed), Err(Errno::EFAULT));
        assert_eq!(map.load_u32(2, Ordering::Relaxed), Err(Errno::EINVAL));
        assert_eq!(
            map.read(4096, &mut []),
            Ok(()),
            "an empty access at the end is allowed"
        );
    }

    #[test]
    fn discarded_pages_read_as_zeros() {
        let map = RawMapping::anonymous_sparse(3 * 4096).unwrap();
        map.fill(0, 3 * 4096, 7).unwrap();
        map.discard(4096, 4096).unwrap();
        for (at, byte) in [(4095, 7), (4096, 0), (8191, 0), (8192, 7)] {
            let mut got = [1];
            map.read(at, &mut got).unwrap();
            assert_eq!(got, [byte], "byte {at}");
        }
        assert_eq!(map.discard(1, 4096), Err(Errno::EINVAL));
        assert_eq!(map.discard(8192, 8192), Err(Errno::EFAULT));
    }

    #[test]
    fn huge_pages_map_or_fail_plainly() {
        for made in [
            RawMapping::anonymous_huge(100, 21),
            RawMapping::anonymous_transparent((4 << 20) + 5),
        ] {
            match made {
                Ok(map) => {
                    map.write(3, b"seen").unwrap();
                    let mut got = [0; 4];
                    map.read(3, &mut got).unwrap();
                    assert_eq!(&got, b"seen");
                }
                // None reserved; a kernel without them.
                Err(errno) => assert!(matches!(errno, Errno::ENOMEM | Errno::EINVAL), "{errno}"),
            }
        }
        assert!(
            RawMapping::anonymous_huge(1, 13).is_err(),
            "no processor here has pages of 8 KiB"
        );
        assert!(
            RawMapping::anonymous_huge(usize::MAX, 21).is_err(),
            "no length wraps"
        );
    }

    #[test]
    fn an_empty_mapping_is_a_mapping() {
        let map = RawMapping::anonymous(0, true).unwrap();
        assert!(map.is_empty());
        assert_eq!(map.write(0, &[]), Ok(()));
    }
}
