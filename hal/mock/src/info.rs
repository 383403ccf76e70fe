//! `HL_IOCTL_INFO` (driver common/habanalabs_ioctl.c): what `_hl_info_ioctl` answers, for both
//! nodes.

use gaudi_seam::{Clock, Error, InfoRequest, NodeKind, Operation, Result, Rule, rules};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoClkRate, HlInfoClkThrottle, HlInfoCsCounters, HlInfoCsTimeoutEvent,
    HlInfoDevMemallocPageSizes, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo,
    HlInfoLastErrOpenDevTime, HlInfoResetCount, HlInfoSigned, HlInfoSyncManager, HlInfoTimeSync,
    HlOpenStatsInfo, HlPowerInfo, InfoOp,
};
use zerocopy::{FromZeros as _, IntoBytes};

use crate::engines;
use crate::open::Device;
use crate::state::State;
use crate::time::timestamp;

/// Die cores in the driver's tables (habanalabs.h:147 `HL_MAX_DCORES`).
const MAX_DCORES: u32 = 8;
/// The mock's name of its firmware, which cannot be taken for a card's.
const FIRMWARE: &[u8] = b"mock (no firmware)";
/// The clock of a card at work, MHz; the mock has none.
const CLOCK_MHZ: u32 = 1650;
/// Answers that `HL_INFO_ENGINE_STATUS` takes (habanalabs_ioctl.c:814, habanalabs.h
/// `HL_ENGINES_DATA_MAX_SIZE`).
const ENGINE_STATUS_ROOM: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 20;
/// Requests that may be passed through to firmware: versions, error counters, power state
/// (habanalabs_ioctl.c:960).
const FW_REQUESTS: u32 = 3;
/// Bytes of the firmware's record of a card (linux/habanalabs/cpucp_if.h `struct cpucp_info`).
const CPUCP_INFO: u16 = 1768;
/// Bytes of one at most (habanalabs_ioctl.c:974).
const FW_REQUEST_ROOM: usize = 1 << 20;

