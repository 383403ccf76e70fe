//! What one row measures, and the constants of every file.

use serde::{Deserialize, Serialize};

pub(super) const OPERATION: &str = "perf";
/// The name of the peer in errors.
pub(super) const PEER: &str = "the peer";
/// The most bytes of one operation.
pub(super) const MOST: u64 = 1 << 30;
/// Set in the `wr_id` of receives; the lower bits are the queue pair's index.
pub(super) const RECEIVED: u64 = 1 << 63;

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Write,
    Read,
    Send,
    Atomic,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Measure {
    Bandwidth,
    Latency,
}

/// One end's figures of a row.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Operations, including the warm-up.
    pub(super) sent: u64,
    /// Operations that are counted.
    pub(super) operations: u64,
    pub(super) time_ns: u64,
    /// Processor time of the process during the row.
    pub(super) cpu_ns: u64,
}
