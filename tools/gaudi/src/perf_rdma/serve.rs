//! The end that serves: a process that `gaudi perf` started, or one that listens.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi::{Error, ErrorKind};
use serde_json::Value;

use super::client::finish;
use super::loops::{self, Bandwidth};
use super::message::{Hello, Message, VERSION, disagreement, last_words, out_of_step};
use super::node::Node;
use super::op::{Measure, OPERATION, Op};
use super::plan::Plan;
use super::report::Report;
use super::staged;
use super::watch::Watch;
use super::wire::{Wire, accept};
use crate::args_rdma::PerfRdma;
use crate::common::Common;
use crate::control::{Control, Failure};
use crate::exit;
use crate::nic::SOFTNIC;
use crate::output::Output;

/// Timeout of a connection's hello, which a client sends at once.
const HELLO: Duration = Duration::from_secs(5);

/// Serves the process at the other end of standard input, which prints the result.
pub(super) fn as_child(common: &Common, perf: &PerfRdma) -> Result<u8> {
    let wire = Wire::Unix(crate::peer::stdin_socket("perf")?);
    let mut control = Control::new(wire.duplicate()?);
    control.set_timeout(perf.timeout);
    let hello = hello(&mut control)?;
    match serve(common, perf, &hello.plan, None, &wire, None, &mut control) {
        Ok(_) => Ok(exit::DONE),
        // The process that started this one reports the error.
        Err(_) => Ok(exit::FAILED),
    }
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
    loop {
        let (stream, from) = accept(&listener, None, end)?;
        let (wire, mut control, hello) = match greet(stream, end) {
            Ok(client) => client,
            Err(error) => {
                output.note(format!("refused a connection from {from}: {error:#}"));
                continue;
            }
        };
        tracing::info!("serving {from}: {:?}", hello.plan);
        control.set_timeout(perf.timeout);
        let devices = !common.devices.is_empty();
        let agreed = match hello.softnic == (perf.nic == SOFTNIC) {
            true => hello.plan.agrees(op, perf, devices),
            false => Err(one_kind(perf.nic == SOFTNIC)),
        };
        if let Err(why) = agreed {
            control.send(&Message::Refused(why.clone()))?;
            return Err(disagreement(why).into());
        }
        let report = serve(
            common,
            perf,
            &hello.plan,
            Some(from),
            &wire,
            Some(&listener),
            &mut control,
        )?;
        return finish(&report, output);
    }
}

fn one_kind(softnic_here: bool) -> String {
    let name = |softnic| if softnic { SOFTNIC } else { "a NIC of libibverbs" };
    format!(
        "--nic: the listening end has {}, the connecting end {}",
        name(softnic_here),
        name(!softnic_here)
    )
}

/// Reads the hello of a connection.
fn greet(stream: TcpStream, end: Option<Instant>) -> Result<(Wire, Control, Hello)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let left = end.map_or(HELLO, |end| end.saturating_duration_since(Instant::now()));
    let wire = Wire::Tcp(stream);
    let mut control = Control::new(wire.duplicate()?);
    control.set_timeout(left.min(HELLO));
    let hello = hello(&mut control)?;
    Ok((wire, control, hello))
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

fn serve(
    common: &Common,
    perf: &PerfRdma,
    plan: &Plan,
    from: Option<SocketAddr>,
    wire: &Wire,
    listener: Option<&TcpListener>,
    control: &mut Control,
) -> Result<Report> {
    answer(common, perf, plan, (wire, listener, from), control).map_err(|error| {
        let error = last_words(control, error);
        // The client may be closed already.
        let _ = control.send(&Message::Failed(Failure::of(&error)));
        error
    })
}

fn answer(
    common: &Common,
    perf: &PerfRdma,
    plan: &Plan,
    (wire, listener, from): (&Wire, Option<&TcpListener>, Option<SocketAddr>),
    control: &mut Control,
) -> Result<Report> {
    control.send(&Message::Ready)?;
    let cable = if perf.nic == SOFTNIC {
        Some(wire.take_cable(listener, from, control, perf.timeout)?)
    } else {
        None
    };
    let mut node = Node::open(common, perf, plan, cable)?;
    control.send(&Message::Open(node.side()))?;
    let staged_plan;
    let mut plan = plan;
    // Its threads serve the client's transfers.
    let mut endpoint = None;
    let theirs = match super::message::reply(control)? {
        Message::Join { side, staged: true } => {
            staged_plan = staged::plan(plan)?;
            plan = &staged_plan;
            endpoint = Some(staged::offer(&node, wire)?);
            side
        }
        Message::Join { side, staged: false } => {
            node.join(control, plan.mtu_bytes)?;
            side
        }
        other => return Err(out_of_step(&other)),
    };
    let mut rows = Vec::new();
    loop {
        match super::message::reply(control)? {
            Message::Row {
                measure,
                bytes,
                by_memory,
            } => {
                if bytes == 0 || bytes > plan.most_bytes() {
                    return Err(Error::new(ErrorKind::Protocol, OPERATION)
                        .because("a row has more bytes than the plan")
                        .saw(bytes, plan.most_bytes())
                        .into());
                }
                row(&mut node, perf, plan, (measure, bytes, by_memory), control)?;
            }
            Message::Digest { incoming, bytes } => {
                let digest = node.digest(incoming, bytes.min(plan.most_bytes()))?;
                control.send(&Message::Digested(digest))?;
            }
            Message::Result(row) => {
                // As many as a plan can have.
                if rows.len() >= 2 * plan.sizes.len() {
                    return Err(out_of_step(&Message::Result(row)));
                }
                rows.push(*row);
            }
            Message::Finish { path_mtu_bytes } => {
                if let Some(endpoint) = endpoint {
                    endpoint.close()?;
                }
                let ours = node.side();
                node.close()?;
                return Ok(Report::new(plan, false, ours, theirs, path_mtu_bytes, rows));
            }
            other => return Err(out_of_step(&other)),
        }
    }
}

fn row(
    node: &mut Node,
    perf: &PerfRdma,
    plan: &Plan,
    (measure, bytes, by_memory): (Measure, u64, bool),
    control: &mut Control,
) -> Result<()> {
    let _span = tracing::info_span!("row", op = plan.op.name(), ?measure, bytes).entered();
    let receives = plan.op == Op::Send;
    if receives {
        node.prepare_receives()?;
    }
    if by_memory {
        if !node.side().is_host() {
            return Err(Error::new(ErrorKind::Protocol, OPERATION)
                .because("a row observed in memory, but the memory is a device's")
                .into());
        }
        node.clear_incoming(bytes)?;
    }
    control.send(&Message::Ready)?;
    let mut watch = Watch::new(control, perf.timeout);
    match measure {
        Measure::Bandwidth if receives || plan.bidirectional => {
            let bandwidth = Bandwidth {
                plan,
                sends: plan.bidirectional,
                receives,
            };
            bandwidth.run(node, bytes, &mut watch)?;
            Ok(())
        }
        Measure::Latency if receives || by_memory => loops::echo(node, bytes, by_memory, &mut watch),
        // The NIC serves alone.
        _ => loops::idle(&mut watch),
    }
}
