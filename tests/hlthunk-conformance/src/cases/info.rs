//! Device information and telemetry.

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::ptr;

use gaudi_conformance::{Verdict, equal, holds};
use gaudi_spec::gaudi2::sync;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::{
    HlInfoCsCounters, HlInfoHwIpInfo, HlInfoTimeSync, HlOpenStatsInfo, HlPowerInfo, InfoOp,
};
use nix::errno::Errno;

use super::open::foreign;
use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Card, DRAM_PAGE, Gate, Memory, PAGE, address_of};
use crate::case::cases;
use crate::types::*;

cases! { "info":
    "hw-ip.is-the-driver's", "common/habanalabs_ioctl.c:hw_ip_info" => hw_ip_same;
    "hw-ip.memory-map", "common/habanalabs_ioctl.c:hw_ip_info" => hw_ip_memory;
    "hw-ip.interrupts", "common/habanalabs_ioctl.c:hw_ip_info" => hw_ip_interrupts;
    "hw-ip.of-control-is-the-same", "common/habanalabs_ioctl.c:hw_ip_info" => hw_ip_control;
    "open-stats.count-this-user", "common/habanalabs_ioctl.c:open_stats_info" => open_stats;
    "open-stats.count-the-next-user", "common/habanalabs_ioctl.c:open_stats_info" => open_stats_next;
    "asic-status.is-valid", "hlthunk.h:hlthunk_get_hw_asic_status" => asic_status;
    "asic-status.of-foreign-is-not-valid", "hlthunk.h:hlthunk_get_hw_asic_status" => asic_status_foreign;
    "dram-usage.follows-allocations", "common/habanalabs_ioctl.c:dram_usage_info" => dram_usage;
    "status.is-operational", "common/habanalabs_ioctl.c:device_status_info" => status;
    "status.of-foreign-is-refused", "hlthunk.h:hlthunk_get_device_status_info" => status_foreign;
    "idle.while-nothing-runs", "common/habanalabs_ioctl.c:hw_idle" => idle;
    "idle.not-while-a-stream-waits", "common/habanalabs_ioctl.c:hw_idle" => idle_not;
    "idle.of-foreign-is-false", "hlthunk.h:hlthunk_is_device_idle" => idle_foreign;
    "busy-mask.names-the-engine", "gaudi2/gaudi2.c:gaudi2_is_device_idle" => busy_mask;
    "engine-status.is-text", "common/habanalabs_ioctl.c:engine_status_info" => engine_status;
    "engine-status.room-has-limits", "common/habanalabs_ioctl.c:engine_status_info" => engine_status_rooms;
    "engine-status.without-room-is-invalid", "hlthunk.h:hlthunk_get_engine_status" => engine_status_none;
    "pll.frequencies-are-there", "common/habanalabs_ioctl.c:pll_frequency_info" => pll;
    "pll.unknown-index-is-invalid", "common/firmware_if.c:get_used_pll_index" => pll_unknown;
    "utilization.is-per-cent", "common/habanalabs_ioctl.c:device_utilization" => utilization;
    "hw-events.fill-the-array", "common/habanalabs_ioctl.c:hw_events_info" => hw_events;
    "hw-events.of-size-zero-is-invalid", "common/habanalabs_ioctl.c:hw_events_info" => hw_events_zero;
    "hw-events.short-array-is-not-overrun", "common/habanalabs_ioctl.c:hw_events_info" => hw_events_short;
    "clock.current-is-at-most-maximum", "common/habanalabs_ioctl.c:get_clk_rate" => clock;
    "reset-count.is-the-driver's", "common/habanalabs_ioctl.c:get_reset_count" => reset_count;
    "time-sync.goes-forward", "common/habanalabs_ioctl.c:time_sync_info" => time_sync;
    "time-sync.overruns-no-2023-caller", "hlthunk.h:hlthunk_get_time_sync_info" => time_sync_overrun;
    "sync-manager.first-free", "common/habanalabs_ioctl.c:sync_manager_info" => sync_manager;
    "sync-manager.other-dcores-are-free", "common/habanalabs_ioctl.c:sync_manager_info" => sync_manager_others;
    "sync-manager.unknown-dcore-is-invalid", "common/habanalabs_ioctl.c:sync_manager_info" => sync_manager_unknown;
    "page-orders.none-of-one-size", "common/habanalabs_ioctl.c:dev_mem_alloc_page_sizes_info" => page_orders;
    "cs-counters.count-refusals", "common/habanalabs_ioctl.c:cs_counters_info" => cs_counters;
    "cs-counters.of-control-have-no-user", "common/habanalabs_ioctl.c:cs_counters_info" => cs_counters_control;
    "pci-counters.answer", "common/habanalabs_ioctl.c:pci_counters_info" => pci_counters;
    "clock-throttle.answers", "common/habanalabs_ioctl.c:clk_throttle_info" => throttle;
    "energy.does-not-fall", "common/habanalabs_ioctl.c:total_energy_consumption_info" => energy;
    "power.is-the-driver's", "common/habanalabs_ioctl.c:power_info" => power;
    "replaced-rows.answer", "common/habanalabs_ioctl.c:dram_replaced_rows_info" => replaced_rows;
    "pending-rows.answer", "common/habanalabs_ioctl.c:dram_pending_rows_info" => pending_rows;
    "attestation.has-its-nonce", "common/habanalabs_ioctl.c:sec_attest_info" => attestation;
    "firmware-request.unknown-is-invalid", "common/habanalabs_ioctl.c:send_fw_generic_request" => firmware_unknown;
    "firmware-request.too-large-is-invalid", "common/habanalabs_ioctl.c:send_fw_generic_request" => firmware_large;
    "firmware-request.without-room-is-invalid", "hlthunk.h:hlthunk_fw_send_generic_request" => firmware_none;
    "raw.short-struct-is-cut", "common/habanalabs_ioctl.c:hw_ip_info" => raw_short;
    "raw.long-struct-is-not-overrun", "common/habanalabs_ioctl.c:dram_usage_info" => raw_long;
    "raw.without-room-is-invalid", "common/habanalabs_ioctl.c:hw_ip_info" => raw_no_room;
    "raw.unknown-operation-is-invalid", "common/habanalabs_ioctl.c:_hl_info_ioctl" => raw_unknown;
    "raw.unmapped-address-is-a-fault", "common/habanalabs_ioctl.c:hw_ip_info" => raw_fault;
    "raw.null-argument-fails", "hlthunk.h:hlthunk_get_info" => raw_null;
    "raw.keeps-the-in-part", "common/habanalabs_ioctl.c:engine_status_info" => raw_size;
    "every-function.null-is-invalid", "hlthunk.h:hlthunk_get_info" => every_null;
    "every-function.closed-descriptor-is-ebadf", "hlthunk.h:hlthunk_get_info" => every_closed;
    "every-function.answers-on-control", "common/habanalabs_ioctl.c:hl_info_ioctl_control" => every_control;
    "every-function.leaves-out-untouched-on-failure", "hlthunk.h:hlthunk_get_info" => every_untouched;

    "foreign.hw-ip", "hlthunk.h:hlthunk_get_hw_ip_info" => |bench| on_foreign(bench, 0);
    "foreign.open-stats", "hlthunk.h:hlthunk_get_open_stats" => |bench| on_foreign(bench, 1);
    "foreign.dram-usage", "hlthunk.h:hlthunk_get_dram_usage" => |bench| on_foreign(bench, 2);
    "foreign.busy-mask", "hlthunk.h:hlthunk_get_busy_engines_mask" => |bench| on_foreign(bench, 3);
    "foreign.pll", "hlthunk.h:hlthunk_get_pll_frequency" => |bench| on_foreign(bench, 4);
    "foreign.utilization", "hlthunk.h:hlthunk_get_device_utilization" => |bench| on_foreign(bench, 5);
    "foreign.clock", "hlthunk.h:hlthunk_get_clk_rate" => |bench| on_foreign(bench, 6);
    "foreign.reset-count", "hlthunk.h:hlthunk_get_reset_count_info" => |bench| on_foreign(bench, 7);
    "foreign.time-sync", "hlthunk.h:hlthunk_get_time_sync_info" => |bench| on_foreign(bench, 8);
    "foreign.sync-manager", "hlthunk.h:hlthunk_get_sync_manager_info" => |bench| on_foreign(bench, 9);
    "foreign.page-orders", "hlthunk.h:hlthunk_get_dev_memalloc_page_orders" => |bench| on_foreign(bench, 10);
    "foreign.cs-counters", "hlthunk.h:hlthunk_get_cs_counters_info" => |bench| on_foreign(bench, 11);
    "foreign.pci-counters", "hlthunk.h:hlthunk_get_pci_counters_info" => |bench| on_foreign(bench, 12);
    "foreign.clock-throttle", "hlthunk.h:hlthunk_get_clk_throttle_info" => |bench| on_foreign(bench, 13);
    "foreign.energy", "hlthunk.h:hlthunk_get_total_energy_consumption_info" => |bench| on_foreign(bench, 14);
    "foreign.power", "hlthunk.h:hlthunk_get_power_info" => |bench| on_foreign(bench, 15);
    "foreign.replaced-rows", "hlthunk.h:hlthunk_get_dram_replaced_rows_info" => |bench| on_foreign(bench, 16);
    "foreign.pending-rows", "hlthunk.h:hlthunk_get_dram_pending_rows_info" => |bench| on_foreign(bench, 17);
    "foreign.attestation", "hlthunk.h:hlthunk_get_sec_attest_info" => |bench| on_foreign(bench, 18);
    "foreign.hw-events", "hlthunk.h:hlthunk_get_hw_events_arr" => |bench| on_foreign(bench, 19);
    "foreign.engine-status", "hlthunk.h:hlthunk_get_engine_status" => |bench| on_foreign(bench, 20);
    "foreign.firmware-request", "hlthunk.h:hlthunk_fw_send_generic_request" => |bench| on_foreign(bench, 21);
}

