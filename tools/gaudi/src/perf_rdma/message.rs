//! Control messages between the two ends.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::node::Side;
use super::op::{Measure, PEER, Tally};
use super::plan::Plan;
use super::report::Row;
use crate::control::{Failure, Reply};
use crate::exit::Usage;

/// Incremented when a message changes.
pub(super) const VERSION: u32 = 2;

/// The first message, from the connecting end. Its `version` is read before the rest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) plan: Plan,
    /// Both NICs are software, over a cable of their own.
    pub(super) softnic: bool,
}

/// Every message after the hello, of both ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Message {
    /// The listening end's NIC and memory are ready.
    Open(Side),
    /// The connecting end's are ready too; rows are staged if one end is.
    Join { side: Side, staged: bool },
    /// A row follows.
    Row {
        measure: Measure,
        bytes: u64,
        /// The ends poll their memory for incoming bytes; otherwise they wait for completions.
        by_memory: bool,
    },
    /// A row may begin.
    Ready,
    /// This end is still in the row.
    Alive,
    /// This end has ended the row.
    Done(Tally),
    /// Requests the digest of the bytes that were written to, or that are read.
    Digest { incoming: bool, bytes: u64 },
    /// SHA-256, hex.
    Digested(String),
    /// A row's result, for the listening end to print.
    Result(Box<Row>),
    /// There are no more rows.
    Finish { path_mtu_bytes: Option<u32> },
    /// The ends' options differ: usage, at both.
    Refused(String),
    /// This end cannot continue.
    Failed(Failure),
}

impl Reply for Message {
    const PEER: &'static str = PEER;

    fn settle(self) -> Result<Option<Self>> {
        match self {
            Self::Failed(failure) => Err(failure.into_error(PEER).into()),
            Self::Refused(why) => Err(disagreement(why).into()),
            Self::Alive => Ok(None),
            message => Ok(Some(message)),
        }
    }
}

/// Returns the error of both ends if their options differ.
pub(super) fn disagreement(why: String) -> Usage {
    Usage(format!(
        "{why}; give both ends the same value, or give it only to the connecting end"
    ))
}
