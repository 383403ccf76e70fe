//! Answers to INFO by the kernel's names.

use gaudi_uapi::debug::{
    DebugOp, HlDebugParamsBmon, HlDebugParamsEtf, HlDebugParamsEtr, HlDebugParamsSpmu, HlDebugParamsStm,
};
use gaudi_uapi::info::*;
use zerocopy::{FromBytes, IntoBytes};

use super::fields::{Fields, Value, bytes as raw, fields, hex, list, shown};

/// The start of `bytes` as a struct, padded with zeros, as the driver fills a shorter answer.
fn front<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    for (to, from) in value.as_mut_bytes().iter_mut().zip(bytes) {
        *to = *from;
    }
    value
}

/// Bytes up to the first zero.
fn text(bytes: &[u8]) -> Value {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into()
}

/// `decoded!(bytes as Struct { field, field as hex, … })`
macro_rules! decoded {
    (@ $value:ident $name:ident) => { $value.$name };
    (@ $value:ident $name:ident text) => { text(&$value.$name) };
    (@ $value:ident $name:ident list) => { $value.$name.as_slice() };
    (@ $value:ident $name:ident $how:ident) => { $how($value.$name) };
    ($bytes:ident as $type:ident { $($name:ident $($how:ident)?),* $(,)? }) => {{
        let value: $type = front($bytes);
        fields! { $($name: decoded!(@ value $name $($how)?)),* }
    }};
}

/// The kernel's name of an INFO operation: `HL_INFO_DRAM_USAGE`.
pub(super) fn name(op: InfoOp) -> String {
    op.c_name().map_or_else(|| format!("HL_INFO_{op}"), str::to_owned)
}

/// Every field that the headers name, without reserved ones. An answer of another operation is its
/// bytes.
pub(super) fn answer(op: InfoOp, bytes: &[u8]) -> Fields {
    match op {
        InfoOp::HW_IP_INFO => decoded!(bytes as HlInfoHwIpInfo {
            sram_base_address hex, dram_base_address hex, dram_size, sram_size, num_of_events, device_id hex, module_id,
            decoder_enabled_mask hex, first_available_interrupt_id, server_type shown, cpld_version, psoc_pci_pll_nr,
            psoc_pci_pll_nf, psoc_pci_pll_od, psoc_pci_pll_div_factor, tpc_enabled_mask hex, dram_enabled,
            security_enabled, mme_master_slave_mode, cpucp_version text, card_name text, tpc_enabled_mask_ext hex,
            dram_page_size, edma_enabled_mask hex, number_of_user_interrupts, device_mem_alloc_default_page_size,
            revision_id, tpc_interrupt_id, rotator_enabled_mask hex, engine_core_interrupt_reg_addr hex,
            reserved_dram_size,
        }),
        InfoOp::DRAM_USAGE => decoded!(bytes as HlInfoDramUsage { dram_free_mem, ctx_dram_mem }),
        InfoOp::HW_IDLE => decoded!(bytes as HlInfoHwIdle {
            is_idle, busy_engines_mask hex, busy_engines_mask_ext,
        }),
        InfoOp::DEVICE_STATUS => decoded!(bytes as HlInfoDeviceStatus { status shown }),
        InfoOp::DEVICE_UTILIZATION => decoded!(bytes as HlInfoDeviceUtilization { utilization }),
        InfoOp::CLK_RATE => decoded!(bytes as HlInfoClkRate { cur_clk_rate_mhz, max_clk_rate_mhz }),
        InfoOp::RESET_COUNT => decoded!(bytes as HlInfoResetCount { hard_reset_cnt, soft_reset_cnt }),
        InfoOp::TIME_SYNC => decoded!(bytes as HlInfoTimeSync { device_time, host_time, tsc_time }),
        InfoOp::CS_COUNTERS => decoded!(bytes as HlInfoCsCounters {
            total_out_of_mem_drop_cnt, ctx_out_of_mem_drop_cnt, total_parsing_drop_cnt, ctx_parsing_drop_cnt,
            total_queue_full_drop_cnt, ctx_queue_full_drop_cnt, total_device_in_reset_drop_cnt,
            ctx_device_in_reset_drop_cnt, total_max_cs_in_flight_drop_cnt, ctx_max_cs_in_flight_drop_cnt,
            total_validation_drop_cnt, ctx_validation_drop_cnt,
        }),
        InfoOp::PCI_COUNTERS => {
            decoded!(bytes as HlInfoPciCounters { rx_throughput, tx_throughput, replay_cnt })
        }
        InfoOp::CLK_THROTTLE_REASON => decoded!(bytes as HlInfoClkThrottle {
            clk_throttling_reason shown, clk_throttling_timestamp_us, clk_throttling_duration_ns,
        }),
        InfoOp::SYNC_MANAGER => decoded!(bytes as HlInfoSyncManager {
            first_available_sync_object, first_available_monitor, first_available_cq,
        }),
        InfoOp::TOTAL_ENERGY => decoded!(bytes as HlInfoEnergy { total_energy_consumption }),
        InfoOp::PLL_FREQUENCY => decoded!(bytes as HlPllFrequencyInfo { output }),
        InfoOp::POWER => decoded!(bytes as HlPowerInfo { power }),
        InfoOp::OPEN_STATS => decoded!(bytes as HlOpenStatsInfo {
            open_counter, last_open_period_ms, is_compute_ctx_active, compute_ctx_in_release,
        }),
        InfoOp::DEV_MEM_ALLOC_PAGE_SIZES => {
            decoded!(bytes as HlInfoDevMemallocPageSizes { page_order_bitmask hex })
        }
        InfoOp::LAST_ERR_OPEN_DEV_TIME => decoded!(bytes as HlInfoLastErrOpenDevTime { timestamp }),
        InfoOp::CS_TIMEOUT_EVENT => decoded!(bytes as HlInfoCsTimeoutEvent { timestamp, seq }),
        InfoOp::RAZWI_EVENT => razwi(&front(bytes)),
        InfoOp::UNDEFINED_OPCODE_EVENT => undefined_opcode(bytes),
        InfoOp::HW_ERR_EVENT => decoded!(bytes as HlInfoHwErrEvent { timestamp, event_id }),
        InfoOp::FW_ERR_EVENT => decoded!(bytes as HlInfoFwErrEvent { timestamp, err_type shown, event_id }),
        InfoOp::USER_ENGINE_ERR_EVENT => decoded!(bytes as HlInfoEngineErrEvent {
            timestamp, engine_id, error_count,
        }),
        InfoOp::PAGE_FAULT_EVENT => decoded!(bytes as HlPageFaultInfo { timestamp, addr hex, engine_id }),
        InfoOp::GET_EVENTS => {
            let events: u64 = front(bytes);
            fields! { events: shown(NotifierEvents(events)) }
        }
        _ => fields! { return_size: bytes.len(), bytes: raw(bytes) },
    }
}

