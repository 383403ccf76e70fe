//! The ioctls of a dma-buf, of udmabuf and of VFIO's export (linux/dma-buf.h, linux/udmabuf.h,
//! linux/vfio.h).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use gaudi_uapi::dmabuf::{
    DMA_BUF_IOCTL_EXPORT_SYNC_FILE, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, DMA_BUF_IOCTL_SYNC, DMA_BUF_MAGIC,
    DMA_BUF_NAME_LEN, DMA_BUF_SET_NAME_B, DmaBufExportSyncFile, DmaBufImportSyncFile, DmaBufSync,
    DmaBufSyncDirection, DmaBufSyncFlags, UDMABUF_CREATE, UDMABUF_CREATE_LIST, UdmabufCreate,
    UdmabufCreateItem, UdmabufCreateList, UdmabufFlags, VFIO_DEVICE_FEATURE, VFIO_DEVICE_FEATURE_DMA_BUF,
    VfioDeviceFeature, VfioDeviceFeatureDmaBuf, VfioRegionDmaRange,
};
use gaudi_uapi::vfio::VfioFeatureFlags;
use nix::libc;

use crate::fd::{errno_of, link};
use crate::ioctl::{ioctl, own};
use crate::{Errno, Memfd, SysResult};

/// Begins CPU access of these directions (`DMA_BUF_IOCTL_SYNC`, `DMA_BUF_SYNC_START`). Waits for
/// the fences of work that writes the buffer and, if the CPU will write, of work that reads it.
///
/// # Errors
/// ioctl(2)'s: `ENOTTY` if the descriptor is not a dma-buf.
pub fn sync_start(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<()> {
    sync(fd, directions)
}

/// Ends CPU access of these directions (`DMA_BUF_IOCTL_SYNC`, `DMA_BUF_SYNC_END`).
///
/// # Errors
/// ioctl(2)'s, as for [`sync_start`].
pub fn sync_end(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<()> {
    sync(fd, directions | DmaBufSyncFlags::END)
}

fn sync(fd: impl AsFd, flags: DmaBufSyncFlags) -> SysResult<()> {
    let argument = DmaBufSync { flags };
    loop {
        // SAFETY: the argument is a live `struct
        // dma_buf_sync`.
        match unsafe { ioctl(&fd, DMA_BUF_IOCTL_SYNC, &raw const argument) } {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            answer => return answer.map(drop),
        }
    }
}

/// Returns whether a descriptor is a dma-buf, by its file system, or before Linux 5.3 by the name
/// of its anonymous inode. No other file can have either; a name alone, as `/proc` shows it, any
/// file can have.
///
/// # Errors
/// fstatfs(2)'s.
pub fn is_dmabuf(fd: impl AsFd) -> SysResult<bool> {
    if nix::sys::statfs::fstatfs(fd.as_fd())?.filesystem_type().0 as u64 == u64::from(DMA_BUF_MAGIC) {
        return Ok(true);
    }
    // The link of a named file begins with a slash. Without /proc dma-bufs of old kernels cannot be
    // recognised.
    Ok(link(fd).is_ok_and(|link| link.as_os_str() == "anon_inode:dmabuf"))
}

/// Sets the name that `/proc` and debugfs show (`DMA_BUF_SET_NAME`).
///
/// # Errors
/// `EINVAL`: the name has more than 32 bytes with its zero.
pub fn set_name(fd: impl AsFd, name: &CStr) -> SysResult<()> {
    if name.to_bytes_with_nul().len() > DMA_BUF_NAME_LEN {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel reads a text of at most 32 bytes
    // that ends with a zero.
    unsafe { ioctl(fd, DMA_BUF_SET_NAME_B, name.as_ptr()) }.map(drop)
}

/// Returns a sync_file of the work that must end before access of these directions
/// (`DMA_BUF_IOCTL_EXPORT_SYNC_FILE`, Linux 6.0).
///
/// # Errors
/// - `EINVAL`: no direction.
/// - `ENOTTY`: the kernel or the descriptor has no such ioctl.
/// - `EBADF`: the descriptor is not a dma-buf.
pub fn export_sync_file(fd: impl AsFd, directions: DmaBufSyncFlags) -> SysResult<OwnedFd> {
    let mut argument = DmaBufExportSyncFile {
        flags: direction(directions)?,
        fd: -1,
    };
    // SAFETY: the argument is a live `struct
    // dma_buf_export_sync_file`.
    unsafe { ioctl(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &raw mut argument) }?;
    // SAFETY: on success the kernel has put a new descriptor there that only this process owns.
    unsafe { own(argument.fd) }
}

/// The flags of a sync_file's ioctls, which are half as wide.
fn direction(flags: DmaBufSyncFlags) -> SysResult<DmaBufSyncDirection> {
    let bits = u32::try_from(flags.0).map_err(|_| Errno::EINVAL)?;
    Ok(DmaBufSyncDirection(bits))
}

/// Adds the fences of a sync_file (`DMA_BUF_IOCTL_IMPORT_SYNC_FILE`, Linux 6.0): access that
/// conflicts with these directions waits for them.
///
/// # Errors
/// - `EINVAL`: no direction, or the descriptor is not a sync_file.
/// - `ENOTTY`: the kernel or the descriptor has no such ioctl.
pub fn import_sync_file(fd: impl AsFd, directions: DmaBufSyncFlags, sync_file: impl AsFd) -> SysResult<()> {
    let argument = DmaBufImportSyncFile {
        flags: direction(directions)?,
        fd: sync_file.as_fd().as_raw_fd(),
    };
    // SAFETY: the argument is a live `struct
    // dma_buf_import_sync_file`.
    unsafe { ioctl(fd, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &raw const argument) }.map(drop)
}

/// Opens `/dev/udmabuf`.
///
/// # Errors
/// - `ENOENT`: the kernel has no udmabuf.
/// - `EACCES`: the user has no permission.
pub fn udmabuf_open() -> SysResult<OwnedFd> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
        .map(OwnedFd::from)
        .map_err(errno_of)
}

/// Makes a dma-buf of a part of a sealed memfd (`UDMABUF_CREATE`). All its pages are allocated and
/// pinned.
///
/// # Errors
/// `EINVAL`: the part is not page aligned, leaves the file, or is larger than the module's
/// `size_limit_mb`.
pub fn udmabuf_create(udmabuf: impl AsFd, memfd: &Memfd, offset: u64, size: u64) -> SysResult<OwnedFd> {
    let argument = UdmabufCreate {
        memfd: number(memfd.as_fd())?,
        flags: UdmabufFlags::CLOEXEC,
        offset,
        size,
    };
    // SAFETY: the argument is a live `struct
    // udmabuf_create`.
    let raw = unsafe { ioctl(udmabuf, UDMABUF_CREATE, &raw const argument) }?;
    // SAFETY: a successful UDMABUF_CREATE returns a new descriptor that only this process owns.
    unsafe { own(raw) }
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

/// Makes one dma-buf of several parts, in this order (`UDMABUF_CREATE_LIST`).
///
/// # Errors
/// `EINVAL`: there are no parts or more than the module's `list_limit`, or as for
/// [`udmabuf_create`].
pub fn udmabuf_create_list(udmabuf: impl AsFd, parts: &[UdmabufPart<'_>]) -> SysResult<OwnedFd> {
    const HEAD: usize = size_of::<UdmabufCreateList>() / size_of::<u64>();
    const ITEM: usize = size_of::<UdmabufCreateItem>() / size_of::<u64>();
    let head = UdmabufCreateList {
        flags: UdmabufFlags::CLOEXEC,
        count: u32::try_from(parts.len()).map_err(|_| Errno::EINVAL)?,
    };
    // Head and items in one piece of memory, in words: both have no padding and an alignment of 8
    // at most.
    let mut words = Vec::with_capacity(HEAD + ITEM * parts.len());
    words.push(u64::from(head.flags.0) | u64::from(head.count) << 32);
    for part in parts {
        words.extend([u64::from(number(part.memfd.as_fd())?), part.offset, part.size]);
    }
    // SAFETY: the words are a live `struct udmabuf_create_list` and `count` items.
    let raw = unsafe { ioctl(udmabuf, UDMABUF_CREATE_LIST, words.as_ptr()) }?;
    // SAFETY: a successful UDMABUF_CREATE_LIST returns a new descriptor that only this process
    // owns.
    unsafe { own(raw) }
}

fn number(fd: BorrowedFd<'_>) -> SysResult<u32> {
    u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF)
}

/// Checks that a VFIO device exports its regions as dma-bufs (`VFIO_DEVICE_FEATURE_PROBE`).
///
/// # Errors
/// `ENOTTY`: the kernel is older than Linux 6.19, or the descriptor is not a VFIO device.
pub fn vfio_probe(device: impl AsFd) -> SysResult<()> {
    let head = VfioDeviceFeature {
        argsz: size_of::<VfioDeviceFeature>() as u32,
        flags: VfioFeatureFlags::PROBE
            | VfioFeatureFlags::GET
            | VfioFeatureFlags(VFIO_DEVICE_FEATURE_DMA_BUF),
    };
    let words = [u64::from(head.argsz) | u64::from(head.flags.0) << 32];
    vfio_feature(device.as_fd(), &words).map(drop)
}

/// Exports ranges of a BAR as one dma-buf (`VFIO_DEVICE_FEATURE_DMA_BUF`), close-on-exec.
///
/// # Errors
/// - `ENODEV`: the device has no such BAR.
/// - `EINVAL`: a range is empty, not page aligned or leaves the BAR, or the BAR cannot do
///   peer-to-peer DMA.
/// - `ENOTTY`: the kernel is older than Linux 6.19.
pub fn vfio_export(device: impl AsFd, bar: u32, ranges: &[VfioRegionDmaRange]) -> SysResult<OwnedFd> {
    let count = u32::try_from(ranges.len()).map_err(|_| Errno::EINVAL)?;
    let bytes = size_of::<VfioDeviceFeature>() + size_of::<VfioDeviceFeatureDmaBuf>() + size_of_val(ranges);
    let head = VfioDeviceFeature {
        argsz: u32::try_from(bytes).map_err(|_| Errno::EINVAL)?,
        flags: VfioFeatureFlags::GET | VfioFeatureFlags(VFIO_DEVICE_FEATURE_DMA_BUF),
    };
    let open_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    let mut words = Vec::with_capacity(bytes / size_of::<u64>());
    words.extend([
        u64::from(head.argsz) | u64::from(head.flags.0) << 32,
        u64::from(bar) | u64::from(open_flags) << 32,
        u64::from(count) << 32,
    ]);
    for range in ranges {
        words.extend([range.offset, range.length]);
    }
    let raw = vfio_feature(device.as_fd(), &words)?;
    // SAFETY: a successful VFIO_DEVICE_FEATURE_DMA_BUF returns a new descriptor without
    // another owner.
    unsafe { own(raw) }
}

fn vfio_feature(device: BorrowedFd<'_>, words: &[u64]) -> SysResult<i32> {
    // SAFETY: the words are a live `struct vfio_device_feature` of `argsz` bytes. Other devices'
    // ioctls of this number read no more than that.
    unsafe { ioctl(device, VFIO_DEVICE_FEATURE, words.as_ptr()) }
}
