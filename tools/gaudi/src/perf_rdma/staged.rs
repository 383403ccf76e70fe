//! Rows whose memory is staged at one end or both: transfers of an endpoint.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result};
use gaudi::remote::{Endpoint, EndpointOptions, Policy, Rights, Transfer};
use gaudi::{Deadline, Error};

use super::client::compare;
use super::loops::{Limit, Stopwatch, nanos};
use super::message::Message;
use super::node::Node;
use super::op::{Measure, Op, Tally};
use super::plan::Plan;
use super::report::Row;
use super::samples::{Samples, Taken};
use super::watch::SIGN;
use super::wire::Wire;
use crate::args_rdma::PerfRdma;
use crate::control::Control;
use crate::progress::Progress;

/// Transfers in flight: each has many chunks of its own.
const WINDOW: u32 = 4;
/// A transfer takes longer than an operation, so fewer are needed to warm up.
const WARM_UP: u32 = 10;

/// The plan of rows that are staged.
///
/// # Errors
/// `Unsupported`: transfers of an endpoint do not have the operation or an option.
pub(super) fn plan(plan: &Plan) -> Result<Plan> {
    check(plan)?;
    Ok(Plan {
        warm_up: plan.warm_up.min(WARM_UP),
        window: WINDOW,
        signal: 1,
        ..plan.clone()
    })
}

fn check(plan: &Plan) -> Result<()> {
    if !matches!(plan.op, Op::Write | Op::Read) {
        return Err(Error::unsupported(
            "perf",
            format!(
                "{} needs regions at both ends, but one end is staged",
                plan.op.name()
            ),
        )
        .helped_by("--dmabuf require reports why there is none")
        .into());
    }
    let options = [
        ("--bidirectional", plan.bidirectional),
        ("--qps", plan.qps > 1),
        ("--post-list", plan.post_list > 1),
        ("--mtu", plan.mtu_bytes.is_some()),
    ];
    match options.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Error::unsupported(
            "perf",
            format!("{option} needs regions at both ends, but one end is staged"),
        )
        .helped_by("--dmabuf require reports why there is none")
        .into()),
        None => Ok(()),
    }
}

fn endpoint(node: &Node, wire: &Wire) -> Result<Endpoint> {
    let mut options = EndpointOptions::default();
    if node.side().staged() {
        options.policy = Policy::Never;
    }
    Ok(Endpoint::over(
        wire.duplicate()?,
        &node.nic,
        node.device.as_ref(),
        options,
    )?)
}

/// The endpoint of the end that serves: its own threads serve the peer's transfers.
pub(super) fn offer(node: &Node, wire: &Wire) -> Result<Endpoint> {
    let mut endpoint = endpoint(node, wire)?;
    let buffer = node.buffer().context("staged memory is a device's")?;
    endpoint.offer(buffer, Rights::BOTH)?;
    Ok(endpoint)
}

pub(super) fn measure(
    node: &mut Node,
    perf: &PerfRdma,
    plan: &Plan,
    wire: &Wire,
    control: &mut Control,
    progress: &mut Progress,
) -> Result<Vec<Row>> {
    let mut endpoint = endpoint(node, wire)?;
    let remote = endpoint.receive_offer(perf.timeout)?;
    let buffer = node.buffer().context("staged memory is a device's")?.clone();
    let half = node.half();
    let put = plan.op == Op::Write;
    let mut rows = Vec::new();
    for &bytes in &plan.sizes {
        // From the first half into the second, in both directions.
        let (ours, theirs) = if put { (0, half) } else { (half, 0) };
        let ours = buffer.at(ours..ours + bytes)?;
        let theirs = remote.at(theirs..theirs + bytes)?;
        for &kind in plan.kinds() {
            let mut begin = |endpoint: &mut Endpoint| {
                if put {
                    endpoint.put(&ours, theirs.clone())
                } else {
                    endpoint.get(&ours, theirs.clone())
                }
            };
            let window = if kind == Measure::Bandwidth {
                plan.window as usize
            } else {
                1
            };
            let warm = Limit::Operations(plan.warm_up);
            let mut row = |limit| transfer(&mut endpoint, limit, window, (perf, control), &mut begin);
            row(warm)?;
            let taken = row(Limit::of(plan))?;
            let verified = compare(node, control, put, bytes)?;
            rows.push(Row::new(plan, kind, bytes, taken, false, Some(verified)));
        }
        progress.advance(1);
    }
    endpoint.close()?;
    Ok(rows)
}

fn transfer(
    endpoint: &mut Endpoint,
    limit: Limit,
    window: usize,
    (perf, control): (&PerfRdma, &mut Control),
    begin: &mut impl FnMut(&mut Endpoint) -> gaudi::Result<Transfer>,
) -> Result<Taken> {
    let mut samples = Samples::new(limit.expected());
    let stopwatch = Stopwatch::start();
    let start = Instant::now();
    let (mut last, mut sign) = (start, start);
    let mut in_flight = VecDeque::with_capacity(window);
    let (mut begun, mut complete) = (0_u64, 0_u64);
    loop {
        let is_over = match limit {
            Limit::Operations(count) => begun >= count.into(),
            Limit::Time(time) => last - start >= time,
        };
        if !is_over && in_flight.len() < window {
            in_flight.push_back(begin(endpoint)?);
            begun += 1;
            continue;
        }
        let Some(transfer) = in_flight.pop_front() else {
            break;
        };
        endpoint.wait(transfer, Deadline::from(perf.timeout))?;
        complete += 1;
        let now = Instant::now();
        samples.push(nanos(now - last));
        last = now;
        if now - sign > SIGN {
            // A row may last longer than the peer's timeout for a message.
            sign = now;
            control.send(&Message::Alive)?;
        }
    }
    Ok(Taken {
        samples,
        ours: stopwatch.tally(complete, complete),
        theirs: Tally::default(),
    })
}
