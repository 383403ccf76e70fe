//! [`Exporter`], and a module for each exporter that this crate can ask for a dma-buf. Each checks
//! the exporter's rules first, because the kernel refuses with a bare errno.

pub mod habanalabs;
pub mod heap;
mod meminfo;
pub mod stand_in;
pub mod udmabuf;
pub mod vfio;

use std::fmt;

use nix::libc::{O_CLOEXEC, O_RDWR};

/// The flags of a new dma-buf, for exporters that take them.
const OPEN_FLAGS: u32 = (O_CLOEXEC | O_RDWR).unsigned_abs();

/// The exporter of the memory behind a descriptor: `exp_name` in `/proc/self/fdinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exporter {
    /// Device memory of a Gaudi behind its PCI BAR. No CPU access, no revocation.
    Habanalabs,
    /// Pages of a sealed memfd (`/dev/udmabuf`).
    Udmabuf,
    /// Pages of `/dev/dma_heap/system`.
    SystemHeap,
    /// A PCI BAR exported by vfio-pci.
    VfioPci,
    /// Another exporter, by the name that the kernel shows.
    Unknown(String),
    /// No dma-buf at all: a window of a memfd that [stands in](gaudi_sys::standin) for one.
    StandIn,
}

impl Exporter {
    /// What counts and leaks call an exporter, by tag.
    pub(crate) const LABELS: [&str; 6] = [
        "unknown",
        "habanalabs",
        "udmabuf",
        "system heap",
        "vfio-pci",
        "stand-in",
    ];

    /// The exporter that the kernel calls so.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "habanalabs" => Self::Habanalabs,
            "udmabuf" => Self::Udmabuf,
            "system" | "system_heap" => Self::SystemHeap,
            "vfio_pci_core" | "vfio-pci-core" | "vfio_pci_dmabuf" => Self::VfioPci,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// Returns the name that tables show.
    pub fn name(&self) -> &str {
        match self {
            Self::Unknown(name) => name,
            Self::StandIn => "memfd stand-in (no dma-buf)",
            known => Self::LABELS[usize::from(known.tag())],
        }
    }

    /// Its number in messages and tables: fixed, since messages carry it between processes.
    pub(crate) fn tag(&self) -> u8 {
        match self {
            Self::Unknown(_) => 0,
            Self::Habanalabs => 1,
            Self::Udmabuf => 2,
            Self::SystemHeap => 3,
            Self::VfioPci => 4,
            Self::StandIn => 5,
        }
    }

    /// Whether this is a dma-buf of the kernel and not a stand-in.
    pub fn is_dmabuf(&self) -> bool {
        !matches!(self, Self::StandIn)
    }

    /// Why the CPU cannot map the memory, where that is known beforehand.
    pub(crate) fn refuses_cpu(&self) -> Option<&'static str> {
        match self {
            // drivers/accel/habanalabs/common/memory.c: its dma_buf_ops are attach, map, unmap and
            // release.
            Self::Habanalabs => {
                Some("habanalabs exports have no mmap operation: only a device can reach them")
            }
            // drivers/vfio/pci/vfio_pci_dmabuf.c: likewise; the BAR is mapped through the VFIO
            // device itself.
            Self::VfioPci => Some("vfio-pci exports have no mmap operation: map the BAR through the device"),
            _ => None,
        }
    }
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
