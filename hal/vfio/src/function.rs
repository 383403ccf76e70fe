//! A PCI function that is bound to vfio-pci.

#![expect(
    unsafe_code,
    reason = "`VfioContainer::vfio_dma_map` gives a device access to memory"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use gaudi_seam::device::{BARS, within};
use gaudi_seam::{
    BarOffset, BarWindow, DeviceIo, Errno, Error, ErrorKind, Event, Iova, PciAddress, RawMapping, Result,
};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{fd, limits};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioError, VfioRegionInfoCap};

use crate::bar::{Area, Bar};
use crate::open::{OPEN, errno_of, explain, look};
use crate::raw;

/// `PCI_COMMAND`, and the bit that lets the function answer to its BARs (linux/pci_regs.h).
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
/// `PCI_STATUS`, and `PCI_STATUS_CAP_LIST`: the function has a list of capabilities.
const STATUS: u64 = 0x06;
const STATUS_CAP_LIST: u16 = 1 << 4;
/// The start of the list (`PCI_CAPABILITY_LIST`).
const CAPABILITY_LIST: u64 = 0x34;
/// `PCI_CAP_ID_PM`; the offset of `PCI_PM_CTRL` in it, the mask of the power state, and D3hot.
const POWER_MANAGEMENT: u8 = 0x01;
const POWER_CONTROL: u64 = 4;
const POWER_STATE: u16 = 3;
const D3HOT: u16 = 3;
/// The most capabilities that fit into the first 256 bytes: bounds the walk of a cyclic list.
const MOST_CAPABILITIES: usize = 48;

/// An open PCI function of vfio-pci, with an IOMMU domain of its own.
///
/// One process can open it at a time. It accesses no memory and raises no interrupt before bus
/// mastering is switched on in its command register. Closing it resets it. In a fork child every
/// operation fails with `Forked`.
pub struct VfioDevice {
    address: PciAddress,
    owner: OwnerProcess,
    config: Region,
    bars: Vec<Bar>,
    vectors: Vectors,
    power: Option<u64>,
    // Whether its BARs respond. Locked during an access: an access to a BAR that does not respond
    // kills the process with SIGBUS.
    answers: RwLock<bool>,
    interrupts: Mutex<Interrupts>,
    mapped: Mutex<BTreeMap<u64, Arc<RawMapping>>>,
    // The next three fields are dropped in this order. The drop of `_device` reads its group in
    // sysfs and panics if the function was removed. The kernel removes a function only after all
    // its files are closed, and `file` is still open then.
    _device: vfio_ioctls::VfioDevice,
    file: File,
    container: Arc<VfioContainer>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    size: u64,
    offset: u64,
}

/// The kernel's description of MSI-X.
#[derive(Clone, Copy, Debug)]
struct Vectors {
    count: u16,
    /// All vectors must be enabled at once: none can be added (`VFIO_IRQ_INFO_NORESIZE`).
    fixed: bool,
}

/// Whether MSI-X is on, and which vectors have an eventfd.
#[derive(Debug, Default)]
struct Interrupts {
    on: bool,
    used: Vec<bool>,
}

impl VfioDevice {
    /// Opens a function that is bound to vfio-pci, with its whole IOMMU group.
    ///
    /// # Errors
    /// Each has a next step:
    /// - `NotFound`: no such function, or it is not bound to a driver.
    /// - `Busy`: it is bound to a driver of the kernel, or another process has it open.
    /// - `PermissionDenied`: this user may not open it, or other functions of its group are in use.
    /// - `Unsupported`: the machine has no IOMMU.
    pub fn open(address: PciAddress) -> Result<Self> {
        let found = look(Path::new("/sys/bus/pci/devices"), Path::new("/dev/vfio"), address)?;
        let failed = |error: VfioError| explain(error, &found, address);
        let container = Arc::new(VfioContainer::new(None).map_err(failed)?);
        let device = vfio_ioctls::VfioDevice::new(&found.folder, container.clone(), false).map_err(failed)?;
        let file = duplicate(&device).map_err(|errno| Error::from_errno(OPEN, errno))?;
        let config = Region {
            size: device.get_region_size(VFIO_PCI_CONFIG_REGION_INDEX),
            offset: device.get_region_offset(VFIO_PCI_CONFIG_REGION_INDEX),
        };
        // The crate skips regions that the kernel does not describe, and the indices of the later
        // regions are wrong then.
        if !matches!(config.size, 256 | 4096) {
            return Err(Error::new(ErrorKind::Io, OPEN)
                .because(format!("vfio-pci does not describe all regions of {address}"))
                .saw(
                    format!("{} bytes of configuration space", config.size),
                    "256 or 4096",
                ));
        }
        let bars = (0..u32::from(BARS)).map(|bar| bar_of(&device, bar)).collect();
        let msix = device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        let vectors = Vectors {
            // MSI-X has at most 2048 vectors.
            count: msix.map_or(0, |irq| u16::try_from(irq.count).unwrap_or(u16::MAX)),
            fixed: msix.is_some_and(|irq| irq.flags & VFIO_IRQ_INFO_NORESIZE != 0),
        };
        let mut this = Self {
            address,
            owner: OwnerProcess::current(),
            config,
            bars,
            vectors,
            power: None,
            answers: RwLock::new(false),
            interrupts: Mutex::default(),
            mapped: Mutex::default(),
            _device: device,
            file,
            container,
        };
        this.power = this.capability(POWER_MANAGEMENT)?;
        let answers = this.ask_whether_it_answers()?;
        *this.answers.get_mut().unwrap_or_else(PoisonError::into_inner) = answers;
        Ok(this)
    }

