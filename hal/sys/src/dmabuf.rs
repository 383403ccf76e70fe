//! The ioctls of a dma-buf, of udmabuf and of VFIO's export (linux/dma-buf.h, linux/udmabuf.h, linux/vfio.h).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use gaudi_uapi::dmabuf::{
    DMA_BUF_MAGIC, DMA_BUF_NAME_LEN, DmaBufExportSyncFile, DmaBufImportSyncFile, DmaBufSync, DmaBufSyncFlags,
    UdmabufCreate, UdmabufCreateItem, UdmabufCreateList, UdmabufFlags, VFIO_DEVICE_FEATURE,
    VFIO_DEVICE_FEATURE_DMA_BUF, VFIO_DEVICE_FEATURE_GET, VFIO_DEVICE_FEATURE_PROBE, VfioDeviceFeature,
    VfioDeviceFeatureDmaBuf, VfioRegionDmaRange,
};
use nix::libc;

use crate::fd::errno_of;
use crate::{Errno, Memfd, SysResult};

mod raw {
    use gaudi_uapi::dmabuf::{
        DmaBufExportSyncFile, DmaBufImportSyncFile, DmaBufSync, UdmabufCreate, UdmabufCreateList,
    };
    nix::ioctl_write_ptr!(dma_buf_ioctl_sync, b'b', 0, DmaBufSync);
    nix::ioctl_write_ptr!(dma_buf_set_name_b, b'b', 1, u64);
    nix::ioctl_readwrite!(dma_buf_ioctl_export_sync_file, b'b', 2, DmaBufExportSyncFile);
    nix::ioctl_write_ptr!(dma_buf_ioctl_import_sync_file, b'b', 3, DmaBufImportSyncFile);
    nix::ioctl_write_ptr!(udmabuf_create_ioctl, b'u', 0x42, UdmabufCreate);
    nix::ioctl_write_ptr!(udmabuf_create_list_ioctl, b'u', 0x43, UdmabufCreateList);
}

/// `DMA_BUF_IOCTL_SYNC` with `DMA_BUF_SYNC_START`: CPU access of the given directions begins. Waits for the fences of work that
/// writes (and, where the CPU will write, reads) the buffer.
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

/// Whether a descriptor is a dma-buf: its file system is the one that the kernel makes them in, or, before Linux 5.3, it is an anonymous
/// inode of that name. Nobody else can make a file that answers so; a name alone, as `/proc` shows it, any file can have.
pub fn is_dmabuf(fd: impl AsFd) -> SysResult<bool> {
    if nix::sys::statfs::fstatfs(fd.as_fd())?.filesystem_type().0 as u64 == u64::from(DMA_BUF_MAGIC) {
        return Ok(true);
    }
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    match std::fs::read_link(link) {
        // The link of a named file begins with a slash.
        Ok(link) => Ok(link.as_os_str() == "anon_inode:dmabuf"),
        // Without /proc the old kernels' ones cannot be told.
        Err(_) => Ok(false),
    }
}

