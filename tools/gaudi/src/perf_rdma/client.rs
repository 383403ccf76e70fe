//! The end that measures.

use anyhow::Result;
use gaudi::{Error, ErrorKind};

use super::loops::{self, Bandwidth};
use super::message::{Hello, Message, VERSION, expect_ready, last_words, out_of_step, reply};
use super::node::{Node, Side};
use super::op::{Measure, OPERATION, Op};
use super::plan::Plan;
use super::report::{self, Report, Row};
use super::staged;
use super::watch::Watch;
use super::wire::Wire;
use crate::args_rdma::PerfRdma;
use crate::common::Common;
use crate::control::{Control, Failure};
use crate::exit::{self, Judged};
use crate::nic::SOFTNIC;
use crate::output::Output;
use crate::progress::Progress;

pub(super) fn run(
    common: &Common,
    perf: &PerfRdma,
    plan: &Plan,
    wire: Wire,
    output: &mut Output,
) -> Result<u8> {
    let mut control = Control::new(wire.duplicate()?);
    control.set_timeout(perf.timeout);
    match measure(common, perf, plan, &wire, &mut control, output) {
        Ok(report) => finish(&report, output),
        Err(error) => {
            let error = last_words(&mut control, error);
            // The peer may be closed already.
            let _ = control.send(&Message::Failed(Failure::of(&error)));
            Err(error)
        }
    }
}

/// Prints a report, at either end; the exit code is that of its verdict.
pub(super) fn finish(report: &Report, output: &mut Output) -> Result<u8> {
    let printed = report::print(report, output).and_then(|()| output.finish());
    if !report.is_verified() {
        let error = Error::new(ErrorKind::Corrupt, OPERATION)
            .because("the received bytes differ from the sent bytes");
        return Err(Judged(error).into());
    }
    printed?;
    Ok(exit::DONE)
}

fn measure(
    common: &Common,
    perf: &PerfRdma,
    plan: &Plan,
    wire: &Wire,
    control: &mut Control,
    output: &Output,
) -> Result<Report> {
    let softnic = perf.nic == SOFTNIC;
    control.send(&Hello {
        version: VERSION,
        plan: plan.clone(),
        softnic,
    })?;
    // The listening end answers before it opens anything.
    expect_ready(control)?;
    let cable = if softnic {
        Some(wire.cable(control, perf.timeout)?)
    } else {
        None
    };
    let mut node = Node::open(common, perf, plan, cable)?;
    let theirs = match reply(control)? {
        Message::Open(side) => side,
        other => return Err(out_of_step(&other)),
    };
    let ours = node.side();
    let staged = ours.staged() || theirs.staged();
    let plan = &match staged {
        true => staged::plan(plan)?,
        false => plan.clone(),
    };
    control.send(&Message::Join {
        side: ours.clone(),
        staged,
    })?;
    let mut progress = Progress::new("measuring", plan.sizes.len() as u64, output.is_quiet());
    let rows = if staged {
        staged::measure(&mut node, perf, plan, wire, control, &mut progress)?
    } else {
        node.join(control, plan.mtu_bytes)?;
        let mut rows = Vec::new();
        for &bytes in &plan.sizes {
            for &kind in plan.kinds() {
                rows.push(row(&mut node, perf, plan, kind, bytes, &theirs, control)?);
            }
            progress.advance(1);
        }
        rows
    };
    drop(progress);
    for row in &rows {
        control.send(&Message::Result(Box::new(row.clone())))?;
    }
    let path_mtu_bytes = node.path_mtu_bytes;
    control.send(&Message::Finish { path_mtu_bytes })?;
    node.close()?;
    Ok(Report::new(plan, true, ours, theirs, path_mtu_bytes, rows))
}

fn row(
    node: &mut Node,
    perf: &PerfRdma,
    plan: &Plan,
    measure: Measure,
    bytes: u64,
    theirs: &Side,
    control: &mut Control,
) -> Result<Row> {
    let _span = tracing::info_span!("row", op = plan.op.name(), ?measure, bytes).entered();
    // Writes are observed in memory, if a processor can read it.
    let by_memory =
        plan.op == Op::Write && measure == Measure::Latency && node.side().is_host() && theirs.is_host();
    let receives = plan.op == Op::Send && (measure == Measure::Latency || plan.bidirectional);
    if receives {
        node.prepare_receives()?;
    }
    if by_memory {
        node.clear_incoming(bytes)?;
    }
    control.send(&Message::Row {
        measure,
        bytes,
        by_memory,
    })?;
    expect_ready(control)?;
    let mut watch = Watch::new(control, perf.timeout);
    let taken = match measure {
        Measure::Bandwidth => {
            let bandwidth = Bandwidth {
                plan,
                sends: true,
                receives,
            };
            bandwidth.run(node, bytes, &mut watch)?
        }
        Measure::Latency => loops::latency(node, plan, bytes, by_memory, &mut watch)?,
    };
    let verified = match (measure, plan.op) {
        (Measure::Bandwidth, Op::Write | Op::Send | Op::Read) => {
            // A read fetches the peer's outgoing bytes; all others send this end's.
            let there = plan.op != Op::Read;
            let mut verified = compare(node, control, there, bytes)?;
            if plan.bidirectional {
                verified &= compare(node, control, !there, bytes)?;
            }
            Some(verified)
        }
        _ => None,
    };
    let row = Row::new(plan, measure, bytes, taken, by_memory, verified);
    tracing::info!("{row}");
    Ok(row)
}

/// Whether the received bytes, at the peer or here, are those that the other end sent.
pub(super) fn compare(node: &Node, control: &mut Control, at_peer: bool, bytes: u64) -> Result<bool> {
    let incoming = at_peer;
    control.send(&Message::Digest { incoming, bytes })?;
    match reply(control)? {
        Message::Digested(digest) => Ok(digest == node.digest(!incoming, bytes)?),
        other => Err(out_of_step(&other)),
    }
}