impl Device {
    pub(crate) fn info(&self, node: NodeKind, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        const OP: Operation = Operation::Info;
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
            return Err(self.not_on_control(OP));
        }
        let room = answer.len();
        let short = || Err(self.refuse(OP, &rules::info::ROOM).saw(room, "more"));
        // habanalabs_ioctl.c: most operations begin with this check. Those of records look for the
        // answer's address alone (:869, :893), and an answer without room has none.
        let of_any_size = [
            InfoOp::REGISTER_EVENTFD,
            InfoOp::UNREGISTER_EVENTFD,
            InfoOp::FW_GENERIC_REQ,
        ];
        if room == 0 && request.op.named().is_some() && !of_any_size.contains(&request.op) {
            return short();
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
                // device.c:1657: every reset but the one after an ordinary close is a hard one on
                // this chip.
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
                // habanalabs_ioctl.c:452: the driver's tables have room for eight; of all but the
                // first everything is the user's.
                let sync = &self.asic.sync;
                if request.arg >= MAX_DCORES {
                    return Err(self
                        .refuse(OP, &rules::info::DCORE)
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
                // No timeout is a record of zeros.
                let (at_ns, seq) = state.errors.cs_timeout.unwrap_or_default();
                let timestamp = timestamp(at_ns);
                return put(HlInfoCsTimeoutEvent { timestamp, seq }.as_bytes());
            }
            InfoOp::LAST_ERR_OPEN_DEV_TIME => {
                let timestamp = timestamp(state.opened_ns);
                return put(HlInfoLastErrOpenDevTime { timestamp }.as_bytes());
            }
            InfoOp::HW_EVENTS => return put(state.events.now.as_bytes()),
            InfoOp::HW_EVENTS_AGGREGATE => return put(state.events.ever.as_bytes()),
            // No clock ticks here, and none was ever throttled.
            InfoOp::CLK_THROTTLE_REASON => return put(HlInfoClkThrottle::new_zeroed().as_bytes()),
            // What is recorded of these comes from the firmware of a card, and the mock has none.
            // An empty record leaves the answer untouched (habanalabs_ioctl.c:624, :890, :912), of
            // whatever size it is.
            InfoOp::RAZWI_EVENT | InfoOp::HW_ERR_EVENT | InfoOp::FW_ERR_EVENT => return Ok(request.arg),
            InfoOp::UNDEFINED_OPCODE_EVENT => {
                // None recorded is a record of zeros.
                return put(state.errors.undefined_opcode.unwrap_or_default().as_bytes());
            }
            InfoOp::PAGE_FAULT_EVENT => {
                return match &state.errors.page_fault {
                    None => Ok(request.arg),
                    Some((fault, _)) => put(fault.as_bytes()),
                };
            }
            InfoOp::USER_MAPPINGS => {
                // habanalabs_ioctl.c:861
                let Some((_, mappings)) = &state.errors.page_fault else {
                    return Ok(request.arg);
                };
                if room < size_of_val(mappings.as_slice()) {
                    return Err(self.too_small(
                        &rules::info::MAPPINGS_ROOM,
                        room,
                        size_of_val(mappings.as_slice()),
                    ));
                }
                put(mappings.as_bytes())?;
                // A context has fewer than 2^32 mappings.
                return Ok(mappings.len() as u32);
            }
            InfoOp::USER_ENGINE_ERR_EVENT => {
                // habanalabs_ioctl.c:932
                return match &state.errors.engine {
                    None => Ok(request.arg),
                    Some(error) if room < size_of_val(error) => {
                        Err(self.too_small(&rules::info::ENGINE_ERROR_ROOM, room, size_of_val(error)))
                    }
                    Some(error) => put(error.as_bytes()),
                };
            }
            InfoOp::GET_EVENTS => {
                // habanalabs_ioctl.c:143
                if room < size_of::<u64>() {
                    return short();
                }
                let events = state.context.as_mut().map(|context| context.notifier.take());
                // A closed device has no events.
                return put(events.unwrap_or_default().0.as_bytes());
            }
            InfoOp::UNREGISTER_EVENTFD => {
                drop(guard);
                return self.unregister_events().map(|()| request.arg);
            }
            _ => {}
        }
        if state.status != DeviceStatus::OPERATIONAL {
            // habanalabs_ioctl.c:1089
            return Err(self
                .refuse(OP, &rules::info::IN_RESET)
                .because(format!("the device is {}", state.status)));
        }
        match request.op {
            // gaudi2.c:11768
            InfoOp::PLL_FREQUENCY if request.arg >= self.asic.plls => Err(self
                .refuse(OP, &rules::info::PLL)
                .because("there is no such PLL")
                .saw(request.arg, format!("below {}", self.asic.plls))),
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
            // A driver whose firmware does not run takes 0 for its answer to anything
            // (gaudi2.c:7095). Zeroed structs are what users then see: no energy, no traffic, no
            // output of any PLL, no row replaced or pending, a quote of no bytes.
            InfoOp::TOTAL_ENERGY
            | InfoOp::PCI_COUNTERS
            | InfoOp::PLL_FREQUENCY
            | InfoOp::DEVICE_UTILIZATION
            | InfoOp::DRAM_REPLACED_ROWS
            | InfoOp::DRAM_PENDING_ROWS
            | InfoOp::SECURED_ATTESTATION => Ok(request.arg),
            InfoOp::DEV_SIGNED => {
                // The one figure that is the driver's own (habanalabs_ioctl.c:753).
                let mut signed = HlInfoSigned::new_zeroed();
                signed.dev_info_len = CPUCP_INFO;
                put(signed.as_bytes())
            }
            InfoOp::FW_GENERIC_REQ => {
                // habanalabs_ioctl.c:960, :974
                if request.arg >= FW_REQUESTS {
                    return Err(self
                        .refuse(OP, &rules::info::FIRMWARE_UNKNOWN)
                        .showing(request.arg));
                }
                if room > FW_REQUEST_ROOM {
                    return Err(self.refuse(OP, &rules::info::FIRMWARE_TOO_LARGE).showing(room));
                }
                // habanalabs_ioctl.c:980: the driver's pool has no piece of 0 bytes.
                if room == 0 {
                    return Err(self.too_small(&rules::info::FIRMWARE_ROOM, room, 1));
                }
                // firmware_if.c:488: what firmware does not do it refuses, and the mock has none
                // that could.
                Err(self.refuse(OP, &rules::info::FIRMWARE_REFUSES))
            }
            InfoOp::ENGINE_STATUS => {
                // habanalabs_ioctl.c:814
                if !ENGINE_STATUS_ROOM.contains(&room) {
                    return Err(self
                        .refuse(OP, &rules::info::ENGINE_STATUS_SIZE)
                        .because("engines' status takes another size of answer")
                        .saw(room, "1 KiB to 1 MiB"));
                }
                let text = engines::status(&*state.engine);
                if text.len() > room {
                    return Err(self.too_small(&rules::info::ENGINE_STATUS_ROOM, room, text.len()));
                }
                put(text.as_bytes())?;
                // At most the room, which is 1 MiB.
                Ok(text.len() as u32)
            }
            InfoOp::REGISTER_EVENTFD => Err(Error::unsupported(
                "HL_INFO_REGISTER_EVENTFD",
                "a number is not a descriptor here",
            )
            .on(self.id)
            .helped_by("pass the descriptor itself to register_events")),
            op if op.named().is_some() => {
                let name = op.c_name().unwrap_or(OP.kernel_name());
                Err(Error::unsupported(name, "the mock does not serve it yet").on(self.id))
            }
            // habanalabs_ioctl.c:1149
            op => Err(self
                .refuse(OP, &rules::info::UNKNOWN)
                .because(format!("there is no operation {op}"))),
        }
    }