/// A query that fills a struct: its name, and the call with a struct (true) or NULL (false).
type Question = (&'static str, fn(Card, bool) -> c_int);

/// `Some` of a new value, or `None` for NULL.
macro_rules! out {
    ($with:ident, $value:expr) => {
        $with.then_some(&mut $value)
    };
}

const QUESTIONS: [Question; 22] = [
    ("hw_ip_info", |c, with| {
        c.hl.get_hw_ip_info(c.fd, out!(with, HwIpInfo::default()))
    }),
    ("open_stats", |c, with| {
        c.hl.get_open_stats(c.fd, out!(with, OpenStatsInfo::default()))
    }),
    ("dram_usage", |c, with| {
        c.hl.get_dram_usage(c.fd, out!(with, DramUsageInfo::default()))
    }),
    ("busy_engines_mask", |c, with| {
        c.hl.get_busy_engines_mask(c.fd, out!(with, EnginesIdleInfo::default()))
    }),
    ("pll_frequency", |c, with| {
        c.hl.get_pll_frequency(c.fd, 0, out!(with, PllFrequencyInfo::default()))
    }),
    ("device_utilization", |c, with| {
        c.hl.get_device_utilization(c.fd, 100, out!(with, 0))
    }),
    ("clk_rate", |c, with| {
        c.hl.get_clk_rate(c.fd, out!(with, 0), out!(with, 0))
    }),
    ("reset_count_info", |c, with| {
        c.hl.get_reset_count_info(c.fd, out!(with, ResetCountInfo::default()))
    }),
    ("time_sync_info", |c, with| {
        c.hl.get_time_sync_info(c.fd, out!(with, TimeSyncInfo::default()))
    }),
    ("sync_manager_info", |c, with| {
        c.hl.get_sync_manager_info(c.fd, 0, out!(with, SyncManagerInfo::default()))
    }),
    ("dev_memalloc_page_orders", |c, with| {
        c.hl.get_dev_memalloc_page_orders(c.fd, out!(with, 0))
    }),
    ("cs_counters_info", |c, with| {
        c.hl.get_cs_counters_info(c.fd, out!(with, HlInfoCsCounters::default()))
    }),
    ("pci_counters_info", |c, with| {
        c.hl.get_pci_counters_info(c.fd, out!(with, PciCountersInfo::default()))
    }),
    ("clk_throttle_info", |c, with| {
        c.hl.get_clk_throttle_info(c.fd, out!(with, ClkThrottleInfo::default()))
    }),
    ("total_energy_consumption_info", |c, with| {
        c.hl.get_total_energy_consumption_info(c.fd, out!(with, 0))
    }),
    ("power_info", |c, with| c.hl.get_power_info(c.fd, out!(with, 0))),
    ("dram_replaced_rows_info", |c, with| {
        c.hl.get_dram_replaced_rows_info(c.fd, out!(with, DramReplacedRowsInfo::default()))
    }),
    ("dram_pending_rows_info", |c, with| {
        c.hl.get_dram_pending_rows_info(c.fd, out!(with, 0))
    }),
    ("sec_attest_info", |c, with| {
        c.hl.get_sec_attest_info(c.fd, 1, out!(with, SecAttestInfo::default()))
    }),
    ("hw_events_arr", |c, with| {
        let mut events = [0_u32; 16];
        let to = if with {
            events.as_mut_ptr()
        } else {
            ptr::null_mut()
        };
        c.hl.get_hw_events_arr(c.fd, false, 64, to)
    }),
    ("engine_status", |c, with| {
        let mut text = vec![0_u8; 64 << 10];
        let to = if with { text.as_mut_ptr() } else { ptr::null_mut() };
        let mut size = 0;
        c.hl.get_engine_status(c.fd, to.cast(), 64 << 10, Some(&mut size))
    }),
    ("fw_send_generic_request", |c, with| {
        let mut bytes = [0_u8; 64];
        let to = if with { bytes.as_mut_ptr() } else { ptr::null_mut() };
        c.hl.fw_send_generic_request(c.fd, to.cast(), 64, 255)
    }),
];

/// All queries except the last one, which the driver does not implement.
const ANSWERED: usize = QUESTIONS.len() - 1;

fn on_foreign(bench: &mut Bench, nth: usize) -> Verdict {
    let file = foreign()?;
    let card = Card {
        hl: bench.hl,
        fd: file.as_raw_fd(),
    };
    let (name, ask) = QUESTIONS[nth];
    refused(&format!("{name} of /dev/null"), ask(card, true), Errno::ENOTTY)
}

fn every_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for (name, ask) in QUESTIONS {
        rejected(&format!("{name} into NULL"), ask(card, false), Errno::EINVAL)?;
    }
    let mut one = 0;
    rejected(
        "a clock rate with a NULL pointer",
        card.hl.get_clk_rate(card.fd, Some(&mut one), None),
        Errno::EINVAL,
    )?;
    rejected(
        "another",
        card.hl.get_clk_rate(card.fd, None, Some(&mut one)),
        Errno::EINVAL,
    )?;
    rejected(
        "the status with a NULL struct",
        card.hl.get_hw_asic_status(card.fd, None),
        Errno::EINVAL,
    )
}

