//! What must differ: one row each, with its reason and the line of the driver of Linux 7.3.4 (below drivers/accel/habanalabs) that makes
//! it so. Everything else must be the same on both sides.

use std::mem::offset_of;
use std::ops::Range;

use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoSigned, HlInfoTimeSync, HlOpenStatsInfo, InfoOp};

/// Where the two sides may differ.
#[derive(Debug, Clone)]
pub(crate) enum Where {
    /// In these bytes of the answer to a question.
    Bytes(InfoOp, Range<usize>),
    /// In one field of an operation's answer.
    Field { kind: &'static str, field: &'static str },
    /// In whether an operation is refused: so by the mock, and not by the driver.
    Refused { kind: &'static str, mock: &'static str },
}

/// A difference that must be.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) at: Where,
    pub(crate) reason: &'static str,
    pub(crate) source: &'static str,
}

const fn bytes(op: InfoOp, range: Range<usize>, reason: &'static str, source: &'static str) -> Row {
    Row {
        at: Where::Bytes(op, range),
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
        "common/habanalabs_ioctl.c:324",
    ),
    bytes(
        InfoOp::LAST_ERR_OPEN_DEV_TIME,
        ALL,
        "the time of the last open",
        "common/habanalabs_ioctl.c:592",
    ),
    bytes(
        InfoOp::CS_TIMEOUT_EVENT,
        0..8,
        "the time of a timeout",
        "common/habanalabs_ioctl.c:607",
    ),
    bytes(
        InfoOp::OPEN_STATS,
        offset_of!(HlOpenStatsInfo, open_counter)..offset_of!(HlOpenStatsInfo, is_compute_ctx_active),
        "opens before the run, and how long the last one took",
        "common/habanalabs_ioctl.c:538",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, cpucp_version)..offset_of!(HlInfoHwIpInfo, card_name),
        "the mock has no firmware, and says so in its version",
        "common/habanalabs_ioctl.c:87",
    ),
    bytes(
        InfoOp::DEVICE_UTILIZATION,
        ALL,
        "the mock's engines draw no power",
        "common/habanalabs_ioctl.c:274",
    ),
    bytes(
        InfoOp::POWER,
        ALL,
        "the mock's engines draw no power",
        "common/habanalabs_ioctl.c:517",
    ),
    bytes(
        InfoOp::PLL_FREQUENCY,
        ALL,
        "the mock has no firmware that knows clocks",
        "gaudi2/gaudi2.c:7095",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, cpld_version)..offset_of!(HlInfoHwIpInfo, psoc_pci_pll_nr),
        "the mock has no board",
        "common/habanalabs_ioctl.c:93",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, security_enabled)..offset_of!(HlInfoHwIpInfo, mme_master_slave_mode),
        "the model's firmware is a secured one, and the mock has none",
        "common/habanalabs_ioctl.c:109",
    ),
    bytes(
        InfoOp::HW_IP_INFO,
        offset_of!(HlInfoHwIpInfo, engine_core_interrupt_reg_addr)
            ..offset_of!(HlInfoHwIpInfo, reserved_dram_size),
        "a register of the firmware's, which the mock has not",
        "gaudi2/gaudi2.c:3592",
    ),
    bytes(
        InfoOp::DEV_SIGNED,
        offset_of!(HlInfoSigned, dev_info)..offset_of!(HlInfoSigned, pad),
        "the mock has no firmware that tells of its card",
        "common/habanalabs_ioctl.c:753",
    ),
    bytes(
        InfoOp::ENGINE_STATUS,
        ALL,
        "a text for people, in which the mock has no registers to show",
        "gaudi2/gaudi2.c:7850",
    ),
    Row {
        at: Where::Field {
            kind: "HL_INFO_ENGINE_STATUS",
            field: "argument",
        },
        reason: "the length of that text",
        source: "common/habanalabs_ioctl.c:836",
    },
    Row {
        at: Where::Refused {
            kind: "mmap",
            mock: "EOPNOTSUPP",
        },
        reason: "a block of registers, which no memory of a process can stand for: the mock maps those of ARC memory alone",
        source: "common/memory.c:1460",
    },
    Row {
        at: Where::Refused {
            kind: "HL_MEM_OP_EXPORT_DMABUF_FD",
            mock: "EOPNOTSUPP",
        },
        reason: "pages of device memory that are not in a row: a stand-in for a dma-buf is one window of a file",
        source: "common/memory.c:1534",
    },
];