/// `DMA_BUF_SET_NAME`: the name that `/proc` and debugfs show. `EINVAL` from 33 bytes on, its zero included.
pub fn set_name(fd: impl AsFd, name: &CStr) -> SysResult<()> {
    if name.to_bytes_with_nul().len() > DMA_BUF_NAME_LEN {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the fd is open for the whole call, and the kernel reads a text of at most 32 bytes that ends with a zero.
    unsafe { raw::dma_buf_set_name_b(fd.as_fd().as_raw_fd(), name.as_ptr().cast()) }.map(drop)
}

/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE` (Linux 6.0): a sync_file of the work that must be done before access of these directions.
/// `EINVAL` for no direction, `ENOTTY` where the kernel or the descriptor has no such ioctl.
pub fn export_sync_file(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<OwnedFd> {
    let flags = u32::try_from(directions.0).map_err(|_| Errno::EINVAL)?;
    let mut argument = DmaBufExportSyncFile { flags, fd: -1 };
    // SAFETY: the fd is open for the whole call and the argument is a live `struct dma_buf_export_sync_file`.
    unsafe { raw::dma_buf_ioctl_export_sync_file(fd.as_fd().as_raw_fd(), &raw mut argument) }?;
    if argument.fd < 0 {
        // The descriptor is no dma-buf, and took the number for something else.
        return Err(Errno::EBADF);
    }
    // SAFETY: on success the kernel has put a new descriptor there that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(argument.fd) })
}

/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE` (Linux 6.0): whoever begins access that conflicts with these directions waits for the sync_file's
/// fences. `EINVAL` for no direction and for a descriptor that is no sync_file.
pub fn import_sync_file(fd: impl AsFd, directions: DmaBufSyncFlags, sync_file: impl AsFd) -> SysResult<()> {
    let argument = DmaBufImportSyncFile {
        flags: u32::try_from(directions.0).map_err(|_| Errno::EINVAL)?,
        fd: sync_file.as_fd().as_raw_fd(),
    };
    // SAFETY: both fds are open for the whole call and the argument is a live `struct dma_buf_import_sync_file`.
    unsafe { raw::dma_buf_ioctl_import_sync_file(fd.as_fd().as_raw_fd(), &argument) }.map(drop)
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
/// aligned, leaves the file, or is larger than the module's `size_limit_mb`. All its pages are allocated and pinned.
pub fn udmabuf_create(udmabuf: impl AsFd, memfd: &Memfd, offset: u64, size: u64) -> SysResult<OwnedFd> {
    let argument = UdmabufCreate {
        memfd: number(memfd.as_fd())?,
        flags: UdmabufFlags::CLOEXEC,
        offset,
        size,
    };
    // SAFETY: both fds are open for the whole call and the argument is a live `struct udmabuf_create`.
    let raw = unsafe { raw::udmabuf_create_ioctl(udmabuf.as_fd().as_raw_fd(), &argument) }?;
    // SAFETY: a successful UDMABUF_CREATE returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// One part of a dma-buf that [`udmabuf_create_list`] makes.
#[derive(Debug, Clone, Copy)]
pub struct UdmabufPart<'a> {
    /// The file whose pages it shows.
    pub memfd: &'a Memfd,
    /// First byte, page-aligned.
    pub offset: u64,
    /// Bytes, page-aligned.
    pub size: u64,
}

/// Makes one dma-buf of several windows, in this order (`UDMABUF_CREATE_LIST`). Refused as [`udmabuf_create`], and `EINVAL` where there
/// are none or more than the module's `list_limit`.
pub fn udmabuf_create_list(udmabuf: impl AsFd, parts: &[UdmabufPart<'_>]) -> SysResult<OwnedFd> {
    const HEAD: usize = size_of::<UdmabufCreateList>() / size_of::<u64>();
    const ITEM: usize = size_of::<UdmabufCreateItem>() / size_of::<u64>();
    let head = UdmabufCreateList {
        flags: UdmabufFlags::CLOEXEC,
        count: u32::try_from(parts.len()).map_err(|_| Errno::EINVAL)?,
    };
    // Head and items in one piece of memory, in words: both have no padding and an alignment of 8 at most.
    let mut words = Vec::with_capacity(HEAD + ITEM * parts.len());
    words.push(u64::from(head.flags.0) | u64::from(head.count) << 32);
    for part in parts {
        words.extend([u64::from(number(part.memfd.as_fd())?), part.offset, part.size]);
    }
    let fd = udmabuf.as_fd().as_raw_fd();
    // SAFETY: the fd is open for the whole call; the words are a live `struct udmabuf_create_list` and as many items as it says.
    let raw = unsafe { raw::udmabuf_create_list_ioctl(fd, words.as_ptr().cast()) }?;
    // SAFETY: a successful UDMABUF_CREATE_LIST returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn number(fd: BorrowedFd<'_>) -> SysResult<u32> {
    u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF)
}

/// Whether a VFIO device exports its regions as dma-bufs (`VFIO_DEVICE_FEATURE_PROBE`): `ENOTTY` where the kernel is older than
/// Linux 6.19 or the descriptor is no VFIO device.
pub fn vfio_probe(device: impl AsFd) -> SysResult<()> {
    let head = VfioDeviceFeature {
        argsz: size_of::<VfioDeviceFeature>() as u32,
        flags: VFIO_DEVICE_FEATURE_PROBE | VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_BUF,
    };
    let words = [u64::from(head.argsz) | u64::from(head.flags) << 32];
    vfio_feature(device.as_fd(), &words).map(drop)
}

/// Exports ranges of a BAR as one dma-buf (`VFIO_DEVICE_FEATURE_DMA_BUF`), close-on-exec.
///
/// `ENODEV` where the device has no such BAR, `EINVAL` where a range is empty, not page-aligned or leaves the BAR, or where peer-to-peer DMA
/// is not possible with it, `ENOTTY` where the kernel is older than Linux 6.19.
pub fn vfio_export(device: impl AsFd, bar: u32, ranges: &[VfioRegionDmaRange]) -> SysResult<OwnedFd> {
    let count = u32::try_from(ranges.len()).map_err(|_| Errno::EINVAL)?;
    let bytes = size_of::<VfioDeviceFeature>() + size_of::<VfioDeviceFeatureDmaBuf>() + size_of_val(ranges);
    let head = VfioDeviceFeature {
        argsz: u32::try_from(bytes).map_err(|_| Errno::EINVAL)?,
        flags: VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_BUF,
    };
    let open_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    let mut words = Vec::with_capacity(bytes / size_of::<u64>());
    words.extend([
        u64::from(head.argsz) | u64::from(head.flags) << 32,
        u64::from(bar) | u64::from(open_flags) << 32,
        u64::from(count) << 32,
    ]);
    for range in ranges {
        words.extend([range.offset, range.length]);
    }
    let raw = vfio_feature(device.as_fd(), &words)?;
    // SAFETY: a successful VFIO_DEVICE_FEATURE_DMA_BUF returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn vfio_feature(device: BorrowedFd<'_>, words: &[u64]) -> SysResult<i32> {
    // SAFETY: the fd is open for the whole call; the words are a live `struct vfio_device_feature` of as many bytes as it says, and what
    // the kernel reads of other devices' ioctl of this number is no more than that.
    let answer = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            libc::Ioctl::from(VFIO_DEVICE_FEATURE),
            words.as_ptr(),
        )
    };
    Errno::result(answer)
}
