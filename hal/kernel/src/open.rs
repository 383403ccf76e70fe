//! Choosing and opening a device's node, and why that failed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gaudi_seam::{
    Backend, DeviceId, Era, Error, ErrorKind, KernelIoExt, KernelSelector, Node, NodeKind, PciAddress, Result,
};
use gaudi_spec::gaudi2::VENDOR;
use gaudi_sys::Errno;
use gaudi_uapi::errno::{Call, Meaning};
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::unistd::{Gid, Group, Uid, User};

use crate::ioctl::{Kernel, Syscalls, System};

const OPEN: &str = "open";

/// The habanalabs driver of this machine.
#[derive(Clone)]
pub struct Driver {
    root: PathBuf,
    system: Arc<dyn Syscalls>,
}

impl std::fmt::Debug for Driver {
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

    /// `/dev` and `/sys` below another root, and given system calls: for fixtures.
    pub fn at(root: impl Into<PathBuf>, system: Arc<dyn Syscalls>) -> Self {
        Self {
            root: root.into(),
            system,
        }
    }

    /// Opens a node of the chosen device. Only a compute node that is asked for is opened; the device is
    /// found by control nodes and sysfs.
    ///
    /// What can be wrong is told apart: `NotFound` (no driver, no device, the numbers that there are),
    /// `PermissionDenied` (whose the node is), `Busy` (another user), `InReset` (try again), `DeviceLost`
    /// (the device failed), and `Unsupported` (an older interface, or a kernel whose driver cannot be opened
    /// at all).
    pub fn open(&self, selector: KernelSelector, kind: NodeKind) -> Result<Kernel> {
        let index = match selector {
            KernelSelector::Index(index) => index,
            KernelSelector::Bus(address) => self.index_of_bus(address)?,
            KernelSelector::Module(id) => self.index_of_module(id)?,
            KernelSelector::FirstFree => return self.open_first(kind),
        };
        self.open_node(index, kind)
    }

