//! PCI functions of the guest in the hands of vfio-pci: binding, and what is asked of one beyond
//! `DeviceIo`.
//!
//! The usual guest's function is QEMU's `ivshmem-plain`, whose second BAR is plain memory.

use std::fs;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_seam::{DeviceIo, PciAddress, RawMapping, Result};
use gaudi_sys::SysResult;
use gaudi_sys::dmabuf::vfio_export;
use gaudi_uapi::dmabuf::VfioRegionDmaRange;
use gaudi_vfio::{VfioDevice, bind_commands};

use crate::{modprobe, no_children, run};

/// The BAR of the guest's ivshmem function that is memory, and its bytes.
pub const BAR: u32 = 2;
/// Bytes behind it.
pub const BAR_LEN: u64 = 16 << 20;

/// Where the guest's functions are in sysfs.
pub const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// The guest's functions of this vendor and device, as sysfs names them, in order.
///
/// # Panics
/// Where there is no PCI bus.
pub fn functions(vendor: u16, device: u16) -> Vec<String> {
    let all = fs::read_dir(FUNCTIONS).expect("a PCI bus");
    let is_it = |path: &Path| {
        let has = |what: &str, number: u16| {
            let text = fs::read_to_string(path.join(what)).unwrap_or_default();
            text.trim() == format!("{number:#06x}")
        };
        has("vendor", vendor) && has("device", device)
    };
    let mut found: Vec<_> = all
        .filter_map(std::result::Result::ok)
        .filter(|entry| is_it(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

/// The guest's ivshmem function.
///
/// # Panics
/// Where the guest has none: the lab plugs it in.
pub fn ivshmem() -> String {
    let mut all = functions(0x1af4, 0x1110);
    all.pop()
        .expect("the lab plugs an ivshmem-plain into every guest")
}

/// The driver that has a function.
pub fn driver(address: &str) -> Option<String> {
    let link = fs::read_link(Path::new(FUNCTIONS).join(address).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Gives a function to vfio-pci, with the very commands that a refusal to open it names.
///
/// # Panics
/// Where one of them fails, or vfio-pci does not have it then.
pub fn bind(address: &str) -> PciAddress {
    modprobe("vfio_iommu_type1");
    let parsed = address.parse().expect("an address");
    if driver(address).as_deref() != Some("vfio-pci") {
        for command in bind_commands(parsed) {
            let output = run(&["sh", "-c", &command]);
            let stdout = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {stdout}");
        }
        assert_eq!(driver(address).as_deref(), Some("vfio-pci"), "{address} is bound");
    }
    parsed
}

/// An open function. Closing it revokes what it exported.
#[derive(Debug)]
pub struct Function(VfioDevice);

impl AsFd for Function {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Function {
    /// Binds a function to vfio-pci and opens it, in an IOMMU domain of its own.
    ///
    /// # Errors
    /// Those of [`VfioDevice::open`].
    ///
    /// # Panics
    /// If vfio's modules do not load, or the function cannot be bound.
    pub fn open(address: &str) -> Result<Self> {
        VfioDevice::open(bind(address)).map(Self)
    }

    /// Exports a range of a BAR as a dma-buf (`VFIO_DEVICE_FEATURE_DMA_BUF`).
    ///
    /// # Errors
    /// The errno of the ioctl: `ENOTTY` before Linux 7.0.
    pub fn export(&self, bar: u32, offset: u64, length: u64) -> SysResult<OwnedFd> {
        vfio_export(&self.0, bar, &[VfioRegionDmaRange { offset, length }])
    }

    /// Maps a part of a BAR. An access is a SIGBUS while the function's memory is off.
    ///
    /// # Errors
    /// The errno of mmap(2).
    pub fn map(&self, bar: u32, offset: u64, len: usize) -> SysResult<RawMapping> {
        // Regions start there in the device's file (vfio_pci_core.h `VFIO_PCI_OFFSET_SHIFT`).
        RawMapping::of_fd(&self.0, (u64::from(bar) << 40) + offset, len)
    }

    /// Turns the function's memory on or off in its command register. Off revokes its exports.
    ///
    /// # Errors
    /// The error of reading or writing configuration space.
    pub fn memory(&self, on: bool) -> Result<()> {
        const COMMAND: u64 = 4;
        const MEMORY: u16 = 1 << 1;
        let mut bytes = [0; 2];
        self.0.config_read(COMMAND, &mut bytes)?;
        let old = u16::from_le_bytes(bytes);
        let new = if on { old | MEMORY } else { old & !MEMORY };
        self.0.config_write(COMMAND, &new.to_le_bytes())
    }

    /// Resets the function (`VFIO_DEVICE_RESET`).
    ///
    /// # Errors
    /// `Unsupported` if the function cannot be reset alone.
    pub fn reset(&self) -> Result<()> {
        self.0.reset()
    }
}

/// The guest's ivshmem function, open in one test at a time: vfio opens a group for one user only.
///
/// When it is dropped, the function is closed before the next test may open it. The drop waits for
/// fork children of this program: a child has copies of all descriptors of this process until it
/// execs or exits, and the group stays open until then.
#[derive(Debug)]
pub struct Exclusive {
    /// `None` only inside `drop`.
    function: Option<Function>,
    _turn: MutexGuard<'static, ()>,
}

impl Exclusive {
    /// Waits for this program's other user of the function, then opens it.
    ///
    /// # Panics
    /// If it does not open.
    pub fn open() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let function = Function::open(&ivshmem()).expect("vfio-pci opens the guest's function");
        Self {
            function: Some(function),
            _turn: turn,
        }
    }
}

impl Deref for Exclusive {
    type Target = Function;

    fn deref(&self) -> &Function {
        self.function.as_ref().expect("open until it is dropped")
    }
}

impl AsFd for Exclusive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let _no_children = no_children();
        self.function = None;
    }
}
