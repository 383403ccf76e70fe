//! Which devices there are, and what their control nodes answer.

use gaudi_seam::{Era, KernelIo as _, KernelIoExt, NodeKind, PciAddress, Result};
use gaudi_uapi::info::{HlInfoDeviceStatus, HlInfoHwIpInfo, HlOpenStatsInfo};

use crate::open::Driver;
use crate::system::Syscalls;

/// A device that was found.
#[derive(Debug)]
pub struct Listed {
    /// N of `accelN` and `accel_controlDN`, or of `hlN` and `hl_controlDN`.
    pub index: u32,
    /// Where it sits; nothing if sysfs does not say.
    pub pci: Option<PciAddress>,
    /// What its control node answered. A failure is shown in the device's place and hides no other.
    pub identity: Result<Identity>,
}

/// What a control node tells of a device in any state.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The interface that it speaks.
    pub era: Era,
    /// The hardware.
    pub hw_ip: HlInfoHwIpInfo,
    /// How it is.
    pub status: HlInfoDeviceStatus,
    /// Who has had it open: `is_compute_ctx_active` says whether it is taken now.
    pub open_stats: HlOpenStatsInfo,
}

impl<S: Syscalls + ?Sized> Driver<S> {
    /// The numbers of all devices, in order: of those that have a control node.
    pub fn indices(&self) -> Vec<u32> {
        let names = self.names();
        self.control_nodes(names.dev_dir(), names)
    }

    /// All devices, in the order of their numbers. Compute nodes are not touched; an empty list is no error.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |index| Listed {
            index,
            pci: self.pci_address(index),
            identity: self.identity(index),
        };
        self.indices().into_iter().map(listed).collect()
    }

    fn identity(&self, index: u32) -> Result<Identity> {
        let control = self.open_node(index, NodeKind::Control)?;
        Ok(Identity {
            era: control.node().era,
            hw_ip: control.query()?,
            status: control.query()?,
            open_stats: control.query()?,
        })
    }

    /// The place of a device in its server: what its control node says, else what sysfs says, for a user who may not
    /// open the node.
    pub(crate) fn module_id(&self, index: u32) -> Result<u32> {
        let asked = self
            .open_node(index, NodeKind::Control)
            .and_then(|control| control.query::<HlInfoHwIpInfo>())
            .map(|info| info.module_id);
        asked.or_else(|error| {
            let attribute = self.attribute(index, "module_id");
            attribute.and_then(|text| text.parse().ok()).ok_or(error)
        })
    }
}
