//! Memory of this process that is reused instead of unmapped, for programs that make and drop many
//! mappings. Once the memory is reserved, such a program makes no mmap(2) calls.
//!
//! - [`Arena`] is sparse memory that records its written pages, and zeroes only these.
//! - [`Region::enter`] makes a thread's small [`RawMapping::anonymous`] mappings parts of one
//!   region. A dropped part is zeroed and used for a later mapping of the same size.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{Errno, PAGE, RawMapping, SysResult};

/// Bytes of a page, as a length.
const PAGE_BYTES: usize = PAGE as usize;
/// The written pages that are zeroed one by one. More of them are returned to the kernel.
const MOST_WRITTEN: usize = 1024;

/// Sparse memory that reads as zeros until it is written, and that records which pages were.
#[derive(Debug)]
pub struct Arena {
    map: Arc<RawMapping>,
    /// A bit for each page.
    written: Box<[AtomicU64]>,
    /// The pages whose bit is set, in no order.
    pages: Mutex<Vec<usize>>,
}

impl Arena {
    /// Reserves `len` bytes. Only written pages use host memory.
    ///
    /// # Errors
    /// `ENOMEM`: no address space is left.
    pub fn new(len: usize) -> SysResult<Self> {
        Ok(Self::over(RawMapping::anonymous_sparse(len)?))
    }

    /// Records the writes to a mapping that reads as zeros.
    pub fn over(map: RawMapping) -> Self {
        let words = map.len().div_ceil(PAGE_BYTES).div_ceil(64);
        Self {
            map: Arc::new(map),
            written: (0..words).map(|_| AtomicU64::new(0)).collect(),
            pages: Mutex::default(),
        }
    }

    /// Returns the memory. A caller that writes to it calls [`mark`](Self::mark).
    pub fn map(&self) -> &Arc<RawMapping> {
        &self.map
    }

    /// Records that bytes are written. Pages outside of the memory are ignored.
    #[inline]
    pub fn mark(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        for page in offset / PAGE_BYTES..=(offset + (len - 1)) / PAGE_BYTES {
            let Some(word) = self.written.get(page / 64) else {
                return;
            };
            let bit = 1 << (page % 64);
            if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                lock(&self.pages).push(page);
            }
        }
    }

    /// Zeroes whole pages that were written. Other pages are not touched.
    ///
    /// # Errors
    /// - `EINVAL`: the range is not whole pages.
    /// - `EFAULT`: it leaves the memory.
    pub fn clear(&self, offset: usize, len: usize) -> SysResult<()> {
        self.clear_by(offset, len, || self.map.discard(offset, len))
    }

    /// As [`clear`](Self::clear). If many pages were written, `discard` zeroes the range.
    ///
    /// # Errors
    /// As [`clear`](Self::clear), and those of `discard`.
    pub fn clear_by(
        &self,
        offset: usize,
        len: usize,
        discard: impl FnOnce() -> SysResult<()>,
    ) -> SysResult<()> {
        self.map.at(offset, len)?;
        if offset % PAGE_BYTES != 0 || len % PAGE_BYTES != 0 {
            return Err(Errno::EINVAL);
        }
        let cleared = offset / PAGE_BYTES..(offset + len) / PAGE_BYTES;
        let mut pages = lock(&self.pages);
        let many = pages.len() > MOST_WRITTEN;
        if many {
            discard()?;
        }
        let mut answer = Ok(());
        pages.retain(|&page| {
            if !cleared.contains(&page) {
                return true;
            }
            if !many {
                // The memory may end within its last page.
                let at = page * PAGE_BYTES;
                let len = PAGE_BYTES.min(self.map.len() - at);
                answer = answer.and(self.map.fill(at, len, 0));
            }
            self.written[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
            false
        });
        answer
    }
}

/// Bytes of a region.
const REGION: usize = 32 << 20;
/// Pages of the largest mapping that is a part of the region.
const MOST_PAGES: usize = 64;

