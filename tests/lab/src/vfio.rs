//! A PCI function of the guest in the hands of vfio-pci: its BAR as a dma-buf, and what takes that back.
//!
//! Raw ioctls of linux/vfio.h, each by its number there. The guest's function is QEMU's `ivshmem-plain`, whose second
//! BAR is plain memory.

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer or a number; the structs are plain data and live across the call"
)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use gaudi_sys::fd::errno_of;
use gaudi_sys::{Errno, RawMapping, SysResult};

use crate::modprobe;

mod raw {
    use nix::libc::c_char;

    /// `struct vfio_region_info`.
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct RegionInfo {
        pub(super) argsz: u32,
        pub(super) flags: u32,
        pub(super) index: u32,
        pub(super) cap_offset: u32,
        pub(super) size: u64,
        pub(super) offset: u64,
    }

    /// `struct vfio_device_feature` with `struct vfio_device_feature_dma_buf` and one range.
    #[repr(C)]
    pub(super) struct DmaBufFeature {
        pub(super) argsz: u32,
        pub(super) flags: u32,
        pub(super) region_index: u32,
        pub(super) open_flags: u32,
        pub(super) dma_buf_flags: u32,
        pub(super) nr_ranges: u32,
        pub(super) offset: u64,
        pub(super) length: u64,
    }

    nix::ioctl_write_int_bad!(set_iommu, 0x3b66);
    nix::ioctl_write_ptr_bad!(set_container, 0x3b68, i32);
    nix::ioctl_write_ptr_bad!(get_device_fd, 0x3b6a, c_char);
    nix::ioctl_readwrite_bad!(region_info, 0x3b6c, RegionInfo);
    nix::ioctl_none_bad!(reset, 0x3b6f);
    nix::ioctl_readwrite_bad!(device_feature, 0x3b75, DmaBufFeature);
}

/// The BAR of the guest's function that is memory, and its bytes.
pub const BAR: u32 = 2;
/// Bytes behind it.
pub const BAR_LEN: u64 = 16 << 20;

/// An open function. Closing it revokes what it exported.
#[derive(Debug)]
pub struct Function {
    device: File,
    /// Closed after the device: the kernel wants an IOMMU around it as long as it is open.
    _group: OwnedFd,
    _container: OwnedFd,
}

/// The guest's ivshmem function, as sysfs names it.
///
/// # Panics
/// Where the guest has none: the lab plugs it in.
pub fn ivshmem() -> String {
    let functions = fs::read_dir("/sys/bus/pci/devices").expect("a PCI bus");
    let read = |path: &Path, what: &str| fs::read_to_string(path.join(what)).unwrap_or_default();
    functions
        .filter_map(Result::ok)
        .find(|entry| {
            let path = entry.path();
            read(&path, "vendor").trim() == "0x1af4" && read(&path, "device").trim() == "0x1110"
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .expect("the lab plugs an ivshmem-plain into every guest")
}

impl AsFd for Function {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Function {
    /// Binds a function to vfio-pci and opens it, in an IOMMU domain of its own.
    ///
    /// # Panics
    /// Where vfio's modules do not load.
    pub fn open(address: &str) -> SysResult<Self> {
        modprobe("vfio_pci");
        modprobe("vfio_iommu_type1");
        let folder = Path::new("/sys/bus/pci/devices").join(address);
        if !folder.join("driver").exists() {
            fs::write(folder.join("driver_override"), "vfio-pci").map_err(errno_of)?;
            fs::write("/sys/bus/pci/drivers_probe", address).map_err(errno_of)?;
        }
        let group = fs::read_link(folder.join("iommu_group")).map_err(errno_of)?;
        let group = Path::new("/dev/vfio").join(group.file_name().ok_or(Errno::ENODEV)?);
        let open = |path: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map_err(errno_of)
        };
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let group = open(&group)?;
        // SAFETY: both are open, and the argument is a live int.
        unsafe { raw::set_container(group.as_raw_fd(), &container.as_raw_fd()) }?;
        const TYPE1_V2: i32 = 3;
        // SAFETY: the container is open; the argument is a number.
        unsafe { raw::set_iommu(container.as_raw_fd(), TYPE1_V2) }?;
        let name = CString::new(address).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the group is open and the name is a live C string.
        let device = unsafe { raw::get_device_fd(group.as_raw_fd(), name.as_ptr()) }?;
        // SAFETY: a successful VFIO_GROUP_GET_DEVICE_FD returns a new descriptor that nobody else owns.
        let device = unsafe { OwnedFd::from_raw_fd(device) };
        Ok(Self {
            device: device.into(),
            _group: group.into(),
            _container: container.into(),
        })
    }

    /// `VFIO_DEVICE_FEATURE_DMA_BUF`: a range of a BAR as a dma-buf. `ENOTTY` before 7.0.
    pub fn export(&self, bar: u32, offset: u64, length: u64) -> SysResult<OwnedFd> {
        const GET: u32 = 1 << 16;
        const DMA_BUF: u32 = 11;
        let mut feature = raw::DmaBufFeature {
            argsz: size_of::<raw::DmaBufFeature>() as u32,
            flags: GET | DMA_BUF,
            region_index: bar,
            open_flags: (nix::libc::O_RDWR | nix::libc::O_CLOEXEC) as u32,
            dma_buf_flags: 0,
            nr_ranges: 1,
            offset,
            length,
        };
        // SAFETY: the device is open and the argument is a live struct of the size that it says.
        let fd = unsafe { raw::device_feature(self.device.as_raw_fd(), &raw mut feature) }?;
        // SAFETY: this feature returns a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn region(&self, index: u32) -> SysResult<raw::RegionInfo> {
        let mut info = raw::RegionInfo {
            argsz: size_of::<raw::RegionInfo>() as u32,
            index,
            ..raw::RegionInfo::default()
        };
        // SAFETY: the device is open and the argument is a live struct of the size that it says.
        unsafe { raw::region_info(self.device.as_raw_fd(), &raw mut info) }?;
        Ok(info)
    }

    /// A part of a BAR in this process's memory.
    pub fn map(&self, bar: u32, offset: u64, len: usize) -> SysResult<RawMapping> {
        let info = self.region(bar)?;
        RawMapping::of_fd(self.device.as_fd(), info.offset + offset, len)
    }

    /// Turns the function's memory off or on, in its command register. Off revokes all that it exported.
    pub fn memory(&self, on: bool) -> SysResult<()> {
        const CONFIG: u32 = 7;
        const COMMAND: u64 = 4;
        const MEMORY: u16 = 1 << 1;
        let at = self.region(CONFIG)?.offset + COMMAND;
        let mut bytes = [0; 2];
        self.device.read_exact_at(&mut bytes, at).map_err(errno_of)?;
        let old = u16::from_le_bytes(bytes);
        let new = if on { old | MEMORY } else { old & !MEMORY };
        self.device.write_all_at(&new.to_le_bytes(), at).map_err(errno_of)
    }

    /// `VFIO_DEVICE_RESET`; not every function can.
    pub fn reset(&self) -> SysResult<()> {
        // SAFETY: the device is open; there is no argument.
        unsafe { raw::reset(self.device.as_raw_fd()) }.map(drop)
    }
}
