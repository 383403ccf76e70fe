//! Control messages between the two ends.

use std::time::Duration;

use anyhow::Result;
use gaudi::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::node::Side;
use super::op::{Measure, OPERATION, PEER, RDMA, Tally};
use super::plan::Plan;
use super::report::Row;
use crate::control::{Control, Failure};
use crate::exit::Usage;

/// Incremented when a message changes.
pub(super) const VERSION: u32 = 2;
/// How long to wait for the reason of a peer that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

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

/// Receives the peer's next message; a failure of the peer is returned as an error.
pub(super) fn reply(control: &mut Control) -> Result<Message> {
    loop {
        match control.receive()? {
            Message::Failed(failure) => return Err(failure.into_error(PEER).into()),
            Message::Refused(why) => return Err(disagreement(why).into()),
            Message::Alive => {}
            reply => return Ok(reply),
        }
    }
}

/// The error of both ends if their options differ.
pub(super) fn disagreement(why: String) -> Usage {
    Usage(format!(
        "{why}; give both ends the same value, or give it only to the connecting end"
    ))
}

pub(super) fn out_of_step(message: &Message) -> anyhow::Error {
    Error::new(ErrorKind::Protocol, OPERATION)
        .because(format!("unexpected message: {message:?}"))
        .into()
}

pub(super) fn expect_ready(control: &mut Control) -> Result<()> {
    match reply(control)? {
        Message::Ready => Ok(()),
        other => Err(out_of_step(&other)),
    }
}

/// The peer's own failure, if it explains an error of this end: a NIC or a socket that lost its
/// peer does not report the cause.
pub(super) fn last_words(control: &mut Control, error: anyhow::Error) -> anyhow::Error {
    let is_words = |error: &anyhow::Error| {
        let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        ours.is_some_and(|error| error.operation() == PEER)
    };
    let is_lost = error
        .downcast_ref::<Error>()
        .is_some_and(|error| error.operation() == RDMA || error.kind() == ErrorKind::Disconnected);
    if !is_lost || is_words(&error) {
        return error;
    }
    control.set_timeout(LAST_WORDS);
    // A row leaves few messages behind.
    for _ in 0..16 {
        match reply(control) {
            Ok(_) => {}
            Err(reason) if is_words(&reason) => return reason,
            Err(_) => break,
        }
    }
    error
}