fn razwi(event: &HlInfoRazwiEvent) -> Fields {
    let engines = event.num_of_possible_engines;
    fields! {
        timestamp: event.timestamp,
        addr: hex(event.addr),
        engine_id: list(&event.engine_id, engines.into(), |&id| id.into()),
        num_of_possible_engines: engines,
        flags: shown(event.flags),
    }
}

fn undefined_opcode(bytes: &[u8]) -> Fields {
    let event: HlInfoUndefinedOpcodeEvent = front(bytes);
    let stream = |addresses: &[u64]| list(addresses, addresses.len(), |&address| hex(address));
    fields! {
        timestamp: event.timestamp,
        cb_addr_streams: event.cb_addr_streams.map(|addresses| stream(&addresses)).to_vec(),
        cq_addr: hex(event.cq_addr),
        cq_size: event.cq_size,
        cb_addr_streams_len: event.cb_addr_streams_len,
        engine_id: event.engine_id,
        stream_id: event.stream_id,
    }
}

/// The input of a debug operation.
pub(super) fn debug_input(op: DebugOp, bytes: &[u8]) -> Value {
    let decoded = match op {
        DebugOp::ETR => decoded!(bytes as HlDebugParamsEtr { buffer_address hex, buffer_size, sink_mode }),
        DebugOp::ETF => decoded!(bytes as HlDebugParamsEtf { buffer_address hex, buffer_size, sink_mode }),
        DebugOp::STM => decoded!(bytes as HlDebugParamsStm { he_mask hex, sp_mask hex, id, frequency }),
        DebugOp::BMON => decoded!(bytes as HlDebugParamsBmon {
            start_addr0 hex, addr_mask0 hex, start_addr1 hex, addr_mask1 hex, bw_win, win_capture, id, control hex,
            start_addr2 hex, end_addr2 hex, start_addr3 hex, end_addr3 hex,
        }),
        DebugOp::SPMU => decoded!(bytes as HlDebugParamsSpmu {
            event_types list, event_types_num, pmtrc_val hex, trc_ctrl_host_val hex, trc_en_host_val hex,
        }),
        _ => return raw(bytes),
    };
    decoded.into()
}