fn every_closed(bench: &mut Bench) -> Verdict {
    for fd in [-1, c_int::MIN, c_int::MAX] {
        let card = Card { hl: bench.hl, fd };
        for (name, ask) in QUESTIONS {
            refused(
                &format!("{name} of descriptor {fd}"),
                ask(card, true),
                Errno::EBADF,
            )?;
        }
    }
    Ok(())
}

fn every_control(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    for (name, ask) in &QUESTIONS[..ANSWERED] {
        ok(&format!("{name} of a control node"), ask(control.card, true))?;
    }
    Ok(())
}

fn every_untouched(bench: &mut Bench) -> Verdict {
    let hl = bench.hl;
    let mut usage = DramUsageInfo {
        dram_free_mem: 1,
        ctx_dram_mem: 2,
    };
    fails(
        "memory usage of descriptor -1",
        hl.get_dram_usage(-1, Some(&mut usage)),
    )?;
    equal(
        "the struct after a failure",
        (usage.dram_free_mem, usage.ctx_dram_mem),
        (1, 2),
    )?;
    let (mut current, mut maximum) = (3, 4);
    fails(
        "clock rates of descriptor -1",
        hl.get_clk_rate(-1, Some(&mut current), Some(&mut maximum)),
    )?;
    equal("the clocks after a failure", (current, maximum), (3, 4))
}