    /// Returns its PCI address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation)
                .because(format!("{} was opened before this process forked", self.address))
                .helped_by("open devices in the process that uses them"));
        }
        Ok(())
    }

    fn config_word(&self, at: u64) -> Result<u16> {
        let mut word = [0; 2];
        self.config_read(at, &mut word)?;
        Ok(u16::from_le_bytes(word))
    }

    // Returns the offset of a capability in the first 256 bytes.
    fn capability(&self, wanted: u8) -> Result<Option<u64>> {
        if self.config_word(STATUS)? & STATUS_CAP_LIST == 0 {
            return Ok(None);
        }
        let mut at = u64::from(self.config_word(CAPABILITY_LIST)? & 0xfc);
        for _ in 0..MOST_CAPABILITIES {
            if at == 0 {
                break;
            }
            let [id, next] = self.config_word(at)?.to_le_bytes();
            if id == wanted {
                return Ok(Some(at));
            }
            at = u64::from(next & 0xfc);
        }
        Ok(None)
    }

    // Whether the BARs respond, by the rule of vfio_pci_config.c `__vfio_pci_memory_enabled`.
    fn ask_whether_it_answers(&self) -> Result<bool> {
        let sleeps = match self.power {
            Some(at) => self.config_word(at + POWER_CONTROL)? & POWER_STATE == D3HOT,
            None => false,
        };
        Ok(!sleeps && self.config_word(COMMAND)? & COMMAND_MEMORY != 0)
    }

    // Runs an operation that may switch the BARs off or on, while no thread accesses them.
    fn switching<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        // If the check below fails, no thread may access the mapped BARs.
        *answers = false;
        let done = what();
        *answers = self.ask_whether_it_answers()?;
        done
    }

    fn bar(&self, operation: &'static str, bar: u8, at: BarOffset, len: usize) -> Result<&Bar> {
        self.check(operation)?;
        let found = self.bars.get(usize::from(bar));
        within(operation, at.get(), len, found.map_or(0, |bar| bar.size))?;
        found.ok_or_else(|| {
            Error::from_errno(operation, Errno::EINVAL).saw(format!("BAR {bar}"), format!("below {BARS}"))
        })
    }

    fn through_file(&self, operation: &'static str, done: std::io::Result<()>) -> Result<()> {
        done.map_err(|error| {
            let errno = errno_of(&error).unwrap_or(Errno::EIO);
            let error = Error::from_errno(operation, errno);
            if errno == Errno::EIO {
                return error
                    .because(format!("{} does not answer", self.address))
                    .helped_by(
                        "memory access enabled (bit 1 of the command register), and a power state other than D3hot",
                    );
            }
            error
        })
    }

    fn unmap(&self, iova: u64, memory: &RawMapping) -> Result<()> {
        let unmapped = self.container.vfio_dma_unmap(iova, memory.len());
        unmapped.map_err(|error| match error {
            VfioError::IommuDmaUnmap(error) => Error::from_errno(UNMAP, Errno::from_raw(error.errno())),
            other => Error::new(ErrorKind::Io, UNMAP).because(other.to_string()),
        })
    }
}

const MAP: &str = "VFIO_IOMMU_MAP_DMA";
const UNMAP: &str = "VFIO_IOMMU_UNMAP_DMA";
const SET_IRQS: &str = "VFIO_DEVICE_SET_IRQS";
const RESET: &str = "VFIO_DEVICE_RESET";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state changes only after a successful system call, so it is consistent after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn duplicate(device: &vfio_ioctls::VfioDevice) -> Result<File, Errno> {
    // SAFETY: the device owns the descriptor and outlives this borrow.
    let borrowed = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
    fd::duplicate(borrowed).map(File::from)
}

