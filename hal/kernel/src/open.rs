//! [`Driver`]: chooses and opens a device's node.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gaudi_seam::{
    Backend, DeviceId, Era, Error, ErrorKind, KernelIoExt as _, KernelSelector, Node, NodeKind, PciAddress,
    Result, Rule,
};
use gaudi_sys::{Errno, uninterrupted};
use gaudi_uapi::drm::DRIVER_NAME;
use gaudi_uapi::info::HlInfoHwIpInfo;

use crate::dialect::Dialect;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::missing::{OPEN, not_ours, ownership, too_old};
use crate::probe::{Stranger, era_of};
use crate::system::{Syscalls, System};

/// The oldest kernel whose header this program knows (`misc/habanalabs.h`).
const OLDEST: (u32, u32) = (6, 1);

/// The habanalabs driver of this machine.
pub struct Driver<S: Syscalls + ?Sized = System> {
    pub(crate) machine: Machine,
    system: Arc<S>,
}

impl<S: Syscalls + ?Sized> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("root", &self.machine.root())
            .finish_non_exhaustive()
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::new()
    }
}

impl Driver {
    /// This machine's `/dev` and `/sys`, and real system calls.
    pub fn new() -> Self {
        Self::at("/", Arc::new(System))
    }
}

impl<S: Syscalls + ?Sized> Driver<S> {
    /// `/dev` and `/sys` below another root, and given system calls: for fixtures.
    pub fn at(root: impl Into<PathBuf>, system: Arc<S>) -> Self {
        Self {
            machine: Machine::new(root),
            system,
        }
    }

    /// The numbers of all devices that have a control node, in order.
    pub fn indices(&self) -> Vec<u32> {
        self.machine.indices()
    }

    /// The PCI address of a device. `None` if sysfs does not show it.
    pub fn pci_address(&self, index: u32) -> Option<PciAddress> {
        self.machine.pci_address(index)
    }

    /// A node of a device, by the names of this machine's nodes. It need not exist.
    pub fn node(&self, index: u32, kind: NodeKind) -> gaudi_uapi::Node {
        let era = self.machine.names();
        gaudi_uapi::Node { era, kind, index }
    }

    /// The path of a node.
    pub fn path(&self, node: gaudi_uapi::Node) -> PathBuf {
        self.machine.path(&node.to_string())
    }

    /// The node with a device number, which fstat(2) returns for an open file (`st_rdev`). `None`
    /// if it is not a habanalabs node's. The node's era is that of the names only.
    pub fn node_of(&self, major: u64, minor: u64) -> Option<gaudi_uapi::Node> {
        self.machine.node_of(major, minor)
    }

    /// Opens a node of the chosen device. Finds the device by control nodes and sysfs: no compute
    /// node but the requested one is opened. An accel node's interface is asked of the node itself.
    ///
    /// # Errors
    /// - `NotFound`: there is no driver, card, device or node; the error lists those that exist.
    /// - `PermissionDenied`: names the owner of the node.
    /// - `Busy`: another process has the device open.
    /// - `InReset`: the device is in reset; try again.
    /// - `DeviceLost`: the device failed.
    /// - `Unsupported`: the driver is too old, or this kernel refuses every open.
    pub fn open(&self, selector: KernelSelector, kind: NodeKind) -> Result<Kernel<S>> {
        let (index, address) = match selector {
            KernelSelector::Index(index) => (index, None),
            KernelSelector::Bus(address) => (self.index_of_bus(address)?, Some(address)),
            KernelSelector::Module(id) => {
                let index = self.index_of_module(id)?;
                (index, self.pci_address(index))
            }
            KernelSelector::FirstFree => return self.open_first_of(&self.indices(), kind),
        };
        let opened = self.open_node(index, kind)?;
        // If the card was removed before the open, another card may have its number. The open file
        // reserves the number now.
        let found = self.pci_address(index);
        match address {
            Some(wanted) if found != address => Err(Error::new(ErrorKind::NotFound, OPEN)
                .because("the device was replaced while it was opened")
                .saw(
                    found.map_or("no PCI address".to_owned(), |found| found.to_string()),
                    wanted,
                )
                .helped_by("list the devices, and open it again")),
            _ => Ok(opened),
        }
    }

    pub(crate) fn open_node(&self, index: u32, kind: NodeKind) -> Result<Kernel<S>> {
        let device = DeviceId::new(Backend::Kernel, index);
        let names = self.machine.names();
        let node = gaudi_uapi::Node {
            era: names,
            kind,
            index,
        };
        let path = self.machine.path(&node.to_string());
        self.refuse_before(node, device)?;
        let fd = uninterrupted(|| self.system.open(&path))
            .map_err(|errno| self.open_failed(&path, node, device, errno))?;
        let era = match names {
            Era::HlMisc => Era::HlMisc,
            Era::AccelH | Era::AccelDrm => {
                era_of(&*self.system, fd.as_fd(), kind).map_err(|stranger| not_ours(stranger, device))?
            }
        };
        let name = path.display().to_string();
        let node = Node {
            kind,
            device,
            era,
            name,
        };
        let dialect = Dialect::of(&self.machine, era);
        Ok(Kernel::new(node, fd, Arc::clone(&self.system), dialect))
    }

