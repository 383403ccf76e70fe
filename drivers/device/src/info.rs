//! What a device says of itself, over a control node or a compute node.

use gaudi_seam::{DeviceId, DeviceVa, ErrorKind, KernelIo, KernelIoExt as _, Result};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIpInfo, HlOpenStatsInfo};

use crate::asic;

/// A summary of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Backend and index.
    pub device: DeviceId,
    /// The node's path, or the mock's spec.
    pub node: String,
    /// `gaudi2`, or `None` where no table knows the device id.
    pub asic: Option<&'static str>,
    /// The card's name, as its firmware tells it.
    pub card_name: String,
    /// PCI device id.
    pub device_id: u32,
    /// PCI revision.
    pub revision: u8,
    /// Place on the server's board.
    pub module_id: u32,
    /// Whether it works.
    pub status: DeviceStatus,
    /// Bytes of device memory for users.
    pub dram_bytes: u64,
    /// Bytes of it that nobody uses; `None` where the driver does not tell.
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
    /// Tensor processors that work, a bit each.
    pub tpc_mask: u64,
    /// Internal DMA engines that work, a bit each.
    pub edma_mask: u32,
    /// Whether somebody has the compute node open; `None` where the driver does not tell.
    pub in_use: Option<bool>,
    /// Successful opens of the compute node; `None` where the driver does not tell.
    pub opens: Option<u64>,
}

impl Info {
    /// Asks an open node. A control node is enough, and the one to ask: it disturbs nobody.
    pub fn query(io: &dyn KernelIo) -> Result<Self> {
        let node = io.node();
        let hw: HlInfoHwIpInfo = io.query()?;
        let status: HlInfoDeviceStatus = io.query()?;
        let usage = told(io.query::<HlInfoDramUsage>())?;
        let opens = told(io.query::<HlOpenStatsInfo>())?;
        Ok(Self {
            device: node.device,
            node: node.name.clone(),
            asic: asic::find(hw.device_id).ok().map(|asic| asic.name),
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

/// An answer that a driver may lack: device memory cannot be asked about while the device is not operational (`EBUSY`), and an older
/// driver does not know every question (`EINVAL`, `ENOTTY`).
fn told<T>(answer: Result<T>) -> Result<Option<T>> {
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
