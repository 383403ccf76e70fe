//! The three eras of the driver's interface: node names, sysfs places and ioctl numbers.
//!
//! The argument structs have the same sizes in every era; only the type and number of a request
//! differ.

use core::fmt;

use crate::cb::HlCbArgs;
use crate::cs::HlCsArgs;
use crate::debug::HlDebugArgs;
use crate::info::HlInfoArgs;
use crate::ioctl::{Parts, iowr};
use crate::memory::HlMemArgs;
use crate::nic::HlNicArgs;
use crate::wait::HlWaitCsArgs;

/// Which interface a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// `/dev/hlN` with type `'H'`: `misc/habanalabs.h`, Linux up to 6.2, and with the header at its
    /// new place up to 6.6.
    HlMisc,
    /// `/dev/accel/accelN`, still with type `'H'`: the vendor's releases before DRM, which hl-thunk
    /// 2023 was written for. Source: inferred from hl-thunk; no package has such a driver.
    AccelH,
    /// `/dev/accel/accelN` with DRM numbers (`'d'`, from 0x40): `drm/habanalabs_accel.h`, Linux 6.7
    /// to 7.3 (checked from 6.12 on) and the Gaudi3 release.
    AccelDrm,
}

/// One of the driver's ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ioctl {
    /// Questions about device and driver; the only ioctl of a control node.
    Info,
    /// Command buffers of the kernel.
    Cb,
    /// Command submission.
    Cs,
    /// Waiting for submissions and user interrupts.
    WaitCs,
    /// Device memory, mappings, hardware blocks, dma-buf export.
    Memory,
    /// CoreSight and debug mode.
    Debug,
    /// Network ports: gaudi3 header only. A mainline driver answers EINVAL.
    Nic,
}

/// DRM's type byte (`DRM_IOCTL_BASE`).
pub const DRM_IOCTL_BASE: u8 = b'd';
/// The first number of a DRM driver's own ioctls (`DRM_COMMAND_BASE`).
pub const DRM_COMMAND_BASE: u8 = 0x40;
/// The type byte before DRM.
pub const HL_IOCTL_BASE: u8 = b'H';

impl Ioctl {
    /// All ioctls, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Info,
        Self::Cb,
        Self::Cs,
        Self::WaitCs,
        Self::Memory,
        Self::Debug,
        Self::Nic,
    ];

    /// The ioctl of a request number of any era, as [`Era::ioctl`].
    pub fn of_request(request: u32) -> Option<Self> {
        Era::ALL.into_iter().find_map(|era| era.ioctl(request))
    }

    /// The driver's own index: 0 for INFO. `HL_IOCTL_INFO` … of `drm/habanalabs_accel.h`.
    #[inline]
    pub const fn index(self) -> u8 {
        self as u8
    }

    /// The argument's size in bytes.
    #[inline]
    pub const fn args_size(self) -> usize {
        match self {
            Self::Info => size_of::<HlInfoArgs>(),
            Self::Cb => size_of::<HlCbArgs>(),
            Self::Cs => size_of::<HlCsArgs>(),
            Self::WaitCs => size_of::<HlWaitCsArgs>(),
            Self::Memory => size_of::<HlMemArgs>(),
            Self::Debug => size_of::<HlDebugArgs>(),
            Self::Nic => size_of::<HlNicArgs>(),
        }
    }

    /// The ioctl's name as the header ends it: `INFO`, `WAIT_CS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Cb => "CB",
            Self::Cs => "CS",
            Self::WaitCs => "WAIT_CS",
            Self::Memory => "MEMORY",
            Self::Debug => "DEBUG",
            Self::Nic => "NIC",
        }
    }
}

impl fmt::Display for Ioctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Era {
    /// All eras, oldest first.
    pub const ALL: [Self; 3] = [Self::HlMisc, Self::AccelH, Self::AccelDrm];

