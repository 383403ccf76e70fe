//! Known differences: one row each, with its reason and the function of the driver of Linux 7.3.4
//! (below drivers/accel/habanalabs). All other answers must be equal.

use std::mem::offset_of;
use std::ops::Range;

use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoSigned, HlInfoTimeSync, HlOpenStatsInfo, InfoOp};

/// The part of an answer that may differ.
#[derive(Debug, Clone)]
pub(crate) enum Scope {
    /// These bytes of the answer to an INFO operation.
    Bytes(InfoOp, Range<usize>),
    /// One field of an operation's answer.
    Field { kind: &'static str, field: &'static str },
    /// The mock refuses the operation with this errno, and the driver performs it.
    Refused { kind: &'static str, mock: &'static str },
}

/// A known difference.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) at: Scope,
    pub(crate) reason: &'static str,
    pub(crate) source: &'static str,
}

const fn bytes(op: InfoOp, range: Range<usize>, reason: &'static str, source: &'static str) -> Row {
    Row {
        at: Scope::Bytes(op, range),
        reason,
        source,
    }
}

const ALL: Range<usize> = 0..usize::MAX;

/// The table.
pub(crate) const ROWS: &[Row] = &[
    bytes(
        InfoOp::TIME_SYNC,
        0..size_of::<HlInfoTimeSync>(),
        "clocks",
        "common/habanalabs_ioctl.c:time_sync_info",
    ),
    bytes(
        InfoOp::LAST_ERR_OPEN_DEV_TIME,
        ALL,
        "the time of the last open",
        "common/habanalabs_ioctl.c:last_err_open_dev_info",
    ),
    bytes(
        InfoOp::CS_TIMEOUT_EVENT,
        0..8,
        "the time of a timeout",
        "common/habanalabs_ioctl.c:cs_timeout_info",
    ),
    bytes(
        InfoOp::OPEN_STATS,
        offset_of!(HlOpenStatsInfo, open_counter)..offset_of!(HlOpenStatsInfo, is_compute_ctx_active),
        "the number of opens before the run, and the duration of the last one",
        "common/habanalabs_ioctl.c:open_stats_info",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, cpucp_version)..offset_of!(HlInfoHwIpInfo, card_name),
        "the mock has no firmware and reports another version",
        "common/habanalabs_ioctl.c:hw_ip_info",
    ),
    bytes(
        InfoOp::DEVICE_UTILIZATION,
        ALL,
        "the mock's engines draw no power",
        "common/habanalabs_ioctl.c:device_utilization",
    ),
    bytes(
        InfoOp::POWER,
        ALL,
        "the mock's engines draw no power",
        "common/habanalabs_ioctl.c:power_info",
    ),
    bytes(
        InfoOp::PLL_FREQUENCY,
        ALL,
        "the mock has no firmware to report clocks",
        "gaudi2/gaudi2.c:gaudi2_send_cpu_message",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, cpld_version)..offset_of!(HlInfoHwIpInfo, psoc_pci_pll_nr),
        "the mock has no board",
        "common/habanalabs_ioctl.c:hw_ip_info",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, security_enabled)..offset_of!(HlInfoHwIpInfo, mme_master_slave_mode),
        "the modelled card's firmware is secured, and the mock has none",
        "common/habanalabs_ioctl.c:hw_ip_info",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, engine_core_interrupt_reg_addr)
            ..offset_of!(HlInfoHwIpInfo, reserved_dram_size),
        "a register of the firmware, which the mock does not have",
        "gaudi2/gaudi2.c:gaudi2_init_arcs",
    ),
    bytes(
        InfoOp::DEV_SIGNED,
        offset_of!(HlInfoSigned, dev_info)..offset_of!(HlInfoSigned, pad),
        "the mock has no firmware to report its card",
        "common/habanalabs_ioctl.c:dev_info_signed",
    ),
    bytes(
        InfoOp::ENGINE_STATUS,
        ALL,
        "a text with registers, which the mock does not have",
        "gaudi2/gaudi2.c:gaudi2_is_device_idle",
    ),
    Row {
        at: Scope::Field {
            kind: "HL_INFO_ENGINE_STATUS",
            field: "argument",
        },
        reason: "the length of that text",
        source: "common/habanalabs_ioctl.c:engine_status_info",
    },
    Row {
        at: Scope::Refused {
            kind: "mmap",
            mock: "EOPNOTSUPP",
        },
        reason: "a block of registers, which process memory cannot replace: the mock maps only blocks of ARC memory",
        source: "common/memory.c:hl_hw_block_mmap",
    },
    Row {
        at: Scope::Refused {
            kind: "HL_MEM_OP_EXPORT_DMABUF_FD",
            mock: "EOPNOTSUPP",
        },
        reason: "device memory that is not contiguous: a stand-in for a dma-buf is one window of a file",
        source: "common/memory.c:alloc_sgt_from_device_pages",
    },
];