    fn too_small(&self, rule: &'static Rule, room: usize, wanted: usize) -> Error {
        self.refuse(Operation::Info, rule)
            .saw(room, format!("at least {wanted}"))
    }

    fn hw_ip(&self) -> HlInfoHwIpInfo {
        let mut info = HlInfoHwIpInfo::new_zeroed();
        let asic = self.asic;
        info.sram_base_address = asic.sram_base.0;
        info.dram_base_address = asic.dram_va.start.0;
        info.dram_size = self.spec.dram;
        info.sram_size = u32::try_from(asic.sram_size).expect("an SRAM is smaller than 4 GiB");
        info.num_of_events = asic.events.count.into();
        info.device_id = asic.device.into();
        info.module_id = self.spec.index;
        info.decoder_enabled_mask = asic.enabled.decoders;
        info.first_available_interrupt_id = asic.user_interrupts.start;
        info.number_of_user_interrupts = asic.user_interrupts.end - asic.user_interrupts.start;
        info.tpc_enabled_mask = asic.enabled.tpcs as u8;
        info.tpc_enabled_mask_ext = asic.enabled.tpcs;
        info.dram_enabled = 1;
        info.mme_master_slave_mode = 1;
        text(&mut info.cpucp_version, FIRMWARE);
        text(&mut info.card_name, asic.card_name.as_bytes());
        info.dram_page_size = asic.dram_page;
        info.device_mem_alloc_default_page_size = asic.dram_page;
        info.tpc_interrupt_id = asic.tpc_assert_interrupt;
        info.edma_enabled_mask = asic.enabled.edmas;
        info.revision_id = asic.revisions.start;
        info.rotator_enabled_mask = asic.enabled.rotators;
        info.reserved_dram_size = asic.dram_reserved;
        info
    }
}

impl State {
    fn dram_usage(&self, of_context: bool) -> HlInfoDramUsage {
        let dram_free_mem = self.pages.free() as u64 * self.asic.dram_page;
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
        let mask = engines::busy(&*self.engine);
        let mut idle = HlInfoHwIdle::new_zeroed();
        idle.is_idle = u32::from(mask == 0);
        idle.busy_engines_mask = mask as u32;
        (idle.busy_engines_mask_ext[0], idle.busy_engines_mask_ext[1]) = (mask as u64, (mask >> 64) as u64);
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
