//! `HL_IOCTL_INFO` (driver common/habanalabs_ioctl.c): what `_hl_info_ioctl` answers, for both
//! nodes.

use gaudi_seam::{Clock, Error, Info, InfoRequest, NodeKind, Operation, Result, Rule, rules};
use gaudi_uapi::info::{
    HlInfoClkRate, HlInfoCsCounters, HlInfoCsTimeoutEvent, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle,
    HlInfoHwIpInfo, HlInfoLastErrOpenDevTime, HlInfoResetCount, HlInfoSigned, HlInfoSyncManager,
    HlInfoTimeSync, HlOpenStatsInfo, InfoOp, MockFault,
};
use zerocopy::{FromZeros as _, IntoBytes};

use crate::engines;
use crate::open::Device;
use crate::state::State;
use crate::time::timestamp;

/// The firmware version that the mock reports. No card has it.
const FIRMWARE: &[u8] = b"mock (no firmware)";
/// The clock that the mock reports in MHz: that of a busy card.
const CLOCK_MHZ: u32 = 1650;
/// Bytes of the firmware's record of a card (linux/habanalabs/cpucp_if.h `struct cpucp_info`).
const CPUCP_INFO: u16 = 1768;
/// Operations that a control node does not have.
const OF_EVENTS: [InfoOp; 3] = [
    InfoOp::GET_EVENTS,
    InfoOp::REGISTER_EVENTFD,
    InfoOp::UNREGISTER_EVENTFD,
];

/// Operations whose answer stays zero or untouched.
const ZEROS: &[InfoOp] = &[
    // A chip with one page size answers an empty mask (habanalabs_ioctl.c
    // `dev_mem_alloc_page_sizes_info`).
    InfoOp::DEV_MEM_ALLOC_PAGE_SIZES,
    // A driver whose firmware does not run takes 0 for its answer to anything (gaudi2.c
    // `gaudi2_send_cpu_message`): no energy, no traffic, no output of any PLL, no row replaced or
    // pending, a quote of no bytes.
    InfoOp::TOTAL_ENERGY,
    InfoOp::PCI_COUNTERS,
    InfoOp::PLL_FREQUENCY,
    InfoOp::POWER,
    InfoOp::DEVICE_UTILIZATION,
    InfoOp::DRAM_REPLACED_ROWS,
    InfoOp::DRAM_PENDING_ROWS,
    InfoOp::SECURED_ATTESTATION,
];