    /// The path of an absolute path below the root.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    pub(crate) fn open_node(&self, index: u32, kind: NodeKind) -> Result<Kernel> {
        let device = DeviceId {
            backend: Backend::Kernel,
            index,
        };
        let path = self.path(
            &gaudi_uapi::Node {
                era: Era::AccelDrm,
                kind,
                index,
            }
            .to_string(),
        );
        self.refuse_other_drivers(index, device)?;
        let opened = loop {
            match self.system.open(&path) {
                Err(Errno::EINTR) => {}
                opened => break opened,
            }
        };
        match opened {
            Ok(fd) => {
                let name = path.display().to_string();
                let node = Node {
                    kind,
                    device,
                    era: Era::AccelDrm,
                    name,
                };
                Ok(Kernel::new(node, fd, Arc::clone(&self.system)))
            }
            Err(errno) => Err(self.open_failed(&path, device, kind, errno)),
        }
    }

    /// `/dev/accel` is shared by all drivers of accelerators, and an old habanalabs looks the same from
    /// outside.
    fn refuse_other_drivers(&self, index: u32, device: DeviceId) -> Result<()> {
        match self.driver_of(index) {
            Some(driver) if driver != "habanalabs" => {
                return Err(Error::new(ErrorKind::NotFound, OPEN)
                    .on(device)
                    .because("the node belongs to another driver")
                    .saw(driver, "habanalabs"));
            }
            _ => {}
        }
        if self
            .path(&format!("{}/accel{index}/pci_addr", Era::AccelH.class_dir()))
            .exists()
        {
            return Err(Error::unsupported(
                OPEN,
                "this driver speaks the interface before DRM on /dev/accel",
            )
            .on(device)
            .helped_by("use a kernel from 6.12 on"));
        }
        Ok(())
    }

    fn open_failed(&self, path: &Path, device: DeviceId, kind: NodeKind, errno: Errno) -> Error {
        let call = match kind {
            NodeKind::Compute => Call::OpenCompute,
            NodeKind::Control => Call::OpenControl,
        };
        let meaning = Meaning {
            call,
            errno: errno as i32,
        }
        .to_string();
        let error = Error::from_errno(OPEN, errno).on(device);
        let says = |error: Error, kind, help: &str| error.with_kind(kind).because(&*meaning).helped_by(help);
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => self.absent(device.index).with_errno(errno).on(device),
            Errno::EACCES => {
                let (cause, help) = ownership(path);
                error.because(cause).helped_by(help)
            }
            Errno::EBUSY => says(
                error,
                ErrorKind::Busy,
                "close the other user's files and dma-bufs, or choose another device",
            ),
            Errno::EAGAIN => says(error, ErrorKind::InReset, "try again in a second"),
            Errno::EPERM => says(
                error,
                ErrorKind::DeviceLost,
                "the kernel's log says why the device failed",
            ),
            Errno::EINVAL if kind == NodeKind::Compute => says(
                error,
                ErrorKind::Unsupported,
                "information still works, through the control node; work needs a kernel whose habanalabs sets the flag",
            ),
            Errno::ENXIO | Errno::ENODEV => {
                says(error, ErrorKind::NotFound, "list the devices that there are")
            }
            _ if meaning.is_empty() => error.because(format!("cannot open {}", path.display())),
            _ => error.because(meaning),
        }
    }

    /// Why there is no such node: no driver, an older one, no device, or other numbers.
    fn absent(&self, index: u32) -> Error {
        let error = Error::new(ErrorKind::NotFound, OPEN);
        let there = self.indices();
        if !there.is_empty() {
            let list: Vec<_> = there.iter().map(|n| format!("accel{n}")).collect();
            return error
                .because("there is no such device")
                .saw(format_args!("accel{index}"), list.join(", "));
        }
        self.none(error)
    }

    /// Why there is no device at all.
    fn none(&self, error: Error) -> Error {
        if self.path("/dev/hl_controlD0").exists() || self.path(Era::HlMisc.class_dir()).exists() {
            return error
                .with_kind(ErrorKind::Unsupported)
                .because("this driver speaks the interface of /dev/hlN")
                .helped_by("use a kernel from 6.12 on");
        }
        if self.path("/sys/module/habanalabs").exists() {
            return error
                .because("the habanalabs driver is loaded and has no device")
                .helped_by(format!(
                    "lspci -nn -d {VENDOR:04x}: shows the cards; the kernel's log says why one was not taken"
                ));
        }
        error
            .because("the habanalabs driver is not loaded")
            .helped_by("load it with: modprobe habanalabs")
    }

    fn index_of_bus(&self, address: PciAddress) -> Result<u32> {
        let there = self.indices();
        if there.is_empty() {
            return Err(self.none(Error::new(ErrorKind::NotFound, OPEN)));
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
            return Err(self.none(Error::new(ErrorKind::NotFound, OPEN)));
        }
        let mut known = Vec::new();
        let mut failed = None;
        for index in there {
            let module = self
                .open_node(index, NodeKind::Control)
                .and_then(|control| control.query::<HlInfoHwIpInfo>())
                .map(|info| info.module_id);
            match module {
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

    fn open_first(&self, kind: NodeKind) -> Result<Kernel> {
        let mut first = None;
        for index in self.indices() {
            match self.open_node(index, kind) {
                Ok(device) => return Ok(device),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| self.none(Error::new(ErrorKind::NotFound, OPEN))))
    }
}

/// Whose a node is, and what its group or root can do about it.
fn ownership(path: &Path) -> (String, String) {
    let Ok(meta) = std::fs::metadata(path) else {
        let cause = format!(
            "permission denied: {} is not to be seen by this user",
            path.display()
        );
        return (
            cause,
            "ask the administrator for access to the directory".to_owned(),
        );
    };
    let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
    let user = user.map_or_else(|| meta.uid().to_string(), |user| user.name);
    let group = group_name(Gid::from_raw(meta.gid()));
    let mine: Vec<_> = nix::unistd::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(group_name)
        .collect();
    let mode = meta.mode() & 0o777;
    let cause = format!(
        "permission denied: {} belongs to {user}:{group} with mode {mode:04o}; you are in: {}",
        path.display(),
        mine.join(", ")
    );
    let help = if mode & 0o060 == 0o060 && meta.gid() != 0 {
        format!("sudo usermod -aG {group} $USER, then log in again")
    } else {
        "a udev rule must give the node to a group: KERNEL==\"accel*\", GROUP=\"render\", MODE=\"0660\""
            .to_owned()
    };
    (cause, help)
}

fn group_name(gid: Gid) -> String {
    Group::from_gid(gid)
        .ok()
        .flatten()
        .map_or_else(|| gid.to_string(), |group| group.name)
}
