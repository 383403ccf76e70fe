//! Measurements of a device, over a control node or a compute node.

use gaudi_seam::{InfoRequest, KernelIo, KernelIoExt as _, Result};
use gaudi_uapi::info::{
    ClkThrottle, HlInfoClkRate, HlInfoClkThrottle, HlInfoDeviceUtilization, HlInfoPciCounters,
    HlInfoResetCount, InfoOp,
};

/// Bytes of the firmware's answer about replaced rows (linux/habanalabs/cpucp_if.h, `struct
/// cpucp_hbm_row_replaced_rows_info`).
const REPLACED_ROWS: usize = 8 + 32 * 8;

/// Measurements of a device. A field is `None` if the driver does not report it, for example during
/// a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Telemetry {
    /// The clock, in MHz.
    pub clock_mhz: Option<u32>,
    /// The highest clock, in MHz.
    pub clock_max_mhz: Option<u32>,
    /// Utilization in percent. The driver derives it from the power.
    pub utilization_percent: Option<u32>,
    /// Whether the clock is throttled because of the power.
    pub throttled_by_power: Option<bool>,
    /// Whether the clock is throttled because of the temperature.
    pub throttled_by_heat: Option<bool>,
    /// Rows of device memory that were replaced after ECC errors.
    pub rows_replaced: Option<u32>,
    /// Rows that will be replaced at the next reset.
    pub rows_pending: Option<u32>,
    /// PCI packets that were retransmitted.
    pub pci_replays: Option<u64>,
    /// Resets of the whole device since the driver was loaded.
    pub hard_resets: Option<u32>,
}

impl Telemetry {
    /// Queries an open node; a control node is enough. Fields whose query the driver rejects are
    /// `None`.
    pub fn query(io: &dyn KernelIo) -> Self {
        let clock = answered(io.query::<HlInfoClkRate>());
        let throttle = answered(io.query::<HlInfoClkThrottle>());
        let is_throttled = |reason| throttle.map(|throttle| throttle.clk_throttling_reason.contains(reason));
        let mut replaced = [0; REPLACED_ROWS];
        let of_replaced = answered(io.info(InfoRequest::new(InfoOp::DRAM_REPLACED_ROWS), &mut replaced));
        let mut pending = [0; 4];
        let of_pending = answered(io.info(InfoRequest::new(InfoOp::DRAM_PENDING_ROWS), &mut pending));
        let utilization = answered(io.query::<HlInfoDeviceUtilization>());
        Self {
            clock_mhz: clock.map(|clock| clock.cur_clk_rate_mhz),
            clock_max_mhz: clock.map(|clock| clock.max_clk_rate_mhz),
            utilization_percent: utilization.map(|answer| answer.utilization),
            throttled_by_power: is_throttled(ClkThrottle::POWER),
            throttled_by_heat: is_throttled(ClkThrottle::THERMAL),
            rows_replaced: of_replaced.map(|_| u16::from_le_bytes([replaced[0], replaced[1]]).into()),
            rows_pending: of_pending.map(|_| u32::from_ne_bytes(pending)),
            pci_replays: answered(io.query::<HlInfoPciCounters>()).map(|counters| counters.replay_cnt),
            hard_resets: answered(io.query::<HlInfoResetCount>()).map(|count| count.hard_reset_cnt),
        }
    }
}

/// Converts an error to `None`: not every driver and firmware has every measurement, and most need
/// an operational device.
fn answered<T>(answer: Result<T>) -> Option<T> {
    answer
        .inspect_err(|error| tracing::debug!("not measured: {error}"))
        .ok()
}
