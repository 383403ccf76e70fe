//! Rows whose memory is staged at one end or both: transfers of an endpoint.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi_remote::{Endpoint, Nic, Options, Policy, Rights, Until};
use gaudi_seam::Error;

use super::loops::Taken;
use super::node::Node;
use super::report::Row;
use super::wire::Wire;
use super::{Measure, Op, Reply, Request, kinds, out_of_step, reply};
use crate::args_rdma::PerfRdma;
use crate::demo::protocol::Control;
use crate::output::Output;
use crate::progress::Progress;

/// Transfers under way at a time: each has many chunks of its own.
const WINDOW: u32 = 4;

fn endpoint(node: &Node, wire: &Wire) -> Result<Endpoint> {
    let nic = Nic::new(&node.context)?;
    let mut options = Options::default();
    if node.side().staged() {
        options.policy = Policy::Never;
    }
    Ok(Endpoint::over(
        wire.duplicate()?,
        &nic,
        node.device.as_ref(),
        options,
    )?)
}

pub(super) fn serve(node: &mut Node, wire: &Wire, control: &mut Control) -> Result<()> {
    let mut endpoint = endpoint(node, wire)?;
    let buffer = node.buffer().context("staged memory is a device's")?;
    endpoint.offer(buffer, Rights::BOTH)?;
    loop {
        match control.receive()? {
            Request::Digest { incoming, bytes } => {
                let digest = node.digest(incoming, bytes.min(node.half()))?;
                control.send(&Reply::Digest(digest))?;
            }
            Request::Finish => return Ok(endpoint.close()?),
            // The endpoint serves by itself.
            Request::Row { .. } => control.send(&Reply::Ready)?,
        }
    }
}

pub(super) fn measure(
    node: &mut Node,
    perf: &PerfRdma,
    op: Op,
    sizes: &[u64],
    wire: &Wire,
    control: &mut Control,
    output: &Output,
) -> Result<Vec<Row>> {
    if !matches!(op, Op::Write | Op::Read) {
        return Err(Error::unsupported(
            "perf",
            format!("{} needs regions at both ends, and one end is staged", op.name()),
        )
        .helped_by("--dmabuf require tells why there is none")
        .into());
    }
    control.send(&true)?;
    let mut endpoint = endpoint(node, wire)?;
    let remote = endpoint.receive_offer(perf.timeout)?;
    let buffer = node.buffer().context("staged memory is a device's")?.clone();
    let half = node.half();
    let put = op == Op::Write;
    let mut rows = Vec::new();
    let mut progress = Progress::new("measuring", sizes.len() as u64, output.is_quiet());
    for &bytes in sizes {
        // Out of the first half into the second, whichever way.
        let (ours, theirs) = if put { (0, half) } else { (half, 0) };
        let ours = buffer.at(ours..ours + bytes)?;
        let theirs = remote.at(theirs..theirs + bytes)?;
        for kind in kinds(perf.measure) {
            let mut begin = |endpoint: &mut Endpoint| {
                if put {
                    endpoint.put(&ours, theirs.clone())
                } else {
                    endpoint.get(&ours, theirs.clone())
                }
            };
            let window = if kind == Measure::Bandwidth { WINDOW } else { 1 };
            run(
                &mut endpoint,
                perf.warm_up.min(10),
                window,
                perf.timeout,
                &mut begin,
            )?;
            let taken = run(&mut endpoint, perf.iterations, window, perf.timeout, &mut begin)?;
            control.send(&Request::Digest { incoming: put, bytes })?;
            let verified = match reply(control)? {
                Reply::Digest(digest) => digest == node.digest(!put, bytes)?,
                other => return Err(out_of_step(&other)),
            };
            rows.push(Row::new(
                op,
                kind,
                bytes,
                perf.warm_up.min(10),
                taken,
                false,
                Some(verified),
            ));
        }
        progress.advance(1);
    }
    endpoint.close()?;
    Ok(rows)
}

fn run(
    endpoint: &mut Endpoint,
    count: u32,
    window: u32,
    timeout: Duration,
    begin: &mut impl FnMut(&mut Endpoint) -> gaudi_remote::Result<gaudi_remote::Transfer>,
) -> Result<Taken> {
    let mut taken = Taken {
        each: Vec::with_capacity(count as usize),
        operations: count,
        ..Taken::default()
    };
    let start = Instant::now();
    let mut last = start;
    let mut under_way = std::collections::VecDeque::with_capacity(window as usize);
    for begun in 0..count + window {
        // Once the window is full, and at the end for each that is left.
        if under_way.len() == window as usize || begun >= count {
            let Some(transfer) = under_way.pop_front() else {
                break;
            };
            endpoint.wait(transfer, Until::from(timeout))?;
            let now = Instant::now();
            taken
                .each
                .push(u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX));
            last = now;
        }
        if begun < count {
            under_way.push_back(begin(endpoint)?);
        }
    }
    taken.all = start.elapsed();
    Ok(taken)
}