fn hw_ip(card: Card) -> Result<HwIpInfo, gaudi_conformance::Failure> {
    let mut info = HwIpInfo::default();
    ok(
        "hlthunk_get_hw_ip_info",
        card.hl.get_hw_ip_info(card.fd, Some(&mut info)),
    )?;
    Ok(info)
}

fn hw_ip_same(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (info, seam): (_, HlInfoHwIpInfo) = (hw_ip(card)?, card.query()?);
    equal(
        "memory addresses and sizes",
        (info.dram_size, info.sram_size),
        (seam.dram_size, seam.sram_size),
    )?;
    equal("the device id", info.device_id, seam.device_id)?;
    equal("the number of events", info.num_of_events, seam.num_of_events)?;
    equal("the module id", info.module_id, seam.module_id)?;
    equal("the card's name", info.card_name, seam.card_name)?;
    equal("the firmware's version", info.cpucp_version, seam.cpucp_version)?;
    equal("TPCs", info.tpc_enabled_mask_ext, seam.tpc_enabled_mask_ext)?;
    equal(
        "TPCs in the short mask",
        info.tpc_enabled_mask,
        u16::from(seam.tpc_enabled_mask),
    )?;
    equal("EDMAs", info.edma_enabled_mask, seam.edma_enabled_mask)?;
    equal("decoders", info.decoder_enabled_mask, seam.decoder_enabled_mask)?;
    equal("rotators", info.rotator_enabled_mask, seam.rotator_enabled_mask)?;
    equal("the revision", info.revision_id, seam.revision_id)?;
    equal("the server", info.server_type, seam.server_type.0)?;
    equal("the CPLD", info.cpld_version, seam.cpld_version)?;
    equal("security", info.security_enabled, seam.security_enabled)?;
    equal(
        "the MME's mode",
        info.mme_master_slave_mode,
        seam.mme_master_slave_mode,
    )?;
    equal(
        "the TPCs' interrupt",
        info.tpc_interrupt_id,
        seam.tpc_interrupt_id,
    )?;
    equal(
        "the cores' register",
        info.engine_core_interrupt_reg_addr,
        seam.engine_core_interrupt_reg_addr,
    )?;
    equal(
        "reserved memory",
        info.reserved_dram_size,
        seam.reserved_dram_size,
    )
}

fn hw_ip_memory(bench: &mut Bench) -> Verdict {
    let info = hw_ip(bench.card()?)?;
    equal(
        "the start of device memory",
        info.dram_base_address,
        0x1001_0018_0000_0000,
    )?;
    equal("the page size of device memory", info.dram_page_size, DRAM_PAGE)?;
    equal(
        "the default page size of allocations",
        info.device_mem_alloc_default_page_size,
        DRAM_PAGE,
    )?;
    equal("device memory is enabled", info.dram_enabled, 1)?;
    equal("the start of SRAM", info.sram_base_address, 0x1000_ffff_fd00_0000)?;
    equal("MiB of SRAM", info.sram_size >> 20, 48)
}

fn hw_ip_interrupts(bench: &mut Bench) -> Verdict {
    let info = hw_ip(bench.card()?)?;
    let users = (info.first_available_interrupt_id, info.number_of_user_interrupts);
    equal("the user interrupts", users, (48, 64))
}

