//! Rows whose memory is staged at one end or both: transfers of an endpoint.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result};
use gaudi::Error;
use gaudi::remote::{Endpoint, EndpointOptions, Policy, Rights, Transfer};

use super::loops::{Limit, Stopwatch};
use super::message::Message;
use super::node::Node;
use super::op::{Measure, OPERATION, Op, Tally};
use super::plan::Plan;
use super::report::Row;
use super::samples::{Samples, Taken};
use super::session::Session;
use super::watch::SIGN;
use super::wire::Wire;
use crate::figures::nanos;
use crate::progress::Progress;

/// Transfers in flight: each has many chunks of its own.
const WINDOW: u32 = 4;
/// A transfer takes longer than an operation, so fewer are needed to warm up.
const WARM_UP: u32 = 10;

/// Returns the plan of rows that are staged.
///
/// # Errors
/// `Unsupported`: transfers of an endpoint do not have the operation or an option.
pub(super) fn plan(plan: &Plan) -> Result<Plan> {
    let missing = match plan.op {
        Op::Write | Op::Read => plan.bandwidth_option().or(plan.mtu_bytes.map(|_| "--mtu")),
        op => Some(op.name()),
    };
    if let Some(what) = missing {
        let why = format!("{what} needs regions at both ends, but one end is staged");
        return Err(Error::unsupported(OPERATION, why)
            .helped_by("--dmabuf require reports why there is none")
            .into());
    }
    Ok(Plan {
        warm_up: plan.warm_up.min(WARM_UP),
        window: WINDOW,
        signal: 1,
        ..plan.clone()
    })
}

fn endpoint(node: &Node, wire: &Wire) -> Result<Endpoint> {
    let mut options = EndpointOptions::default();
    if node.side.staged() {
        options.policy = Policy::Never;
    }
    let device = node.in_device().map(|(_, device)| device);
    Ok(Endpoint::over(wire.duplicate()?, &node.nic, device, options)?)
}

/// Opens the endpoint of the serving end. Its own threads serve the peer's transfers.
pub(super) fn offer(node: &Node, wire: &Wire) -> Result<Endpoint> {
    let mut endpoint = endpoint(node, wire)?;
    let (buffer, _) = node.in_device().context("staged memory is a device's")?;
    endpoint.offer(buffer, Rights::BOTH)?;
    Ok(endpoint)
}

pub(super) fn measure(
    node: &mut Node,
    plan: &Plan,
    session: &mut Session<'_>,
    rows: &mut Vec<Row>,
    progress: &mut Progress,
) -> Result<()> {
    let mut endpoint = endpoint(node, &session.wire)?;
    let remote = endpoint.receive_offer(session.perf.timeout)?;
    let (buffer, _) = node.in_device().context("staged memory is a device's")?;
    let half = node.half;
    let put = plan.op == Op::Write;
    for &bytes in &plan.sizes {
        // From the first half into the second, in both directions.
        let (ours, theirs) = if put { (0, half) } else { (half, 0) };
        let ours = buffer.at(ours..ours + bytes)?;
        let theirs = remote.at(theirs..theirs + bytes)?;
        for &kind in plan.kinds() {
            let mut begin = |endpoint: &mut Endpoint| match put {
                true => endpoint.put(&ours, theirs.clone()),
                false => endpoint.get(&ours, theirs.clone()),
            };
            let window = match kind {
                Measure::Bandwidth => plan.window as usize,
                Measure::Latency => 1,
            };
            transfer(
                &mut endpoint,
                Limit::Operations(plan.warm_up),
                window,
                session,
                &mut begin,
            )?;
            let taken = transfer(&mut endpoint, Limit::of(plan), window, session, &mut begin)?;
            let verified = session.compare(node, put, bytes)?;
            rows.push(Row::new(plan, kind, bytes, taken, false, Some(verified)));
        }
        progress.advance(1);
    }
    Ok(endpoint.close()?)
}

fn transfer(
    endpoint: &mut Endpoint,
    limit: Limit,
    window: usize,
    session: &mut Session<'_>,
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
        endpoint.wait(transfer, session.perf.timeout)?;
        complete += 1;
        let now = Instant::now();
        samples.push(nanos(now - last));
        last = now;
        if now - sign > SIGN {
            // A row may last longer than the peer's timeout for a message.
            sign = now;
            session.control.send(&Message::Alive)?;
        }
    }
    Ok(Taken {
        samples,
        ours: stopwatch.tally(Instant::now(), complete, complete),
        theirs: Tally::default(),
    })
}
