//! `HL_IOCTL_INFO` (driver common/habanalabs_ioctl.c): what `_hl_info_ioctl` answers, for both nodes.

use gaudi_seam::{Clock, Errno, Error, InfoRequest, NodeKind, Result};
use gaudi_spec::gaudi2;
use gaudi_uapi::info::{
    DeviceStatus, HlInfoClkRate, HlInfoCsCounters, HlInfoCsTimeoutEvent, HlInfoDevMemallocPageSizes,
    HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo, HlInfoLastErrOpenDevTime,
    HlInfoResetCount, HlInfoSyncManager, HlInfoTimeSync, HlOpenStatsInfo, HlPowerInfo, InfoOp,
};
use zerocopy::{FromZeros as _, IntoBytes};

use crate::open::{Device, State};

/// Events that the firmware can send (gaudi2_async_events.h `GAUDI2_EVENT_SIZE`).
const EVENTS: u32 = 1329;
/// Die cores in the driver's tables (habanalabs.h:147 `HL_MAX_DCORES`).
const MAX_DCORES: u32 = 8;
/// What the mock calls its firmware: nobody can take it for a card's.
const FIRMWARE: &[u8] = b"mock (no firmware)";
/// As the driver's firmware tells a card at work (MHz); no clock ticks here.
const CLOCK_MHZ: u32 = 1650;

impl Device {
    pub(crate) fn info(&self, node: NodeKind, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        const OP: &str = "HL_IOCTL_INFO";
        answer.fill(0);
        let mut guard = self.lock();
        let state = &mut *guard;
        state.settle();
        let on_control = [
            InfoOp::GET_EVENTS,
            InfoOp::REGISTER_EVENTFD,
            InfoOp::UNREGISTER_EVENTFD,
        ];
        if node == NodeKind::Control && on_control.contains(&request.op) {
            // habanalabs_ioctl.c:1165
            return Err(self
                .refusal(OP, Errno::EOPNOTSUPP)
                .because(format!("{} is the compute node's", request.op)));
        }
        // habanalabs_ioctl.c: every operation begins with this check.
        if answer.is_empty() && request.op.named().is_some() {
            return Err(self.refusal(OP, Errno::EINVAL).because("the answer has no room"));
        }
        let of_context = node == NodeKind::Compute;
        let mut put = |bytes: &[u8]| {
            // The driver copies the smaller of both sizes (habanalabs_ioctl.c:44).
            answer.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            Ok(request.arg)
        };
        match request.op {
            InfoOp::HW_IP_INFO => return put(self.hw_ip().as_bytes()),
            InfoOp::DEVICE_STATUS => {
                return put(HlInfoDeviceStatus {
                    status: state.status,
                    ..zeroed()
                }
                .as_bytes());
            }
            InfoOp::RESET_COUNT => {
                // device.c:1657: every reset but the one after an ordinary close is a hard one on this chip.
                return put(HlInfoResetCount {
                    hard_reset_cnt: state.hard_resets,
                    soft_reset_cnt: 0,
                }
                .as_bytes());
            }
            InfoOp::DRAM_USAGE => return put(state.dram_usage(of_context).as_bytes()),
            InfoOp::CS_COUNTERS => return put(state.cs_counters(of_context).as_bytes()),
            InfoOp::OPEN_STATS => return put(state.open_stats().as_bytes()),
            InfoOp::SYNC_MANAGER => {
                // habanalabs_ioctl.c:452: the driver's tables have room for eight; of all but the first everything is the user's.
                let sync = &gaudi2::ASIC.sync;
                if request.arg >= MAX_DCORES {
                    return Err(self
                        .refusal(OP, Errno::EINVAL)
                        .because("there is no such die core")
                        .saw(request.arg, format!("below {MAX_DCORES}")));
                }
                let first = |number: u32| if request.arg == 0 { number } else { 0 };
                return put(HlInfoSyncManager {
                    first_available_sync_object: first(sync.first_user_sob),
                    first_available_monitor: first(sync.first_user_monitor),
                    first_available_cq: first(sync.first_user_cq),
                    ..zeroed()
                }
                .as_bytes());
            }
            InfoOp::DEV_MEM_ALLOC_PAGE_SIZES => {
                // habanalabs_ioctl.c:663: a chip with one page size answers an empty mask.
                return put(HlInfoDevMemallocPageSizes {
                    page_order_bitmask: 0,
                }
                .as_bytes());
            }
            InfoOp::CS_TIMEOUT_EVENT => {
                let (timestamp, seq) = state.last_timeout.unwrap_or_default();
                let timestamp = i64::try_from(timestamp).unwrap_or(i64::MAX);
                return put(HlInfoCsTimeoutEvent { timestamp, seq }.as_bytes());
            }
            InfoOp::LAST_ERR_OPEN_DEV_TIME => {
                let timestamp = i64::try_from(state.opened_ns).unwrap_or(i64::MAX);
                return put(HlInfoLastErrOpenDevTime { timestamp }.as_bytes());
            }
            _ => {}
        }
        if state.status != DeviceStatus::OPERATIONAL {
            // habanalabs_ioctl.c:1089
            return Err(self
                .refusal(OP, Errno::EBUSY)
                .because(format!("the device is {}", state.status)));
        }
        match request.op {
            InfoOp::HW_IDLE => put(state.hw_idle().as_bytes()),
            InfoOp::CLK_RATE => put(HlInfoClkRate {
                cur_clk_rate_mhz: CLOCK_MHZ,
                max_clk_rate_mhz: CLOCK_MHZ,
            }
            .as_bytes()),
            InfoOp::POWER => put(HlPowerInfo { power: 0 }.as_bytes()),
            InfoOp::TIME_SYNC => {
                let now = state.clock.now_ns();
                let host_time = if self.spec.clock == Clock::Virtual {
                    now
                } else {
                    monotonic_raw_ns()
                };
                put(HlInfoTimeSync {
                    device_time: now,
                    host_time,
                    ..zeroed()
                }
                .as_bytes())
            }
            op if op.named().is_some() => {
                let name = op.c_name().unwrap_or(OP);
                Err(Error::unsupported(name, "the mock does not serve it yet").on(self.id))
            }
            // habanalabs_ioctl.c:1149
            op => Err(self
                .refusal(OP, Errno::EINVAL)
                .because(format!("there is no operation {op}"))),
        }
    }