fn hw_ip_control(bench: &mut Bench) -> Verdict {
    let (card, control) = (bench.card()?, bench.control()?);
    let (one, other) = (hw_ip(card)?, hw_ip(control.card)?);
    equal(
        "the memory size on the control node",
        other.dram_size,
        one.dram_size,
    )?;
    equal(
        "the module id on the control node",
        other.module_id,
        one.module_id,
    )?;
    equal(
        "the device id on the control node",
        other.device_id,
        one.device_id,
    )
}

pub(crate) fn stats(card: Card) -> Result<OpenStatsInfo, gaudi_conformance::Failure> {
    let mut stats = OpenStatsInfo::default();
    ok(
        "hlthunk_get_open_stats",
        card.hl.get_open_stats(card.fd, Some(&mut stats)),
    )?;
    Ok(stats)
}

fn open_stats(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (stats, seam): (_, HlOpenStatsInfo) = (stats(card)?, card.query()?);
    equal("opens", stats.open_counter, seam.open_counter)?;
    holds("this open was counted", stats.open_counter >= 1, stats)?;
    equal("a user is active", stats.is_compute_ctx_active, 1)?;
    equal("a user is being released", stats.compute_ctx_in_release, 0)
}

fn open_stats_next(bench: &mut Bench) -> Verdict {
    // A mock's counters last while one of its nodes is open.
    let _control = bench.control()?;
    let before = stats(bench.card()?)?.open_counter;
    equal(
        "the open count after another open",
        stats(bench.reopen()?)?.open_counter,
        before + 1,
    )
}

fn asic_status(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut status = HwAsicStatus::default();
    ok(
        "hlthunk_get_hw_asic_status",
        card.hl.get_hw_asic_status(card.fd, Some(&mut status)),
    )?;
    equal("valid, operational", (status.valid, status.status), (1, 0))?;
    holds(
        "the timestamp is the current time",
        status.timestamp_sec > 1_600_000_000,
        status,
    )?;
    equal(
        "the open statistics in the status",
        status.open_stats.is_compute_ctx_active,
        1,
    )
}

fn asic_status_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    let mut status = HwAsicStatus {
        valid: 1,
        ..HwAsicStatus::default()
    };
    fails(
        "the status of /dev/null",
        bench.hl.get_hw_asic_status(file.as_raw_fd(), Some(&mut status)),
    )?;
    equal("the valid field", status.valid, 0)
}

fn dram_usage(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let before = card.usage()?;
    let (one, two) = (Memory::new(card, 1)?, Memory::new(card, 2 * DRAM_PAGE)?);
    let during = card.usage()?;
    equal("memory of the user", during.ctx_dram_mem, 3 * DRAM_PAGE)?;
    equal(
        "free memory",
        during.dram_free_mem,
        before.dram_free_mem - 3 * DRAM_PAGE,
    )?;
    drop((one, two));
    equal("memory after both were freed", card.usage()?, before)
}

fn status(bench: &mut Bench) -> Verdict {
    let (card, control) = (bench.card()?, bench.control()?);
    for fd in [card.fd, control.card.fd] {
        equal("the status", bench.hl.get_device_status_info(fd), 0)?;
    }
    Ok(())
}

fn status_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    refused(
        "the status of /dev/null",
        bench.hl.get_device_status_info(file.as_raw_fd()),
        Errno::ENOTTY,
    )?;
    refused(
        "the status of -1",
        bench.hl.get_device_status_info(-1),
        Errno::EBADF,
    )
}

fn idle(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    equal("idle", card.hl.is_device_idle(card.fd), true)
}

fn idle_not(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    equal(
        "idle while a stream waits",
        card.hl.is_device_idle(card.fd),
        false,
    )?;
    gate.open()?;
    equal("idle after", card.hl.is_device_idle(card.fd), true)
}

fn idle_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    equal(
        "the idle state of /dev/null",
        bench.hl.is_device_idle(file.as_raw_fd()),
        false,
    )?;
    equal(
        "the idle state of descriptor -1",
        bench.hl.is_device_idle(-1),
        false,
    )
}

fn busy_mask(bench: &mut Bench) -> Verdict {
    use gaudi_uapi::engine::Gaudi2EngineId;
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let mut info = EnginesIdleInfo::default();
    let code = card.hl.get_busy_engines_mask(card.fd, Some(&mut info));
    gate.open()?;
    ok("hlthunk_get_busy_engines_mask", code)?;
    equal("idle", info.is_idle, 0)?;
    equal(
        "the busy engines",
        info.mask,
        [1 << Gaudi2EngineId::ENGINE_ID_PDMA_0.0, 0, 0, 0],
    )
}

fn engine_status(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut text, mut size) = (vec![0_u8; 64 << 10], 0);
    let code = card
        .hl
        .get_engine_status(card.fd, text.as_mut_ptr().cast(), 64 << 10, Some(&mut size));
    ok("hlthunk_get_engine_status", code)?;
    let len = usize::try_from(size).unwrap_or(0);
    holds(
        "the size is the length of the text",
        len > 0 && len <= text.len(),
        size,
    )?;
    let text = String::from_utf8_lossy(&text[..len]);
    holds(
        "the text describes engines",
        text.contains("TPC") && text.contains("idle"),
        text,
    )
}