    /// Rejects before the open: nodes of other drivers, which share `/dev/accel`, and drivers older
    /// than the oldest known header.
    fn refuse_before(&self, node: gaudi_uapi::Node, device: DeviceId) -> Result<()> {
        if node.era == Era::HlMisc {
            return match self.machine.release() {
                Some(release)
                    if release < OLDEST && node.kind == NodeKind::Compute && !self.machine.is_vendors() =>
                {
                    Err(
                        too_old(Error::unsupported(OPEN, "this driver is too old to work with").on(device))
                            .saw(format_args!("Linux {}.{}", release.0, release.1), "6.1 or newer"),
                    )
                }
                _ => Ok(()),
            };
        }
        match self.machine.driver_of(node.index) {
            Some(driver) if driver != DRIVER_NAME => Err(not_ours(Stranger::Driver(driver), device)),
            _ => Ok(()),
        }
    }

    fn open_failed(&self, path: &Path, node: gaudi_uapi::Node, device: DeviceId, errno: Errno) -> Error {
        let rules = Rule::of_open(node.kind, errno);
        let error = match *rules {
            [] => Error::from_errno(OPEN, errno),
            [rule] => Error::of_open(rule),
            _ => Error::from_errno(OPEN, errno).because(Rule::conditions(&rules)),
        };
        let error = error.on(device);
        let refined = |error: Error, kind, help: &str| error.with_kind(kind).helped_by(help);
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => self.machine.missing(node).with_errno(errno).on(device),
            Errno::EACCES => {
                let (cause, help) = ownership(path);
                error.because(cause).helped_by(help)
            }
            Errno::EBUSY => error.with_kind(ErrorKind::Busy),
            Errno::EAGAIN => refined(error, ErrorKind::InReset, "try again in a second"),
            // A container's device rules return EPERM before the driver is called.
            Errno::EPERM => refined(
                error,
                ErrorKind::DeviceLost,
                "see the kernel's log (dmesg) for the cause; in a container, its device rules must allow the node",
            ),
            // Only DRM requires the flag: an hl node has another cause.
            Errno::EINVAL if node.kind == NodeKind::Compute && node.era != Era::HlMisc => error,
            Errno::ENXIO | Errno::ENODEV => refined(
                error,
                ErrorKind::NotFound,
                "the node is left over or the device was removed: list the devices that there are",
            ),
            _ if rules.is_empty() || node.era == Era::HlMisc => Error::from_errno(OPEN, errno)
                .on(device)
                .because(format!("cannot open {}", path.display())),
            _ => error,
        }
    }

    fn index_of_bus(&self, address: PciAddress) -> Result<u32> {
        let there = self.indices();
        if there.is_empty() {
            return Err(self.machine.no_device());
        }
        let found: Vec<_> = there
            .iter()
            .map(|&index| (index, self.pci_address(index)))
            .collect();
        if let Some((index, _)) = found.iter().find(|(_, own)| *own == Some(address)) {
            return Ok(*index);
        }
        let known: Vec<_> = found
            .iter()
            .filter_map(|(_, own)| own.map(|a| a.to_string()))
            .collect();
        Err(Error::new(ErrorKind::NotFound, OPEN)
            .because("no device has this PCI address")
            .saw(address, format_args!("one of [{}]", known.join(", "))))
    }

    fn index_of_module(&self, id: u32) -> Result<u32> {
        let there = self.indices();
        if there.is_empty() {
            return Err(self.machine.no_device());
        }
        let mut known = Vec::new();
        let mut failed = None;
        for index in there {
            match self.module_id(index) {
                Ok(module) if module == id => return Ok(index),
                Ok(module) => known.push(module.to_string()),
                Err(error) => failed = Some(error),
            }
        }
        // A device that does not answer may be the wanted one: its error is returned.
        Err(failed.unwrap_or_else(|| {
            Error::new(ErrorKind::NotFound, OPEN)
                .because("no device has this module id")
                .saw(id, format_args!("one of [{}]", known.join(", ")))
        }))
    }

    /// Returns the module id of a device, from its control node, or from sysfs for a user without
    /// access to the node.
    ///
    /// # Errors
    /// Those of the control node's open and of its `HL_INFO_HW_IP_INFO`.
    pub fn module_id(&self, index: u32) -> Result<u32> {
        let answer = self
            .open_node(index, NodeKind::Control)
            .and_then(|control| control.query::<HlInfoHwIpInfo>())
            .map(|info| info.module_id);
        answer.or_else(|error| {
            let attribute = self.machine.attribute(index, "module_id");
            attribute.and_then(|text| text.parse().ok()).ok_or(error)
        })
    }

    /// Opens a node of the first device of `indices` that can be opened.
    ///
    /// # Errors
    /// The first one's error, as of [`Driver::open`]. `NotFound`: `indices` is empty.
    pub fn open_first_of(&self, indices: &[u32], kind: NodeKind) -> Result<Kernel<S>> {
        let mut first = None;
        for &index in indices {
            match self.open_node(index, kind) {
                Ok(device) => return Ok(device),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| self.machine.no_device()))
    }
}