    /// The request number of an ioctl, or nothing when the era does not have it.
    #[inline]
    pub const fn request(self, ioctl: Ioctl) -> Option<u32> {
        match (self, ioctl) {
            (Self::HlMisc | Self::AccelH, Ioctl::Nic) => None,
            (Self::HlMisc | Self::AccelH, _) => {
                Some(iowr(HL_IOCTL_BASE, 1 + ioctl.index(), ioctl.args_size()))
            }
            (Self::AccelDrm, _) => Some(iowr(
                DRM_IOCTL_BASE,
                DRM_COMMAND_BASE + ioctl.index(),
                ioctl.args_size(),
            )),
        }
    }

    /// The ioctl of a request number, as this era's driver would dispatch it: by type and number,
    /// whatever size the number carries.
    pub fn ioctl(self, request: u32) -> Option<Ioctl> {
        let parts = Parts::of(request);
        Ioctl::ALL.into_iter().find(|&i| {
            self.request(i)
                .map(Parts::of)
                .is_some_and(|own| own.kind == parts.kind && own.nr == parts.nr)
        })
    }

    /// The directory of the device nodes.
    pub const fn dev_dir(self) -> &'static str {
        match self {
            Self::HlMisc => "/dev",
            Self::AccelH | Self::AccelDrm => "/dev/accel",
        }
    }

    /// The directory of the device class in sysfs.
    pub const fn class_dir(self) -> &'static str {
        match self {
            Self::HlMisc => "/sys/class/habanalabs",
            Self::AccelH | Self::AccelDrm => "/sys/class/accel",
        }
    }

    /// Where the driver's attributes (`pci_addr`, `module_id`) lie below the compute node's class
    /// directory.
    ///
    /// In the newest era they belong to the PCI device, which the link `device` leads to.
    pub const fn attributes_below(self) -> &'static str {
        match self {
            Self::HlMisc | Self::AccelH => "",
            Self::AccelDrm => "device",
        }
    }

    /// The file name of a kind of nodes without the index.
    const fn prefix(self, kind: NodeKind) -> &'static str {
        match (self, kind) {
            (Self::HlMisc, NodeKind::Compute) => "hl",
            (Self::HlMisc, NodeKind::Control) => "hl_controlD",
            (_, NodeKind::Compute) => "accel",
            (_, NodeKind::Control) => "accel_controlD",
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HlMisc => "hl-misc",
            Self::AccelH => "accel-h",
            Self::AccelDrm => "accel-drm",
        })
    }
}

/// The two nodes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// One opener at a time; everything is allowed; the device is reset when it closes.
    Compute,
    /// Any number of openers, INFO only.
    Control,
}

/// A device node by name; prints as its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The interface that the node's name belongs to. `AccelH` and `AccelDrm` share names.
    pub era: Era,
    /// Compute or control.
    pub kind: NodeKind,
    /// The number in the name. The two nodes of a device share it; their minors need not be
    /// related.
    pub index: u32,
}

impl Node {
    /// The file name without its directory.
    pub fn file_name(self) -> FileName {
        FileName(self)
    }

    /// Reads a file name of the era's directory. Names of other drivers' nodes and leading zeros
    /// are not taken.
    pub fn from_file_name(era: Era, name: &str) -> Option<Self> {
        let digits = |prefix: &str| {
            let rest = name.strip_prefix(prefix)?;
            let plain = rest.bytes().all(|b| b.is_ascii_digit()) && (rest == "0" || !rest.starts_with('0'));
            if plain { rest.parse().ok() } else { None }
        };
        [NodeKind::Control, NodeKind::Compute]
            .into_iter()
            .find_map(|kind| digits(era.prefix(kind)).map(|index| Self { era, kind, index }))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.era.dev_dir(), self.file_name())
    }
}

/// The file name of a [`Node`], to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName(Node);

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { era, kind, index } = self.0;
        write!(f, "{}{index}", era.prefix(kind))
    }
}