fn engine_status_rooms(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut text, mut size) = (vec![0_u8; (1 << 20) + 1], 0);
    for room in [1, 1023, (1 << 20) + 1] {
        let code = card
            .hl
            .get_engine_status(card.fd, text.as_mut_ptr().cast(), room, Some(&mut size));
        refused(&format!("a buffer of {room} bytes"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn engine_status_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut text, mut size) = ([0_u8; 2048], 0);
    let (hl, fd) = (card.hl, card.fd);
    let to = text.as_mut_ptr().cast();
    rejected(
        "a buffer of 0 bytes",
        hl.get_engine_status(fd, to, 0, Some(&mut size)),
        Errno::EINVAL,
    )?;
    let code = hl.get_engine_status(fd, ptr::null_mut(), 2048, Some(&mut size));
    rejected("a NULL buffer", code, Errno::EINVAL)?;
    fails("a NULL size pointer", hl.get_engine_status(fd, to, 2048, None))
}

fn pll(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut frequency = PllFrequencyInfo::default();
    ok(
        "hlthunk_get_pll_frequency",
        card.hl.get_pll_frequency(card.fd, 0, Some(&mut frequency)),
    )
}

fn pll_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for index in [100, u32::MAX] {
        let mut frequency = PllFrequencyInfo::default();
        let code = card.hl.get_pll_frequency(card.fd, index, Some(&mut frequency));
        refused(&format!("PLL {index}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn utilization(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for period in [0, 100, 1000, u32::MAX] {
        let mut rate = u32::MAX;
        ok(
            "hlthunk_get_device_utilization",
            card.hl.get_device_utilization(card.fd, period, Some(&mut rate)),
        )?;
        holds("the utilization is a percentage", rate <= 100, rate)?;
    }
    Ok(())
}

fn hw_events(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let count = hw_ip(card)?.num_of_events as usize;
    for aggregate in [false, true] {
        let mut events = vec![u32::MAX; count];
        let code = card
            .hl
            .get_hw_events_arr(card.fd, aggregate, 4 * count as u32, events.as_mut_ptr());
        ok("hlthunk_get_hw_events_arr", code)?;
        holds(
            "counters are written",
            events.iter().any(|&count| count != u32::MAX),
            "not one",
        )?;
    }
    Ok(())
}

fn hw_events_zero(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut one = 0;
    refused(
        "an array of 0 bytes",
        card.hl.get_hw_events_arr(card.fd, false, 0, &raw mut one),
        Errno::EINVAL,
    )
}

fn hw_events_short(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut events = [u32::MAX; 16];
    ok(
        "hlthunk_get_hw_events_arr",
        card.hl.get_hw_events_arr(card.fd, false, 8, events.as_mut_ptr()),
    )?;
    equal(
        "words past an array of 8 bytes",
        &events[2..],
        &[u32::MAX; 14][..],
    )
}

fn clock(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut current, mut maximum) = (0, 0);
    ok(
        "hlthunk_get_clk_rate",
        card.hl
            .get_clk_rate(card.fd, Some(&mut current), Some(&mut maximum)),
    )?;
    holds(
        "the current clock is at most the maximum",
        current <= maximum,
        (current, maximum),
    )
}

fn reset_count(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = ResetCountInfo::default();
    ok(
        "hlthunk_get_reset_count_info",
        card.hl.get_reset_count_info(card.fd, Some(&mut info)),
    )?;
    let seam: gaudi_uapi::info::HlInfoResetCount = card.query()?;
    let counts = (info.hard_reset_count, info.soft_reset_count);
    equal("the counts", counts, (seam.hard_reset_cnt, seam.soft_reset_cnt))
}

fn time_sync(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let read = || {
        let mut info = TimeSyncInfo::default();
        ok(
            "hlthunk_get_time_sync_info",
            card.hl.get_time_sync_info(card.fd, Some(&mut info)),
        )?;
        Ok::<_, gaudi_conformance::Failure>(info)
    };
    let (first, second) = (read()?, read()?);
    let is_later = second.device_time >= first.device_time && second.host_time >= first.host_time;
    holds("clocks are monotonic", is_later, (first, second))?;
    let seam: HlInfoTimeSync = card.query()?;
    holds(
        "the host clock is the driver's",
        seam.host_time >= second.host_time,
        (second, seam),
    )
}

fn time_sync_overrun(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // The struct of 2023 has 16 bytes, that of the Gaudi3 release 24.
    let mut stack = [TimeSyncInfo {
        device_time: u64::MAX,
        host_time: u64::MAX,
    }; 3];
    ok(
        "hlthunk_get_time_sync_info",
        card.hl.get_time_sync_info(card.fd, Some(&mut stack[1])),
    )?;
    let around = [stack[0], stack[2]].map(|beside| (beside.device_time, beside.host_time));
    equal(
        "the bytes around the 16-byte struct",
        around,
        [(u64::MAX, u64::MAX); 2],
    )
}

fn manager(card: Card, dcore: c_int) -> (c_int, SyncManagerInfo) {
    let mut info = SyncManagerInfo::default();
    (
        card.hl.get_sync_manager_info(card.fd, dcore, Some(&mut info)),
        info,
    )
}

fn sync_manager(bench: &mut Bench) -> Verdict {
    let (code, info) = manager(bench.card()?, 0);
    ok("hlthunk_get_sync_manager_info", code)?;
    equal(
        "the first sync object",
        info.first_available_sync_object,
        sync::FIRST_USER_SOB,
    )?;
    equal(
        "the first monitor",
        info.first_available_monitor,
        sync::FIRST_USER_MONITOR,
    )?;
    equal(
        "the first completion queue",
        info.first_available_cq,
        sync::FIRST_USER_CQ,
    )
}

fn sync_manager_others(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for dcore in 1..4 {
        let (code, info) = manager(card, dcore);
        ok("hlthunk_get_sync_manager_info", code)?;
        let first = (info.first_available_sync_object, info.first_available_monitor);
        equal(&format!("the first objects of die core {dcore}"), first, (0, 0))?;
    }
    Ok(())
}

fn sync_manager_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for dcore in [8, c_int::MAX, -1] {
        refused(
            &format!("die core {dcore}"),
            manager(card, dcore).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn page_orders(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut orders = u64::MAX;
    ok(
        "the orders",
        card.hl.get_dev_memalloc_page_orders(card.fd, Some(&mut orders)),
    )?;
    equal("page orders of a chip with one page size", orders, 0)
}

fn counters(card: Card) -> Result<HlInfoCsCounters, gaudi_conformance::Failure> {
    let mut counters = HlInfoCsCounters::default();
    ok(
        "hlthunk_get_cs_counters_info",
        card.hl.get_cs_counters_info(card.fd, Some(&mut counters)),
    )?;
    Ok(counters)
}

fn refuse_one(card: Card) -> Verdict {
    let no_queue = HlCsChunk::user(gaudi_spec::gaudi2::queue::COUNT, 0, 8);
    let (code, _) = card.try_submit(&[no_queue], CsFlags::NONE);
    refused("an unknown queue", code, Errno::EINVAL)
}

fn cs_counters(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let before = counters(card)?;
    refuse_one(card)?;
    let after = counters(card)?;
    equal(
        "the user's validation drops",
        after.ctx_validation_drop_cnt,
        before.ctx_validation_drop_cnt + 1,
    )?;
    equal(
        "the total validation drops",
        after.total_validation_drop_cnt,
        before.total_validation_drop_cnt + 1,
    )
}

fn cs_counters_control(bench: &mut Bench) -> Verdict {
    let (card, control) = (bench.card()?, bench.control()?);
    refuse_one(card)?;
    let (own, other) = (counters(card)?, counters(control.card)?);
    equal(
        "the user's validation drops on a control node",
        other.ctx_validation_drop_cnt,
        0,
    )?;
    equal(
        "the total validation drops",
        other.total_validation_drop_cnt,
        own.total_validation_drop_cnt,
    )
}

fn pci_counters(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = PciCountersInfo::default();
    ok(
        "hlthunk_get_pci_counters_info",
        card.hl.get_pci_counters_info(card.fd, Some(&mut info)),
    )
}

fn throttle(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = ClkThrottleInfo {
        reason_bitmask: u32::MAX,
        ..ClkThrottleInfo::default()
    };
    ok(
        "hlthunk_get_clk_throttle_info",
        card.hl.get_clk_throttle_info(card.fd, Some(&mut info)),
    )?;
    holds(
        "the only reasons are power and temperature",
        info.reason_bitmask <= 3,
        info,
    )
}

fn energy(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut first, mut second) = (0, 0);
    let read = |to: &mut u64| {
        ok(
            "energy",
            card.hl.get_total_energy_consumption_info(card.fd, Some(to)),
        )
    };
    read(&mut first)?;
    read(&mut second)?;
    holds("energy does not fall", second >= first, (first, second))
}

fn power(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut power = u64::MAX;
    ok(
        "hlthunk_get_power_info",
        card.hl.get_power_info(card.fd, Some(&mut power)),
    )?;
    // The power draw of the model depends on its work.
    let seam: HlPowerInfo = card.query()?;
    holds(
        "the power is close to the seam's value",
        power / 4 <= seam.power && seam.power / 4 <= power,
        (power, seam),
    )
}

fn replaced_rows(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut rows = DramReplacedRowsInfo {
        num_replaced_rows: u16::MAX,
        ..DramReplacedRowsInfo::default()
    };
    ok(
        "replaced rows",
        card.hl.get_dram_replaced_rows_info(card.fd, Some(&mut rows)),
    )?;
    holds(
        "the number is within the array",
        rows.num_replaced_rows <= 32,
        rows.num_replaced_rows,
    )
}

fn pending_rows(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut rows = u32::MAX;
    ok(
        "pending rows",
        card.hl.get_dram_pending_rows_info(card.fd, Some(&mut rows)),
    )?;
    holds("the number of rows is plausible", rows <= 32, rows)
}

fn attestation(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = SecAttestInfo::default();
    ok(
        "hlthunk_get_sec_attest_info",
        card.hl.get_sec_attest_info(card.fd, 77, Some(&mut info)),
    )?;
    let seam: gaudi_uapi::info::HlInfoSecAttest = {
        let (code, bytes) = card.ask(
            InfoOp::SECURED_ATTESTATION,
            77,
            size_of::<gaudi_uapi::info::HlInfoSecAttest>(),
        );
        ok("the seam's answer", code)?;
        zerocopy::FromBytes::read_from_bytes(&bytes)
            .map_err(|_| gaudi_conformance::Failure::new("the seam's answer", "whole", "short"))?
    };
    let lengths = (
        info.nonce,
        info.pcr_quote_len,
        info.pub_data_len,
        info.certificate_len,
        info.quote_sig_len,
    );
    let wanted = (
        seam.nonce,
        seam.pcr_quote_len,
        seam.pub_data_len,
        seam.certificate_len,
        seam.quote_sig_len,
    );
    equal("nonce and lengths", lengths, wanted)?;
    holds(
        "the certificates are equal",
        info.certificate == seam.certificate,
        "another",
    )
}

fn firmware_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut bytes = [0_u8; 64];
    for request in [3, 255, u32::MAX] {
        let code = card
            .hl
            .fw_send_generic_request(card.fd, bytes.as_mut_ptr().cast(), 64, request);
        refused(&format!("request {request} to firmware"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn firmware_large(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut bytes = vec![0_u8; (1 << 20) + 1];
    let code = card
        .hl
        .fw_send_generic_request(card.fd, bytes.as_mut_ptr().cast(), (1 << 20) + 1, 0);
    refused("a request of more than 1 MiB", code, Errno::EINVAL)
}

fn firmware_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut byte = 0_u8;
    let to = (&raw mut byte).cast();
    rejected(
        "a request of 0 bytes",
        card.hl.fw_send_generic_request(card.fd, to, 0, 0),
        Errno::EINVAL,
    )
}

fn raw_short(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (code, whole) = card.ask(InfoOp::HW_IP_INFO, 0, size_of::<HlInfoHwIpInfo>());
    ok("the whole struct", code)?;
    // 256 bytes is the size of the struct in Linux 6.1.
    for room in [1, 8, 36, 256, whole.len() - 1] {
        let (code, part) = card.ask(InfoOp::HW_IP_INFO, 0, room);
        ok("part of the struct", code)?;
        gaudi_conformance::same_bytes(&format!("a buffer of {room} bytes"), &part, &whole[..room])?;
    }
    Ok(())
}

fn raw_long(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (code, answer) = card.ask(InfoOp::DRAM_USAGE, 0, 80);
    ok("a buffer larger than the struct", code)?;
    gaudi_conformance::same_bytes("bytes past the struct", &answer[16..], &[0; 64])
}

fn raw_no_room(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for op in [
        InfoOp::HW_IP_INFO,
        InfoOp::DRAM_USAGE,
        InfoOp::DEVICE_STATUS,
        InfoOp::TIME_SYNC,
        InfoOp::SYNC_MANAGER,
    ] {
        refused(&format!("{op} into 0 bytes"), card.ask(op, 0, 0).0, Errno::EINVAL)?;
    }
    Ok(())
}

fn raw_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for op in [5, 54, 200, u32::MAX] {
        refused(
            &format!("question {op}"),
            card.ask(InfoOp(op), 0, 64).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn raw_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // The first page of a process is never mapped (vm.mmap_min_addr); the last is the kernel's.
    for to in [16, 0xffff_8000_0000_0000, u64::MAX - 4095] {
        let mut args = gaudi_uapi::info::HlInfoArgs::new(InfoOp::HW_IP_INFO, to, 64, 0);
        let code = card.hl.get_info(card.fd, Some(&mut args));
        refused(&format!("an answer to {to:#x}"), code, Errno::EFAULT)?;
    }
    Ok(())
}

fn raw_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails("a NULL request", card.hl.get_info(card.fd, None))
}

fn raw_size(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let room = gaudi_sys::RawMapping::anonymous(16 * PAGE, true)?;
    let to = crate::card::address_in(&room, 0).expose_provenance() as u64;
    let mut args = gaudi_uapi::info::HlInfoArgs::new(InfoOp::ENGINE_STATUS, to, 16 * PAGE as u32, 0);
    ok("the engines' status", card.hl.get_info(card.fd, Some(&mut args)))?;
    holds("the driver wrote the size to the argument", args.arg > 0, args)?;
    equal(
        "the rest of the argument",
        (args.return_pointer, args.op),
        (to, InfoOp::ENGINE_STATUS),
    )?;
    holds("the address is unchanged", to != address_of(&args), to)
}