// Describes a BAR. Its mappable part is all of it, or the largest area that the kernel lists.
fn bar_of(device: &vfio_ioctls::VfioDevice, index: u32) -> Bar {
    let size = device.get_region_size(index);
    let may_be_mapped = device.get_region_flags(index) & VFIO_REGION_INFO_FLAG_MMAP != 0;
    let listed = device
        .get_region_caps(index)
        .into_iter()
        .find_map(|capability| match capability {
            VfioRegionInfoCap::SparseMmap(sparse) => Some(sparse.areas),
            _ => None,
        });
    let area = match listed {
        Some(areas) => areas
            .iter()
            .filter(|area| area.offset.checked_add(area.size).is_some_and(|end| end <= size))
            .max_by_key(|area| area.size)
            .map(|area| Area {
                at: area.offset,
                len: area.size,
            }),
        None => Some(Area { at: 0, len: size }),
    };
    let area = area.filter(|area| may_be_mapped && area.len > 0);
    Bar::new(size, device.get_region_offset(index), area)
}

fn map_error(errno: Errno, iova: Iova, len: usize) -> Error {
    let error = Error::from_errno(MAP, errno);
    match errno {
        Errno::EEXIST => error
            .with_kind(ErrorKind::Busy)
            .because(format!(
                "something is shown at {:#x}+{len:#x} already",
                iova.get()
            ))
            .helped_by("unmap it first, or choose another address"),
        Errno::ENOMEM => {
            let limit = match limits::memlock() {
                Ok(limits::Limit::Bytes(bytes)) => format!("{bytes} bytes"),
                Ok(limits::Limit::Unlimited) => "no limit".to_owned(),
                Err(errno) => format!("unknown: {errno}"),
            };
            error
                .because("the memory cannot be pinned")
                .saw(
                    format!("{len} bytes, RLIMIT_MEMLOCK: {limit}"),
                    "a limit above all memory that is mapped at one time",
                )
                .helped_by("raise `ulimit -l`, or LimitMEMLOCK= of the service")
        }
        Errno::ENOSPC => error
            .with_kind(ErrorKind::OutOfMemory)
            .because("the address space has as many mappings as the kernel allows")
            .helped_by("map larger pieces, or raise dma_entry_limit of vfio_iommu_type1"),
        Errno::EINVAL | Errno::EOVERFLOW => error
            .because("address, memory and length must be whole pages inside the IOMMU's address range")
            .saw(format!("{:#x}+{len:#x}", iova.get()), "multiples of 4096"),
        _ => error,
    }
}

impl AsFd for VfioDevice {
    /// Returns the VFIO device's file, for ioctls outside [`DeviceIo`] such as
    /// `VFIO_DEVICE_FEATURE`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for VfioDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioDevice")
            .field("address", &self.address)
            .field("bars", &self.bars)
            .field("vectors", &self.vectors)
            .field("mapped", &self.mapped)
            .finish_non_exhaustive()
    }
}

impl DeviceIo for VfioDevice {
    fn name(&self) -> String {
        format!("{} (vfio-pci)", self.address)
    }

    fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read configuration space";
        self.check(OPERATION)?;
        within(OPERATION, offset, into.len(), self.config.size)?;
        let done = self.file.read_exact_at(into, self.config.offset + offset);
        self.through_file(OPERATION, done)
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<()> {
        const OPERATION: &str = "write configuration space";
        self.check(OPERATION)?;
        within(OPERATION, offset, from.len(), self.config.size)?;
        self.switching(|| {
            let done = self.file.write_all_at(from, self.config.offset + offset);
            self.through_file(OPERATION, done)
        })
    }

    fn bar_size(&self, bar: u8) -> Result<u64> {
        Ok(self.bars.get(usize::from(bar)).map_or(0, |bar| bar.size))
    }

    /// Always `None`: the only file that maps a BAR is the device's own. Its holder could reset the
    /// function, replace its interrupts and write its configuration space, and is killed with
    /// SIGBUS if it accesses a BAR that does not respond.
    fn bar_window(&self, _: u8) -> Result<Option<BarWindow>> {
        self.check("share a BAR's memory")?;
        Ok(None)
    }

    fn bar_read(&self, bar: u8, at: BarOffset, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read a BAR";
        let bar = self.bar(OPERATION, bar, at, into.len())?;
        let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        if *answers && bar.load(&self.file, at.get(), into) {
            return Ok(());
        }
        // Through the file, the kernel itself checks whether the function responds.
        drop(answers);
        let done = self.file.read_exact_at(into, bar.offset + at.get());
        self.through_file(OPERATION, done)
    }