impl Device {
    pub(crate) fn info(&self, node: NodeKind, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        const OP: Operation = Operation::Info;
        answer.fill(0);
        let mut guard = self.lock();
        let state = &mut *guard;
        state.settle();
        let on_compute = node == NodeKind::Compute;
        let (op, room) = (request.op, answer.len());
        if !on_compute && OF_EVENTS.contains(&op) {
            return Err(self.refuse(OP, &rules::info::CONTROL_EVENTS));
        }
        let info = Info { request, answer };
        self.check_rules(&info, None)?;
        if op == InfoOp::UNREGISTER_EVENTFD {
            drop(guard);
            return self.unregister_events().map(|()| request.arg);
        }
        self.check_rules(&info, Some(state))?;
        // The driver copies the smaller of both sizes (habanalabs_ioctl.c `hw_ip_info`).
        let mut put = |bytes: &[u8]| {
            info.answer
                .iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = *from);
        };
        // Most operations do not change the argument word.
        let mut word = request.arg;
        match op {
            InfoOp::HW_IP_INFO => put(self.hw_ip().as_bytes()),
            InfoOp::DEVICE_STATUS => put(HlInfoDeviceStatus {
                status: state.status,
                ..zeroed()
            }
            .as_bytes()),
            // Every reset but the one after an ordinary close is a hard one on this chip (device.c
            // `hl_device_reset`).
            InfoOp::RESET_COUNT => put(HlInfoResetCount {
                hard_reset_cnt: state.hard_resets,
                soft_reset_cnt: 0,
            }
            .as_bytes()),
            InfoOp::DRAM_USAGE => put(state.dram_usage(on_compute).as_bytes()),
            InfoOp::CS_COUNTERS => put(state.cs_counters(on_compute).as_bytes()),
            InfoOp::OPEN_STATS => put(state.open_stats().as_bytes()),
            InfoOp::SYNC_MANAGER => {
                // All objects of the other die cores are for users.
                let sync = &self.asic.sync;
                let first = |number: u32| if request.arg == 0 { number } else { 0 };
                put(HlInfoSyncManager {
                    first_available_sync_object: first(sync.first_user_sob),
                    first_available_monitor: first(sync.first_user_monitor),
                    first_available_cq: first(sync.first_user_cq),
                    ..zeroed()
                }
                .as_bytes());
            }
            // No timeout is a record of zeros.
            InfoOp::CS_TIMEOUT_EVENT => {
                let (at_ns, seq) = state.errors.cs_timeout.unwrap_or_default();
                let timestamp = timestamp(at_ns);
                put(HlInfoCsTimeoutEvent { timestamp, seq }.as_bytes());
            }
            InfoOp::LAST_ERR_OPEN_DEV_TIME => {
                let timestamp = timestamp(state.opened_ns);
                put(HlInfoLastErrOpenDevTime { timestamp }.as_bytes());
            }
            InfoOp::HW_EVENTS => put(state.events.now.as_bytes()),
            InfoOp::HW_EVENTS_AGGREGATE => put(state.events.ever.as_bytes()),
            // None recorded is a record of zeros.
            InfoOp::UNDEFINED_OPCODE_EVENT => {
                put(state.errors.undefined_opcode.unwrap_or_default().as_bytes());
            }
            InfoOp::RAZWI_EVENT => {
                if let Some(razwi) = &state.errors.razwi {
                    put(razwi.as_bytes());
                }
            }
            InfoOp::PAGE_FAULT_EVENT => {
                if let Some((fault, _)) = &state.errors.page_fault {
                    put(fault.as_bytes());
                }
            }
            InfoOp::USER_MAPPINGS => {
                if let Some((_, mappings)) = &state.errors.page_fault {
                    let mappings = mappings.as_slice();
                    self.wants_room(&rules::info::MAPPINGS_ROOM, room, size_of_val(mappings))?;
                    put(mappings.as_bytes());
                    // A context has fewer than 2^32 mappings.
                    word = mappings.len() as u32;
                }
            }
            InfoOp::USER_ENGINE_ERR_EVENT => {
                if let Some(error) = &state.errors.engine {
                    self.wants_room(&rules::info::ENGINE_ERROR_ROOM, room, size_of_val(error))?;
                    put(error.as_bytes());
                }
            }
            InfoOp::HW_ERR_EVENT => {
                if let Some(error) = &state.errors.hardware {
                    self.wants_room(&rules::info::HW_ERROR_ROOM, room, size_of_val(error))?;
                    put(error.as_bytes());
                }
            }
            InfoOp::FW_ERR_EVENT => {
                if let Some(error) = &state.errors.firmware {
                    self.wants_room(&rules::info::FW_ERROR_ROOM, room, size_of_val(error))?;
                    put(error.as_bytes());
                }
            }
            InfoOp::CLK_THROTTLE_REASON => {
                put(state.throttling.answer(state.clock.now_ns()).as_bytes());
            }
            InfoOp::GET_EVENTS => {
                let events = state.context.as_mut().map(|context| context.notifier.take());
                // A closed device has no events.
                put(events.unwrap_or_default().0.as_bytes());
            }
            InfoOp::HW_IDLE => put(state.hw_idle().as_bytes()),
            InfoOp::CLK_RATE => put(HlInfoClkRate {
                cur_clk_rate_mhz: CLOCK_MHZ,
                max_clk_rate_mhz: CLOCK_MHZ,
            }
            .as_bytes()),
            InfoOp::TIME_SYNC => {
                let device_time = state.clock.now_ns();
                let host_time = match self.spec.clock {
                    Clock::Virtual => device_time,
                    Clock::Monotonic => monotonic_raw_ns(),
                };
                put(HlInfoTimeSync {
                    device_time,
                    host_time,
                    ..zeroed()
                }
                .as_bytes());
            }
            InfoOp::DEV_SIGNED => {
                // The one figure that is the driver's own (habanalabs_ioctl.c `dev_info_signed`).
                let mut signed = HlInfoSigned::new_zeroed();
                signed.dev_info_len = CPUCP_INFO;
                put(signed.as_bytes());
            }
            // What firmware does not do it refuses (firmware_if.c `hl_fw_send_cpu_message`), and
            // the mock has none that could.
            InfoOp::FW_GENERIC_REQ => return Err(self.refuse(OP, &rules::info::FIRMWARE_REFUSES)),
            InfoOp::ENGINE_STATUS => {
                let text = engines::status(&*state.engine);
                self.wants_room(&rules::info::ENGINE_STATUS_ROOM, room, text.len())?;
                put(text.as_bytes());
                // At most the room, which is 1 MiB.
                word = text.len() as u32;
            }
            op if ZEROS.contains(&op) => {}
            InfoOp::REGISTER_EVENTFD => {
                let error =
                    Error::unsupported("HL_INFO_REGISTER_EVENTFD", "a number is not a descriptor here");
                return Err(error
                    .on(self.id)
                    .helped_by("pass the descriptor itself to register_events"));
            }
            op if op.named().is_some() => {
                let name = op.c_name().unwrap_or(OP.kernel_name());
                return Err(Error::unsupported(name, "the mock does not serve it yet").on(self.id));
            }
            InfoOp::MOCK_FAULT if on_compute => {
                let Some(fault) = MockFault::of(request.arg) else {
                    return Err(self.refuse(OP, &rules::info::UNKNOWN).showing(request.arg));
                };
                word = state.inject(fault).into();
                drop(guard);
                self.wakeups.wake_all();
            }
            op => return Err(self.refuse(OP, &rules::info::UNKNOWN).showing(op)),
        }
        Ok(word)
    }

    fn wants_room(&self, rule: &'static Rule, room: usize, wanted: usize) -> Result<()> {
        if room >= wanted {
            return Ok(());
        }
        let error = self.refuse(Operation::Info, rule);
        Err(error.saw(room, format!("at least {wanted}")))
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
        // Without a context, its counters are zero.
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
