//! The properties of a device, over a control node or a compute node.

use gaudi_seam::{DeviceId, DeviceVa, ErrorKind, KernelIo, KernelIoExt as _, Result};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIpInfo, HlOpenStatsInfo};

use crate::asic;

/// The properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Backend and index.
    pub device: DeviceId,
    /// The node's path, or the mock's spec.
    pub node: String,
    /// The chip's name; `None` if no table has the device id.
    pub asic: Option<&'static str>,
    /// The card's name, as its firmware reports it.
    pub card_name: String,
    /// PCI device id.
    pub device_id: u32,
    /// PCI revision.
    pub revision: u8,
    /// Position on the server's board.
    pub module_id: u32,
    /// The operational status.
    pub status: DeviceStatus,
    /// Bytes of device memory for users.
    pub dram_bytes: u64,
    /// Free bytes of it; `None` if the driver does not report them.
    pub dram_free_bytes: Option<u64>,
    /// The first address of device memory for users.
    pub dram_base: DeviceVa,
    /// Bytes of the page in which device memory is allocated.
    pub dram_page_bytes: u64,
    /// Bytes of SRAM for users.
    pub sram_bytes: u64,
    /// The first address of SRAM for users.
    pub sram_base: DeviceVa,
    /// Firmware of the management processor.
    pub firmware: String,
    /// Version of the board's CPLD.
    pub cpld_version: u32,
    /// Whether the device is secured.
    pub secured: bool,
    /// The enabled tensor processors, one bit for each.
    pub tpc_mask: u64,
    /// The enabled internal DMA engines, one bit for each.
    pub edma_mask: u32,
    /// Whether the compute node is open; `None` if the driver does not report it.
    pub in_use: Option<bool>,
    /// Successful opens of the compute node; `None` if the driver does not report them.
    pub opens: Option<u64>,
}

impl Info {
    /// Queries an open node. A control node is enough and has no limit on its users.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn query(io: &dyn KernelIo) -> Result<Self> {
        let node = io.node();
        let hw: HlInfoHwIpInfo = io.query()?;
        let status: HlInfoDeviceStatus = io.query()?;
        let usage = optional(io.query::<HlInfoDramUsage>())?;
        let opens = optional(io.query::<HlOpenStatsInfo>())?;
        Ok(Self {
            device: node.device,
            node: node.name.clone(),
            asic: asic::find(hw.device_id).ok().map(|(asic, _)| asic.name),
            card_name: hw.card_name_text().to_owned(),
            device_id: hw.device_id,
            revision: hw.revision_id,
            module_id: hw.module_id,
            status: status.status,
            dram_bytes: hw.dram_size,
            dram_free_bytes: usage.map(|usage| usage.dram_free_mem),
            dram_base: DeviceVa(hw.dram_base_address),
            dram_page_bytes: asic::page_bytes(&hw),
            sram_bytes: u64::from(hw.sram_size),
            sram_base: DeviceVa(hw.sram_base_address),
            firmware: hw.cpucp_version_text().to_owned(),
            cpld_version: hw.cpld_version,
            secured: hw.security_enabled != 0,
            tpc_mask: hw.tpc_enabled_mask_ext,
            edma_mask: hw.edma_enabled_mask,
            in_use: opens.map(|stats| stats.is_compute_ctx_active != 0),
            opens: opens.map(|stats| stats.open_counter),
        })
    }
}

/// Converts the error of an optional query to `None`: the driver refuses queries of device memory
/// while the device is not operational (`EBUSY`), and an older driver lacks some queries (`EINVAL`,
/// `ENOTTY`).
fn optional<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::Busy
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