    fn bar_write(&self, bar: u8, at: BarOffset, from: &[u8]) -> Result<()> {
        const OPERATION: &str = "write a BAR";
        let bar = self.bar(OPERATION, bar, at, from.len())?;
        let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        if *answers && bar.store(&self.file, at.get(), from) {
            return Ok(());
        }
        drop(answers);
        let done = self.file.write_all_at(from, bar.offset + at.get());
        self.through_file(OPERATION, done)
    }

    fn dma_map(&self, iova: Iova, memory: Arc<RawMapping>) -> Result<()> {
        self.check(MAP)?;
        let len = memory.len();
        if len == 0 || iova.get().checked_add(len as u64).is_none() {
            return Err(map_error(Errno::EINVAL, iova, len));
        }
        let mut mapped = lock(&self.mapped);
        // SAFETY: the memory is a mapping of `len` bytes without a Rust reference to it; all access
        // is by raw copies and atomics. `mapped` keeps it alive until the kernel has unmapped it.
        let done = unsafe {
            self.container
                .vfio_dma_map(iova.get(), len, memory.as_ptr().as_ptr())
        };
        done.map_err(|error| match error {
            VfioError::IommuDmaMap(error) => map_error(Errno::from_raw(error.errno()), iova, len),
            other => Error::new(ErrorKind::Io, MAP).because(other.to_string()),
        })?;
        mapped.insert(iova.get(), memory);
        Ok(())
    }

    fn dma_unmap(&self, iova: Iova, len: u64) -> Result<u64> {
        self.check(UNMAP)?;
        let end = iova.get().saturating_add(len);
        let mut mapped = lock(&self.mapped);
        let inside: Vec<_> = mapped
            .range(iova.get()..end)
            .filter(|&(&start, memory)| memory.len() as u64 <= end - start)
            .map(|(&start, memory)| (start, memory.clone()))
            .collect();
        let mut unmapped = 0;
        for (start, memory) in inside {
            self.unmap(start, &memory)?;
            mapped.remove(&start);
            unmapped += memory.len() as u64;
        }
        Ok(unmapped)
    }

    fn interrupts(&self) -> u16 {
        self.vectors.count
    }

    fn set_interrupt(&self, vector: u16, event: Option<Event>) -> Result<()> {
        self.check(SET_IRQS)?;
        let Vectors { count, fixed } = self.vectors;
        if vector >= count {
            return Err(Error::from_errno(SET_IRQS, Errno::EINVAL).saw(vector, format!("below {count}")));
        }
        let failed = |errno| {
            let error = Error::from_errno(SET_IRQS, errno);
            match errno {
                Errno::ENOSPC => error
                    .with_kind(ErrorKind::OutOfMemory)
                    .because("the machine has too few interrupt vectors left"),
                _ => error,
            }
        };
        let number = event.as_ref().map_or(-1, |event| event.as_fd().as_raw_fd());
        let mut interrupts = lock(&self.interrupts);
        interrupts.used.resize(usize::from(count), false);
        if !interrupts.on && event.is_none() {
            return Ok(());
        }
        let place = usize::from(vector);
        if fixed && !interrupts.on {
            let mut all = vec![-1; usize::from(count)];
            all[place] = number;
            raw::set_msix(&self.file, 0, &all).map_err(failed)?;
        } else {
            raw::set_msix(&self.file, vector, &[number]).map_err(failed)?;
        }
        // The kernel has a reference to the eventfd from here on.
        interrupts.on = true;
        interrupts.used[place] = event.is_some();
        if !interrupts.used.contains(&true) {
            raw::disable_msix(&self.file).map_err(failed)?;
            interrupts.on = false;
        }
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        self.check(RESET)?;
        self.switching(|| {
            raw::reset(&self.file).map_err(|errno| match errno {
                Errno::EINVAL => Error::unsupported(
                    RESET,
                    format!("the kernel has no reset that affects {} alone", self.address),
                )
                .with_errno(errno)
                .helped_by("close it: vfio-pci then resets what it can"),
                errno => Error::from_errno(RESET, errno),
            })
        })
    }
}

impl Drop for VfioDevice {
    fn drop(&mut self) {
        // In a fork child, interrupts and mappings belong to the parent.
        if self.owner.is_foreign() {
            return;
        }
        let on = lock(&self.interrupts).on;
        if let Err(errno) = if on { raw::disable_msix(&self.file) } else { Ok(()) } {
            tracing::warn!(%errno, "cannot disable the interrupts of {}", self.address);
        }
        if let Err(error) = self.dma_unmap(Iova(0), u64::MAX) {
            // The kernel keeps the pages pinned until the container closes, so the device never
            // accesses memory of another owner.
            tracing::warn!(%error, "cannot unmap the memory of {}", self.address);
        }
    }
}