thread_local! {
    static POOL: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

/// The memory of a region, and its free parts.
#[derive(Debug)]
struct Pool {
    map: Arc<RawMapping>,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// The first page that was never a part.
    fresh: usize,
    /// The first pages of dropped parts, by their number of pages.
    free: [Vec<usize>; MOST_PAGES + 1],
    /// Whether each page belongs to a mapping, and how many do.
    is_used: Box<[bool]>,
    used: usize,
}

impl Parts {
    fn take(&mut self, count: usize) -> Option<usize> {
        let dropped = self.free.get_mut(count)?.pop();
        let page = dropped.or_else(|| {
            let page = self.fresh;
            (page + count <= self.is_used.len()).then(|| {
                self.fresh += count;
                page
            })
        })?;
        self.is_used[page..page + count].fill(true);
        self.used += count;
        Some(page)
    }

    fn give(&mut self, page: usize, count: usize) {
        self.is_used[page..page + count].fill(false);
        self.used -= count;
        self.free[count].push(page);
    }
}

/// Returns its part to the region when it is dropped.
struct Lease {
    pool: Arc<Pool>,
    page: usize,
    count: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.pool.parts).give(self.page, self.count);
    }
}

/// Memory for small anonymous mappings. A clone is the same region.
#[derive(Debug, Clone)]
pub struct Region(Arc<Pool>);

/// Ends a thread's use of a region when it is dropped.
#[derive(Debug)]
#[must_use = "the thread uses the region until the guard is dropped"]
pub struct Entered {
    before: Option<Arc<Pool>>,
    // It belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Region {
    /// Reserves a region.
    ///
    /// # Errors
    /// `ENOMEM`: no address space is left.
    pub fn new() -> SysResult<Self> {
        let pool = Pool {
            map: Arc::new(RawMapping::anonymous_sparse(REGION)?),
            parts: Mutex::new(Parts {
                fresh: 0,
                free: [const { Vec::new() }; MOST_PAGES + 1],
                is_used: vec![false; REGION / PAGE_BYTES].into(),
                used: 0,
            }),
        };
        Ok(Self(Arc::new(pool)))
    }

    /// Makes later anonymous mappings of this thread, up to 256 KiB each, parts of the region until
    /// the guard is dropped. Mappings may outlive the guard and may be dropped in any thread.
    pub fn enter(&self) -> Entered {
        Entered {
            before: POOL.replace(Some(Arc::clone(&self.0))),
            _thread: PhantomData,
        }
    }

    /// Pages of the mappings that are parts of the region.
    pub fn pages_in_use(&self) -> usize {
        lock(&self.0.parts).used
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        POOL.set(self.before.take());
    }
}

/// A part of this thread's region for a mapping; `None` if the thread uses none, or it has no room.
pub(crate) fn take(len: usize) -> Option<(Arc<RawMapping>, usize, Arc<dyn Any + Send + Sync>)> {
    let count = len.div_ceil(PAGE_BYTES);
    if !(1..=MOST_PAGES).contains(&count) {
        return None;
    }
    POOL.with_borrow(|pool| {
        let pool = pool.as_ref()?;
        let page = lock(&pool.parts).take(count)?;
        let (map, at) = (Arc::clone(&pool.map), page * PAGE_BYTES);
        let lease = Lease {
            pool: Arc::clone(pool),
            page,
            count,
        };
        map.fill(at, count * PAGE_BYTES, 0).ok()?;
        Some((map, at, Arc::new(lease) as Arc<dyn Any + Send + Sync>))
    })
}

