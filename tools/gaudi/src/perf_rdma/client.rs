//! The end that measures.

use anyhow::Result;
use gaudi::{Error, ErrorKind};

use super::loops;
use super::message::{Hello, Message, VERSION};
use super::node::{Node, Side};
use super::op::{Measure, OPERATION, Op};
use super::plan::Plan;
use super::report::{self, Report, Row};
use super::session::Session;
use super::staged;
use super::watch::Watch;
use crate::control::out_of_step;
use crate::exit;
use crate::output::Output;
use crate::progress::Progress;

pub(super) fn run(mut session: Session<'_>, plan: &Plan, output: &mut Output) -> Result<u8> {
    let measured = measure(&mut session, plan, output);
    finish(&session.report_failure(measured)?, output)
}

/// Prints a report, at either end; the exit code is that of its verdict.
pub(super) fn finish(report: &Report, output: &mut Output) -> Result<u8> {
    let printed = report::print(report, output).and_then(|()| output.finish());
    exit::judged(report.is_verified(), printed, || {
        Error::new(ErrorKind::Corrupt, OPERATION).because("the received bytes differ from the sent bytes")
    })
}

fn measure(session: &mut Session<'_>, plan: &Plan, output: &Output) -> Result<Report> {
    session.control.send(&Hello {
        version: VERSION,
        plan: plan.clone(),
        softnic: session.is_soft(),
    })?;
    // The listening end answers before it opens anything.
    session.expect_ready()?;
    let mut node = session.open(plan)?;
    let theirs = match session.control.reply()? {
        Message::Open(side) => side,
        other => return Err(out_of_step(&other)),
    };
    let ours = node.side.clone();
    let staged = ours.staged() || theirs.staged();
    let plan = &match staged {
        true => staged::plan(plan)?,
        false => plan.clone(),
    };
    session.control.send(&Message::Join {
        side: ours.clone(),
        staged,
    })?;
    let mut progress = Progress::new("measuring", plan.sizes.len() as u64, output.is_quiet());
    let mut rows = Vec::new();
    if staged {
        staged::measure(&mut node, plan, session, &mut rows, &mut progress)?;
    } else {
        node.join(&mut session.control, plan.mtu_bytes)?;
        for &bytes in &plan.sizes {
            for &kind in plan.kinds() {
                rows.push(row(&mut node, plan, kind, bytes, &theirs, session)?);
            }
            progress.advance(1);
        }
    }
    drop(progress);
    for row in &rows {
        session.control.send(&Message::Result(Box::new(row.clone())))?;
    }
    let path_mtu_bytes = node.path_mtu_bytes;
    session.control.send(&Message::Finish { path_mtu_bytes })?;
    node.close()?;
    Ok(Report::new(plan, true, ours, theirs, path_mtu_bytes, rows))
}

fn row(
    node: &mut Node,
    plan: &Plan,
    measure: Measure,
    bytes: u64,
    theirs: &Side,
    session: &mut Session<'_>,
) -> Result<Row> {
    let _span = tracing::info_span!("row", op = plan.op.name(), ?measure, bytes).entered();
    let is_latency = measure == Measure::Latency;
    // Writes are observed in memory, if a processor can read it.
    let by_memory = plan.op == Op::Write && is_latency && node.side.is_host() && theirs.is_host();
    let receives = plan.op == Op::Send && (is_latency || plan.bidirectional);
    node.prepare(receives, by_memory, bytes)?;
    session.control.send(&Message::Row {
        measure,
        bytes,
        by_memory,
    })?;
    session.expect_ready()?;
    let mut watch = Watch::new(&mut session.control, session.perf.timeout);
    let taken = match is_latency {
        true => loops::latency(node, plan, bytes, by_memory, &mut watch)?,
        false => loops::bandwidth(node, plan, bytes, (true, receives), &mut watch)?,
    };
    let mut verified = None;
    if !is_latency && plan.op != Op::Atomic {
        // A read fetches the peer's outgoing bytes; all others send this end's.
        let there = plan.op != Op::Read;
        let mut same = session.compare(node, there, bytes)?;
        if plan.bidirectional {
            same &= session.compare(node, !there, bytes)?;
        }
        verified = Some(same);
    }
    let row = Row::new(plan, measure, bytes, taken, by_memory, verified);
    tracing::info!("{row}");
    Ok(row)
}
