//! What must differ: one row each, with its reason and the line of the driver of Linux 7.3.4 (below drivers/accel/habanalabs) that makes
//! it so. Everything else must be the same on both sides.

use std::mem::offset_of;
use std::ops::Range;

use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoTimeSync, HlOpenStatsInfo, InfoOp};

/// Where the two sides may differ.
#[derive(Debug, Clone)]
pub(crate) enum Where {
    /// In these bytes of the answer to a question.
    Bytes(InfoOp, Range<usize>),
    /// In an operation's verdict: the mock's and the driver's.
    Verdict {
        kind: &'static str,
        mock: &'static str,
        driver: &'static str,
    },
    /// In one field of an operation's answer.
    Field { kind: &'static str, field: &'static str },
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
        "common/habanalabs_ioctl.c:90",
    ),
];
