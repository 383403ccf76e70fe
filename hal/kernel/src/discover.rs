//! The list of devices, with the answers of their control nodes.

use gaudi_seam::{Era, KernelIo as _, KernelIoExt, NodeKind, PciAddress, Result};
use gaudi_uapi::info::{HlInfoDeviceStatus, HlInfoHwIpInfo, HlOpenStatsInfo};

use crate::open::Driver;
use crate::system::Syscalls;

/// A device of this machine.
#[derive(Debug)]
pub struct Listed {
    /// N of `accelN` and `accel_controlDN`, or of `hlN` and `hl_controlDN`.
    pub index: u32,
    /// The PCI address. `None` if sysfs does not show it.
    pub pci: Option<PciAddress>,
    /// The answer of its control node. An error here does not hide other devices.
    pub identity: Result<Identity>,
}

/// What a control node reports in any state of the device.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The interface of its driver.
    pub era: Era,
    /// The hardware.
    pub hw_ip: HlInfoHwIpInfo,
    /// The device's status.
    pub status: HlInfoDeviceStatus,
    /// The opens of the device; `is_compute_ctx_active` is set while a process has it open.
    pub open_stats: HlOpenStatsInfo,
}

impl<S: Syscalls + ?Sized> Driver<S> {
    /// All devices, in the order of their numbers. Opens no compute node.
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
}