/// Whether whole pages lie in this thread's region, and then whether mappings own all of them.
pub(crate) fn owns(start: usize, span: usize) -> Option<bool> {
    POOL.with_borrow(|pool| {
        let pool = pool.as_ref()?;
        let first = start.checked_sub(pool.map.as_ptr().addr().get())?;
        let end = first.checked_add(span).filter(|&end| end <= pool.map.len())?;
        let parts = lock(&pool.parts);
        let pages = &parts.is_used[first / PAGE_BYTES..end.div_ceil(PAGE_BYTES)];
        Some(pages.iter().all(|&is_used| is_used))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin::populate_for_write;

    #[test]
    fn clear_zeroes_written_pages_alone() {
        let arena = Arena::new(64 << 20).unwrap();
        let page = PAGE_BYTES;
        for at in [0, 5 * page + 7, 9 * page] {
            arena.map().write(at, b"old").unwrap();
            arena.mark(at, 3);
        }
        // Not marked, so that the test sees which pages are touched.
        arena.map().write(6 * page, b"kept").unwrap();
        arena.clear(page, 8 * page).unwrap();
        let read = |at| {
            let mut got = [0; 3];
            arena.map().read(at, &mut got).unwrap();
            got
        };
        assert_eq!(read(0), *b"old", "outside of the range");
        assert_eq!(read(5 * page + 7), [0; 3]);
        assert_eq!(read(6 * page), *b"kep", "it was not marked");
        assert_eq!(read(9 * page), *b"old", "the page after the range");
        assert_eq!(arena.clear(1, page), Err(Errno::EINVAL));
        assert_eq!(arena.clear(64 << 20, page), Err(Errno::EFAULT));
    }

    #[test]
    fn many_written_pages_are_zeroed_too() {
        let arena = Arena::new(64 << 20).unwrap();
        let len = (MOST_WRITTEN + 9) * PAGE_BYTES;
        arena.map().fill(0, len, 7).unwrap();
        arena.mark(0, len);
        arena.clear(0, 64 << 20).unwrap();
        let mut got = [1];
        arena.map().read(len - 1, &mut got).unwrap();
        assert_eq!(got, [0]);
        // A page that was cleared is recorded again.
        arena.map().write(0, b"x").unwrap();
        arena.mark(0, 1);
        arena.clear(0, PAGE_BYTES).unwrap();
        arena.map().read(0, &mut got).unwrap();
        assert_eq!(got, [0]);
    }

    #[test]
    fn caller_discards_many_pages_only() {
        let arena = Arena::over(RawMapping::anonymous_sparse(64 << 20).unwrap());
        for (pages, is_called) in [(1, false), (MOST_WRITTEN, false), (MOST_WRITTEN + 1, true)] {
            arena.mark(0, pages * PAGE_BYTES);
            let mut called = false;
            let discard = || {
                called = true;
                Ok(())
            };
            arena.clear_by(0, 64 << 20, discard).unwrap();
            assert_eq!(called, is_called, "{pages} pages");
        }
        arena.mark(0, (MOST_WRITTEN + 1) * PAGE_BYTES);
        let refused = arena.clear_by(0, PAGE_BYTES, || Err(Errno::ENOMEM));
        assert_eq!(refused, Err(Errno::ENOMEM));
        arena.clear_by(0, PAGE_BYTES, || Err(Errno::EPERM)).unwrap_err();
    }

    #[test]
    fn dropped_mapping_is_reused_and_zeroed() {
        let region = Region::new().unwrap();
        let guard = region.enter();
        let first = RawMapping::anonymous(5000, true).unwrap();
        first.write(4999, b"x").unwrap();
        assert_eq!(first.write(5000, b"x"), Err(Errno::EFAULT), "its own length");
        let start = first.as_ptr().as_ptr().expose_provenance();
        assert_eq!(populate_for_write(start as u64, 5000), Ok(()));
        drop(first);
        let gone = populate_for_write(start as u64, 5000);
        assert_eq!(gone, Err(Errno::EFAULT), "as for memory that is not mapped");
        assert_eq!(region.pages_in_use(), 0);
        let second = RawMapping::anonymous(8192, true).unwrap();
        assert_eq!(region.pages_in_use(), 2);
        assert_eq!(second.as_ptr().as_ptr().addr(), start);
        let mut got = [1];
        second.read(4999, &mut got).unwrap();
        assert_eq!(got, [0], "a new mapping reads as zeros");
        drop(guard);
        second.write(0, b"lives on").unwrap();
        let other = RawMapping::anonymous(8192, true).unwrap();
        assert_ne!(other.as_ptr().as_ptr().addr(), start);
    }
}
