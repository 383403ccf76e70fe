//! Choosing and opening a device's node, and why that failed.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{
    Backend, DeviceId, Era, Error, ErrorKind, KernelSelector, Node, NodeKind, PciAddress, Result, Rule, SharedIo,
};
use gaudi_sys::Errno;
use gaudi_uapi::drm::DRIVER_NAME;

use crate::absent::{not_ours, ownership, too_old};
use crate::dialect::Dialect;
use crate::ioctl::Kernel;
use crate::probe::{Stranger, era_of};
use crate::system::{Syscalls, System};
use crate::wait::Backoff;

pub(crate) const OPEN: &str = "open";

/// The oldest kernel whose header this program knows (`misc/habanalabs.h`).
const OLDEST: (u32, u32) = (6, 1);

/// The habanalabs driver of this machine.
pub struct Driver<S: Syscalls + ?Sized = System> {
    root: PathBuf,
    system: Arc<S>,
}

impl<S: Syscalls + ?Sized> Clone for Driver<S> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            system: Arc::clone(&self.system),
        }
    }
}

impl<S: Syscalls + ?Sized> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("root", &self.root)
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

    /// As [`open`](Self::open), for those who hold any backend.
    pub fn open_shared(&self, selector: KernelSelector, kind: NodeKind) -> Result<SharedIo> {
        Ok(Arc::new(self.open(selector, kind)?))
    }
}

impl<S: Syscalls + ?Sized> Driver<S> {
    /// `/dev` and `/sys` below another root, and given system calls: for fixtures.
    pub fn at(root: impl Into<PathBuf>, system: Arc<S>) -> Self {
        Self {
            root: root.into(),
            system,
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Opens a node of the chosen device. Only a compute node that is asked for is opened; the device is
    /// found by control nodes and sysfs. Which interface an accel node speaks is asked of the node itself.
    ///
    /// What can be wrong is told apart: `NotFound` (no driver, no card, no device, no node, the numbers that there
    /// are), `PermissionDenied` (whose the node is), `Busy` (another user), `InReset` (try again), `DeviceLost`
    /// (the device failed), and `Unsupported` (a driver that is too old, or a kernel whose driver cannot be opened
    /// at all).
    pub fn open(&self, selector: KernelSelector, kind: NodeKind) -> Result<Kernel<S>> {
        let (index, address) = match selector {
            KernelSelector::Index(index) => (index, None),
            KernelSelector::Bus(address) => (self.index_of_bus(address)?, Some(address)),
            KernelSelector::Module(id) => {
                let index = self.index_of_module(id)?;
                (index, self.pci_address(index))
            }
            KernelSelector::FirstFree => return self.open_first(kind),
        };
        let opened = self.open_node(index, kind)?;
        // If the card was removed before the open, another card may have its number. The open file now reserves the number.
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

    /// As [`open`](Self::open), again for so long as the device is in reset or cleans up after its last user. Between
    /// two tries it sleeps, from 10 ms up to half a second. A device that another process has is not waited for.
    pub fn open_within(
        &self,
        selector: KernelSelector,
        kind: NodeKind,
        patience: Duration,
    ) -> Result<Kernel<S>> {
        let mut backoff = Backoff::new(patience);
        loop {
            match self.open(selector, kind) {
                Err(error) if error.kind() == ErrorKind::InReset => match backoff.next_pause() {
                    Some(pause) => std::thread::sleep(pause),
                    None => return Err(error),
                },
                opened => return opened,
            }
        }
    }

    pub(crate) fn open_node(&self, index: u32, kind: NodeKind) -> Result<Kernel<S>> {
        let device = DeviceId::new(Backend::Kernel, index);
        let names = self.names();
        let node = gaudi_uapi::Node {
            era: names,
            kind,
            index,
        };
        let path = self.path(&node.to_string());
        self.refuse_before(node, device)?;
        let opened = loop {
            match self.system.open(&path) {
                Err(Errno::EINTR) => {}
                opened => break opened,
            }
        };
        let fd = opened.map_err(|errno| self.open_failed(&path, node, device, errno))?;
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
        Ok(Kernel::new(
            node,
            fd,
            Arc::clone(&self.system),
            Dialect::of(self, era),
        ))
    }

    /// What is not worth an open: other drivers' nodes, which share `/dev/accel`, and drivers older than the oldest
    /// header that is known here.
    fn refuse_before(&self, node: gaudi_uapi::Node, device: DeviceId) -> Result<()> {
        if node.era == Era::HlMisc {
            return match self.release() {
                Some(release) if release < OLDEST && node.kind == NodeKind::Compute && !self.is_vendors() => {
                    Err(
                        too_old(Error::unsupported(OPEN, "this driver is too old to work with").on(device))
                            .saw(format_args!("Linux {}.{}", release.0, release.1), "6.1 or newer"),
                    )
                }
                _ => Ok(()),
            };
        }
        match self.driver_of(node.index) {
            Some(driver) if driver != DRIVER_NAME => Err(not_ours(Stranger::Driver(driver), device)),
            _ => Ok(()),
        }
    }

    fn open_failed(&self, path: &Path, node: gaudi_uapi::Node, device: DeviceId, errno: Errno) -> Error {
        let rules = Rule::of_open(node.kind, errno);
        let error = match *rules {
            [rule] => Error::of_open(rule),
            _ => Error::from_errno(OPEN, errno).because(Rule::conditions(&rules)),
        };
        let error = error.on(device);
        let says = |error: Error, kind, help: &str| error.with_kind(kind).helped_by(help);
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => self.absent(node).with_errno(errno).on(device),
            Errno::EACCES => {
                let (cause, help) = ownership(path);
                error.because(cause).helped_by(help)
            }
            Errno::EBUSY => error.with_kind(ErrorKind::Busy),
            Errno::EAGAIN => says(error, ErrorKind::InReset, "try again in a second"),
            // A container's device rules answer EPERM before the driver is asked.
            Errno::EPERM => says(
                error,
                ErrorKind::DeviceLost,
                "the kernel's log says why the device failed; in a container, its device rules must allow the node",
            ),
            // DRM alone asks for the flag: an hl node has another reason.
            Errno::EINVAL if node.kind == NodeKind::Compute && node.era != Era::HlMisc => error,
            Errno::ENXIO | Errno::ENODEV => says(
                error,
                ErrorKind::NotFound,
                "the node is left over or the device was removed: list the devices that there are",
            ),
            _ if rules.is_empty() || node.era == Era::HlMisc => {
                Error::from_errno(OPEN, errno)
                    .on(device)
                    .because(format!("cannot open {}", path.display()))
            }
            _ => error,
        }
    }

    fn index_of_bus(&self, address: PciAddress) -> Result<u32> {
        let there = self.indices();
        if there.is_empty() {
            return Err(self.none());
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
            return Err(self.none());
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
        // A device that does not answer may be the one: its error says more than "not found".
        Err(failed.unwrap_or_else(|| {
            Error::new(ErrorKind::NotFound, OPEN)
                .because("no device has this module id")
                .saw(id, format_args!("one of [{}]", known.join(", ")))
        }))
    }

    fn open_first(&self, kind: NodeKind) -> Result<Kernel<S>> {
        let mut first = None;
        for index in self.indices() {
            match self.open_node(index, kind) {
                Ok(device) => return Ok(device),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| self.none()))
    }
}
