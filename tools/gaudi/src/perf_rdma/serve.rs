//! The end that serves: a process that `gaudi perf` started, or one that listens.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi::{Error, ErrorKind};
use serde_json::Value;

use super::client::finish;
use super::loops;
use super::message::{Hello, Message, VERSION};
use super::node::Node;
use super::op::{Measure, OPERATION, Op};
use super::plan::{Plan, differ};
use super::report::Report;
use super::session::Session;
use super::staged;
use super::watch::Watch;
use super::wire::{Wire, accept};
use crate::args_rdma::PerfRdma;
use crate::common::Common;
use crate::control::{Control, Failure, out_of_step};
use crate::exit;
use crate::nic::SOFTNIC;
use crate::output::Output;

/// Timeout of a connection's hello, which a client sends at once.
const HELLO: Duration = Duration::from_secs(5);

/// Serves the process at the other end of standard input, which prints the result.
pub(super) fn as_child(common: &Common, perf: &PerfRdma) -> Result<u8> {
    let wire = Wire::Child(crate::peer::stdin_socket("perf")?);
    let mut session = Session::new(common, perf, wire)?;
    let hello = hello(&mut session.control)?;
    let served = serve(&mut session, &hello.plan);
    // The process that started this one reports the error.
    let is_done = session.report_failure(served).is_ok();
    Ok(if is_done { exit::DONE } else { exit::FAILED })
}

/// Waits for a client and serves it. A connection that does not send a client's hello is closed,
/// and the wait continues.
pub(super) fn listen(
    common: &Common,
    perf: &PerfRdma,
    op: Op,
    address: SocketAddr,
    output: &mut Output,
) -> Result<u8> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
    listener.set_nonblocking(true).context("listening")?;
    output.note(format!("waiting at {}", listener.local_addr()?));
    let end = Instant::now().checked_add(perf.timeout);
    let (stream, from, hello) = loop {
        let (stream, from) = accept(&listener, None, end)?;
        match greet(&stream, end) {
            Ok(hello) => break (stream, from, hello),
            Err(error) => output.note(format!("refused a connection from {from}: {error:#}")),
        }
    };
    tracing::info!("serving {from}: {:?}", hello.plan);
    let mut session = Session::new(common, perf, Wire::Accepted(stream, listener, from.ip()))?;
    let kind = |softnic| if softnic { SOFTNIC } else { "a NIC of libibverbs" }.to_owned();
    let nic = [("--nic", Some(kind(session.is_soft())), kind(hello.softnic))];
    let agreed = differ(nic).and_then(|()| hello.plan.agrees(op, perf, !common.devices.is_empty()));
    if let Err(why) = agreed {
        session.refuse(why)?;
    }
    let served = serve(&mut session, &hello.plan);
    finish(&session.report_failure(served)?, output)
}

/// Reads the hello of a connection.
fn greet(stream: &TcpStream, end: Option<Instant>) -> Result<Hello> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let left = end.map_or(HELLO, |end| end.saturating_duration_since(Instant::now()));
    let mut control = Control::new(stream.try_clone()?);
    control.set_timeout(left.min(HELLO));
    hello(&mut control)
}

fn hello(control: &mut Control) -> Result<Hello> {
    let protocol = |why: String| Error::new(ErrorKind::Protocol, OPERATION).because(why);
    let value: Value = control.receive()?;
    match value["version"].as_u64() {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            let error = protocol("the two ends have different versions".to_owned());
            let error = anyhow::Error::from(error.saw(version, VERSION));
            // The client reports it; this end continues to listen.
            let _ = control.send(&Message::Failed(Failure::of(&error)));
            return Err(error);
        }
        None => return Err(protocol("the first message is not a hello".to_owned()).into()),
    }
    let hello: Hello = serde_json::from_value(value).map_err(|error| protocol(error.to_string()))?;
    hello.plan.check()?;
    Ok(hello)
}

fn serve(session: &mut Session<'_>, plan: &Plan) -> Result<Report> {
    session.control.send(&Message::Ready)?;
    let mut node = session.open(plan)?;
    session.control.send(&Message::Open(node.side.clone()))?;
    let staged_plan;
    let mut plan = plan;
    // Its threads serve the client's transfers.
    let mut endpoint = None;
    let theirs = match session.control.reply()? {
        Message::Join { side, staged: true } => {
            staged_plan = staged::plan(plan)?;
            plan = &staged_plan;
            endpoint = Some(staged::offer(&node, &session.wire)?);
            side
        }
        Message::Join { side, staged: false } => {
            node.join(&mut session.control, plan.mtu_bytes)?;
            side
        }
        other => return Err(out_of_step(&other)),
    };
    let mut rows = Vec::new();
    loop {
        match session.control.reply()? {
            Message::Row {
                measure,
                bytes,
                by_memory,
            } => row(&mut node, plan, (measure, bytes, by_memory), session)?,
            Message::Digest { incoming, bytes } => {
                let digest = node.digest(incoming, bytes.min(plan.most_bytes()))?;
                session.control.send(&Message::Digested(digest))?;
            }
            // As many as a plan can have.
            Message::Result(row) if rows.len() < 2 * plan.sizes.len() => rows.push(*row),
            Message::Finish { path_mtu_bytes } => {
                if let Some(endpoint) = endpoint {
                    endpoint.close()?;
                }
                let ours = node.side.clone();
                node.close()?;
                return Ok(Report::new(plan, false, ours, theirs, path_mtu_bytes, rows));
            }
            other => return Err(out_of_step(&other)),
        }
    }
}

fn row(
    node: &mut Node,
    plan: &Plan,
    (measure, bytes, by_memory): (Measure, u64, bool),
    session: &mut Session<'_>,
) -> Result<()> {
    let protocol = |why| Error::new(ErrorKind::Protocol, OPERATION).because(why);
    let most = plan.most_bytes();
    if bytes == 0 || bytes > most {
        return Err(protocol("a row has more bytes than the plan")
            .saw(bytes, most)
            .into());
    }
    let _span = tracing::info_span!("row", op = plan.op.name(), ?measure, bytes).entered();
    if by_memory && !node.side.is_host() {
        return Err(protocol("a row observed in memory, but the memory is a device's").into());
    }
    let is_latency = measure == Measure::Latency;
    let receives = plan.op == Op::Send;
    node.prepare(receives, by_memory, bytes)?;
    session.control.send(&Message::Ready)?;
    let mut watch = Watch::new(&mut session.control, session.perf.timeout);
    if is_latency && (receives || by_memory) {
        return loops::echo(node, plan, bytes, by_memory, &mut watch);
    }
    // In both directions, in one, or by the NIC alone.
    let ways = (!is_latency && plan.bidirectional, receives);
    loops::bandwidth(node, plan, bytes, ways, &mut watch).map(drop)
}
