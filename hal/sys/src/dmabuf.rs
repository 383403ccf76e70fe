//! The ioctls of a dma-buf and of udmabuf (linux/dma-buf.h, linux/udmabuf.h).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use gaudi_uapi::dmabuf::{DmaBufSync, DmaBufSyncFlags, UdmabufCreate, UdmabufFlags};

use crate::fd::errno_of;
use crate::{Errno, Memfd, SysResult};

mod raw {
    use gaudi_uapi::dmabuf::{DmaBufSync, UdmabufCreate};
    nix::ioctl_write_ptr!(dma_buf_ioctl_sync, b'b', 0, DmaBufSync);
    nix::ioctl_write_ptr!(udmabuf_create_ioctl, b'u', 0x42, UdmabufCreate);
}

/// `DMA_BUF_IOCTL_SYNC` with `DMA_BUF_SYNC_START`: CPU access of the given directions begins.
pub fn sync_start(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<()> {
    sync(fd, directions)
}

/// `DMA_BUF_IOCTL_SYNC` with `DMA_BUF_SYNC_END`: CPU access of the given directions is over.
pub fn sync_end(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<()> {
    sync(fd, directions | DmaBufSyncFlags::END)
}

fn sync(fd: impl AsFd, flags: DmaBufSyncFlags) -> SysResult<()> {
    let argument = DmaBufSync { flags };
    loop {
        // SAFETY: the fd is open for the whole call and the argument is a live `struct dma_buf_sync`.
        match unsafe { raw::dma_buf_ioctl_sync(fd.as_fd().as_raw_fd(), &argument) } {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            answer => return answer.map(drop),
        }
    }
}

/// Opens `/dev/udmabuf`. `ENOENT` where the kernel has no udmabuf, `EACCES` where the user may not.
pub fn udmabuf_open() -> SysResult<OwnedFd> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
        .map(OwnedFd::from)
        .map_err(errno_of)
}

/// Makes a real dma-buf of a page-aligned window of a sealed memfd (`UDMABUF_CREATE`). `EINVAL` where the window is not page
/// aligned, leaves the file, or is larger than the module's `size_limit_mb`.
pub fn udmabuf_create(udmabuf: impl AsFd, memfd: &Memfd, offset: u64, size: u64) -> SysResult<OwnedFd> {
    let memfd_number = u32::try_from(memfd.as_fd().as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let argument = UdmabufCreate {
        memfd: memfd_number,
        flags: UdmabufFlags::CLOEXEC,
        offset,
        size,
    };
    // SAFETY: both fds are open for the whole call and the argument is a live `struct udmabuf_create`.
    let raw = unsafe { raw::udmabuf_create_ioctl(udmabuf.as_fd().as_raw_fd(), &argument) }?;
    // SAFETY: a successful UDMABUF_CREATE returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