    fn hw_ip(&self) -> HlInfoHwIpInfo {
        let mut info = HlInfoHwIpInfo::new_zeroed();
        info.sram_base_address = gaudi2::SRAM_BASE.0;
        info.dram_base_address = gaudi2::DRAM_VA.start.0;
        info.dram_size = self.spec.dram;
        info.sram_size = u32::try_from(gaudi2::SRAM_SIZE).unwrap_or(u32::MAX);
        info.num_of_events = EVENTS;
        info.device_id = u32::from(gaudi2::DEVICE);
        info.module_id = self.spec.index;
        info.decoder_enabled_mask = 0x3ff;
        info.first_available_interrupt_id = gaudi2::USER_INTERRUPTS.start;
        info.number_of_user_interrupts = gaudi2::USER_INTERRUPTS.end - gaudi2::USER_INTERRUPTS.start;
        info.tpc_enabled_mask = 0xff;
        info.tpc_enabled_mask_ext = 0x1ff_ffff;
        info.dram_enabled = 1;
        info.mme_master_slave_mode = 1;
        text(&mut info.cpucp_version, FIRMWARE);
        text(&mut info.card_name, gaudi2::CARD_NAME.as_bytes());
        info.dram_page_size = gaudi2::DRAM_PAGE;
        info.device_mem_alloc_default_page_size = gaudi2::DRAM_PAGE;
        info.edma_enabled_mask = 0xff;
        info.revision_id = gaudi2::REVISIONS.start;
        info.rotator_enabled_mask = 0b11;
        info.reserved_dram_size = gaudi2::DRAM_RESERVED;
        info
    }
}

impl State {
    fn dram_usage(&self, of_context: bool) -> HlInfoDramUsage {
        let dram_free_mem = self.pages.free() as u64 * gaudi2::DRAM_PAGE;
        let ctx_dram_mem = self
            .context
            .as_ref()
            .filter(|_| of_context)
            .map_or(0, |context| context.dram_bytes);
        HlInfoDramUsage {
            dram_free_mem,
            ctx_dram_mem,
        }
    }

    fn hw_idle(&self) -> HlInfoHwIdle {
        let busy = (0..gaudi2::ASIC.queue_count)
            .filter(|&queue| !self.chip.queue_is_idle(gaudi_spec::asic::QueueId(queue)))
            .filter_map(|queue| (gaudi2::ASIC.queue)(gaudi_spec::asic::QueueId(queue)));
        let mut mask = 0_u64;
        for row in busy {
            // gaudi2_engine_id counts engines of each kind in a row; the mock runs DMA engines only, and they are told by kind.
            mask |= 1 << (row.instance % 64);
        }
        let mut idle = HlInfoHwIdle::new_zeroed();
        idle.is_idle = u32::from(mask == 0);
        idle.busy_engines_mask = u32::try_from(mask & 0xffff_ffff).unwrap_or_default();
        idle.busy_engines_mask_ext[0] = mask;
        idle
    }

    fn cs_counters(&self, of_context: bool) -> HlInfoCsCounters {
        let total = self.drops();
        let own = self
            .context
            .as_ref()
            .filter(|_| of_context)
            .map(|c| c.submissions.drops)
            .unwrap_or_default();
        let mut counters = HlInfoCsCounters::new_zeroed();
        counters.total_parsing_drop_cnt = total.parsing;
        counters.ctx_parsing_drop_cnt = own.parsing;
        counters.total_queue_full_drop_cnt = total.queue_full;
        counters.ctx_queue_full_drop_cnt = own.queue_full;
        counters.total_max_cs_in_flight_drop_cnt = total.max_in_flight;
        counters.ctx_max_cs_in_flight_drop_cnt = own.max_in_flight;
        counters.total_validation_drop_cnt = total.validation;
        counters.ctx_validation_drop_cnt = own.validation;
        counters
    }

    fn open_stats(&self) -> HlOpenStatsInfo {
        let mut stats = HlOpenStatsInfo::new_zeroed();
        stats.open_counter = self.opens;
        stats.last_open_period_ms = self
            .closed_ns
            .map_or(0, |(opened, closed)| closed.saturating_sub(opened) / 1_000_000);
        stats.is_compute_ctx_active = u8::from(self.context.is_some());
        stats
    }
}

fn zeroed<T: zerocopy::FromZeros>() -> T {
    T::new_zeroed()
}

fn text(into: &mut [u8], from: &[u8]) {
    // The last byte stays zero: C reads the field as a string.
    let room = into.len().saturating_sub(1);
    into.iter_mut()
        .take(room)
        .zip(from)
        .for_each(|(to, from)| *to = *from);
}

fn monotonic_raw_ns() -> u64 {
    gaudi_sys::clock::monotonic_raw_ns()
}
