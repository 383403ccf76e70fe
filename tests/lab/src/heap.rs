//! `/dev/dma_heap/*`: allocates dma-bufs of ordinary pages (linux/dma-heap.h).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the struct is plain data and lives across the call"
)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use gaudi_sys::fd::errno_of;
use gaudi_sys::{Errno, SysResult};
use gaudi_uapi::dmabuf::DmaHeapAllocationData;

mod raw {
    use gaudi_uapi::dmabuf::DmaHeapAllocationData;
    nix::ioctl_readwrite!(dma_heap_ioctl_alloc, b'H', 0, DmaHeapAllocationData);
}

/// Opens a heap by its name.
pub fn open(name: &str) -> SysResult<OwnedFd> {
    let path = format!("/dev/dma_heap/{name}");
    File::open(path).map(OwnedFd::from).map_err(errno_of)
}

/// Asks a heap for `len` bytes with these flags of open(2) and of the heap.
pub fn allocate(heap: impl AsFd, len: u64, fd_flags: u32, heap_flags: u64) -> SysResult<OwnedFd> {
    let mut data = DmaHeapAllocationData {
        len,
        fd: 0,
        fd_flags,
        heap_flags,
    };
    // SAFETY: the heap is open for the whole call and the argument is a live `struct dma_heap_allocation_data`.
    unsafe { raw::dma_heap_ioctl_alloc(heap.as_fd().as_raw_fd(), &raw mut data) }?;
    let fd = i32::try_from(data.fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: a successful DMA_HEAP_IOCTL_ALLOC returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
