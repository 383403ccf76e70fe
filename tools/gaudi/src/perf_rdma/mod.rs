//! `gaudi perf write|read|send|atomic`: RDMA between two nodes, as perftest measures it.
//!
//! The connecting end measures, the listening end serves; both print the result. Control messages
//! use a socket; all measured traffic uses the NICs.

mod client;
mod loops;
mod node;
mod plan;
mod report;
mod samples;
mod serve;
mod staged;
mod watch;
mod wire;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gaudi::{DeviceSpec, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::args::Common;
use crate::args_rdma::{Memory, PerfRdma};
use crate::control::{Control, Failure};
use crate::exit::{Judged, Usage};
use crate::nic::SOFTNIC;
use crate::output::Output;
use crate::peer::Peer;
use node::Side;
use plan::Plan;
use report::Row;
use wire::Wire;

/// Incremented when a message changes.
const VERSION: u32 = 2;
const OPERATION: &str = "perf";
/// The name of the peer in errors.
const PEER: &str = "the peer";
/// The most bytes of one operation.
const MOST: u64 = 1 << 30;
/// How long to wait for the reason of a peer that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
enum Measure {
    Bandwidth,
    Latency,
}

/// The first message, from the connecting end. Its `version` is read before the rest.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hello {
    version: u32,
    plan: Plan,
    /// Both NICs are software, over a cable of their own.
    softnic: bool,
}

/// Every message after the hello, of both ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Message {
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

/// One end's figures of a row.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Tally {
    /// Operations, including the warm-up.
    sent: u64,
    /// Operations that are counted.
    operations: u64,
    time_ns: u64,
    /// Processor time of the process during the row.
    cpu_ns: u64,
}

pub(crate) fn run(common: &Common, perf: &PerfRdma, op: Op, output: &mut Output) -> Result<u8> {
    if perf.serve {
        return serve::as_child(common, perf);
    }
    let plan = Plan::new(op, perf)?;
    if let Some(address) = perf.listen {
        return serve::listen(common, perf, op, address, output);
    }
    if plan.memory == Memory::Host {
        common.without_layers(&format!("perf {} --memory host", op.name()), false)?;
    }
    match &perf.connect {
        Some(address) => {
            let wire = Wire::connect(address, perf.timeout)?;
            client::run(common, perf, &plan, wire, output)
        }
        None => {
            let peer_nic = perf.peer_nic.as_ref().unwrap_or(&perf.nic);
            if (perf.nic == SOFTNIC) != (peer_nic == SOFTNIC) {
                return Err(Usage(format!(
                    "both ends need a NIC of one kind, {SOFTNIC} or one of libibverbs: not {} and {peer_nic}",
                    perf.nic
                ))
                .into());
            }
            let (ours, theirs) = UnixStream::pair().context("joining the nodes")?;
            let mut peer = spawn_peer(common, perf, &plan, theirs)?;
            let done = client::run(common, perf, &plan, Wire::Unix(ours), output);
            let ended = peer.wait();
            done.map_err(|error| match ended {
                Some(how) if error.downcast_ref::<Judged>().is_none() => {
                    error.context(format!("the peer ended ({how})"))
                }
                _ => error,
            })
        }
    }
}

/// The device of the peer that this process starts, with layers of its own: it is another process.
fn of_peer(common: &Common) -> Result<DeviceSpec> {
    let trace = common.trace.as_ref().map(|file| {
        let mut name = file.clone().into_os_string();
        name.push(".peer");
        PathBuf::from(name)
    });
    let devices = common.devices.get(1).or(common.devices.first()).cloned();
    node::device_spec(&Common {
        trace,
        devices: devices.into_iter().collect(),
        ..common.clone()
    })
}

/// Starts the process that serves.
fn spawn_peer(common: &Common, perf: &PerfRdma, plan: &Plan, socket: UnixStream) -> Result<Peer> {
    let device = match plan.memory {
        Memory::Device => Some(of_peer(common)?.to_string()),
        Memory::Host => None,
    };
    Peer::spawn(socket, |command| {
        command.args(["perf", plan.op.name(), "--serve", "--nic"]);
        command.arg(perf.peer_nic.as_ref().unwrap_or(&perf.nic));
        if let Some(index) = perf.gid_index {
            command.arg("--gid-index").arg(index.to_string());
        }
        command.args(vec!["-v"; common.verbose.into()]);
        command
            .arg("--timeout")
            .arg(perf.timeout.as_secs_f64().to_string());
        if let Some(device) = device {
            command.arg("--device").arg(device);
            if common.on_hardware {
                command.arg("--on-hardware");
            }
        }
    })
}

/// Receives the peer's next message; a failure of the peer is returned as an error.
fn reply(control: &mut Control) -> Result<Message> {
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
fn disagreement(why: String) -> Usage {
    Usage(format!(
        "{why}; give both ends the same value, or give it only to the connecting end"
    ))
}

fn out_of_step(message: &Message) -> anyhow::Error {
    Error::new(ErrorKind::Protocol, OPERATION)
        .because(format!("unexpected message: {message:?}"))
        .into()
}

fn expect_ready(control: &mut Control) -> Result<()> {
    match reply(control)? {
        Message::Ready => Ok(()),
        other => Err(out_of_step(&other)),
    }
}

/// The peer's own failure, if it explains an error of this end: a NIC or a socket that lost its
/// peer does not report the cause.
fn last_words(control: &mut Control, error: anyhow::Error) -> anyhow::Error {
    let is_words = |error: &anyhow::Error| {
        let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        ours.is_some_and(|error| error.operation() == PEER)
    };
    let is_lost = error
        .downcast_ref::<Error>()
        .is_some_and(|error| error.operation() == loops::RDMA || error.kind() == ErrorKind::Disconnected);
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
