//! `/dev/dma_heap/*`: allocates dma-bufs of ordinary pages (linux/dma-heap.h).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the struct is plain data and lives across the call"
)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gaudi_uapi::dmabuf::{DMA_HEAP_IOCTL_ALLOC, DmaHeapAllocationData};
use gaudi_uapi::memory::OpenFlags;

use crate::dmabuf::is_dmabuf;
use crate::fd::errno_of;
use crate::ioctl::{ioctl, own};
use crate::{Errno, SysResult};

/// Where the kernel puts a node for each heap.
pub const FOLDER: &str = "/dev/dma_heap";

/// Returns the heaps of this machine by name, sorted: `system`, `default_cma_region`, …
///
/// # Errors
/// `ENOENT`: the kernel has none.
pub fn list() -> SysResult<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(FOLDER).map_err(errno_of)? {
        // A name that is not UTF-8 cannot be passed to `open`.
        names.extend(entry.map_err(errno_of)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Opens a heap by its name.
///
/// # Errors
/// - `EINVAL`: the name is a path.
/// - `ENOENT`: there is no such heap.
pub fn open(name: &str) -> SysResult<OwnedFd> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(Errno::EINVAL);
    }
    let path = format!("{FOLDER}/{name}");
    File::open(path).map(OwnedFd::from).map_err(errno_of)
}

/// Allocates `len` bytes of a heap, rounded up to pages, with these flags of open(2) and of the
/// heap.
///
/// The system heap has no limit: for a length beyond free memory the kernel's OOM killer ends
/// processes. The caller checks first.
///
/// # Errors
/// - `EINVAL`: `len` is 0, or rounding it wraps.
/// - `ENOMEM`: the heap has no memory left.
pub fn allocate(heap: impl AsFd, len: u64, fd_flags: u32, heap_flags: u64) -> SysResult<OwnedFd> {
    let mut data = DmaHeapAllocationData {
        len,
        // The kernel refuses any other (dma-heap.c, dma_heap_ioctl_allocate).
        fd: 0,
        fd_flags: OpenFlags(fd_flags),
        heap_flags,
    };
    // SAFETY: the argument is a live `struct
    // dma_heap_allocation_data`.
    unsafe { ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &raw mut data) }?;
    let fd = i32::try_from(data.fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: borrowed for one question, which has an answer for any number.
    if !is_dmabuf(unsafe { BorrowedFd::borrow_raw(fd) })? {
        // Another driver uses this ioctl number and left the 0, which may be standard input.
        return Err(Errno::EBADF);
    }
    // SAFETY: a successful DMA_HEAP_IOCTL_ALLOC returns a new descriptor that only this process
    // owns.
    unsafe { own(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_as_heap_name_is_einval() {
        for wrong in ["", ".", "..", "../udmabuf", "a/b"] {
            assert_eq!(open(wrong).unwrap_err(), Errno::EINVAL, "{wrong:?}");
        }
        assert_eq!(open("no-such-heap").unwrap_err(), Errno::ENOENT);
    }
}
