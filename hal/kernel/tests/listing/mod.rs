//! The devices of a machine, with the answers of their control nodes.

#![allow(dead_code, reason = "each test program uses a part of it")]

use gaudi_kernel::{Driver, Syscalls};
use gaudi_seam::{Era, KernelIo as _, KernelIoExt as _, KernelSelector, NodeKind, PciAddress, Result};
use gaudi_uapi::info::{HlInfoDeviceStatus, HlInfoHwIpInfo, HlOpenStatsInfo};

pub(crate) struct Listed {
    pub(crate) index: u32,
    pub(crate) pci: Option<PciAddress>,
    pub(crate) identity: Result<Identity>,
}

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) era: Era,
    pub(crate) hw_ip: HlInfoHwIpInfo,
    pub(crate) status: HlInfoDeviceStatus,
    pub(crate) open_stats: HlOpenStatsInfo,
}

/// All devices, in the order of their numbers.
pub(crate) fn list<S: Syscalls + ?Sized>(driver: &Driver<S>) -> Vec<Listed> {
    let listed = |index| Listed {
        index,
        pci: driver.pci_address(index),
        identity: identity(driver, index),
    };
    driver.indices().into_iter().map(listed).collect()
}

fn identity<S: Syscalls + ?Sized>(driver: &Driver<S>, index: u32) -> Result<Identity> {
    let control = driver.open(KernelSelector::Index(index), NodeKind::Control)?;
    Ok(Identity {
        era: control.node().era,
        hw_ip: control.query()?,
        status: control.query()?,
        open_stats: control.query()?,
    })
}
