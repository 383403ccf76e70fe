//! What `gaudi perf write|read|send|atomic` tells.

use anyhow::Result;
use serde::Serialize;

use super::loops::Taken;
use super::node::Side;
use super::{Measure, Op};
use crate::args_rdma::PerfRdma;
use crate::output::{Output, grouped};
use crate::perf::{CLOCK, rank};

#[derive(Serialize)]
pub(super) struct Report {
    operation: &'static str,
    clock: &'static str,
    /// `software`, `mock` or `hardware`: what the figures are of.
    backend: &'static str,
    local: Side,
    remote: Side,
    window: u32,
    signal_every: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
pub(super) struct Row {
    operation: &'static str,
    /// `bandwidth` or `latency`.
    measure: &'static str,
    /// What told that an operation was over: `memory` or `completion`.
    by: &'static str,
    /// Times are of one way; there and back is two.
    half_of_round_trip: bool,
    size_bytes: u64,
    n: u64,
    warm_up: u32,
    /// Samples: single operations, or groups that completed together, as time of one of the group.
    samples: u64,
    median_ns: u64,
    p99_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// All bytes over all time.
    bytes_per_second: u64,
    operations_per_second: u64,
    /// Nothing where it was not compared.
    pub(super) verified: Option<bool>,
}

impl Row {
    pub(super) fn new(
        op: Op,
        measure: Measure,
        bytes: u64,
        warm_up: u32,
        mut taken: Taken,
        by_memory: bool,
        verified: Option<bool>,
    ) -> Self {
        taken.each.sort_unstable();
        let rate = |amount: u64| {
            let nanos = taken.all.as_nanos().max(1);
            u64::try_from(u128::from(amount) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
        };
        let operations = u64::from(taken.operations);
        Self {
            operation: op.name(),
            measure: match measure {
                Measure::Bandwidth => "bandwidth",
                Measure::Latency => "latency",
            },
            by: if by_memory { "memory" } else { "completion" },
            half_of_round_trip: measure == Measure::Latency && (by_memory || op == Op::Send),
            size_bytes: bytes,
            n: operations,
            warm_up,
            samples: taken.each.len() as u64,
            median_ns: rank(&taken.each, 500),
            p99_ns: rank(&taken.each, 990),
            min_ns: rank(&taken.each, 0),
            max_ns: rank(&taken.each, 1000),
            bytes_per_second: rate(operations.saturating_mul(bytes)),
            operations_per_second: rate(operations),
            verified,
        }
    }
}

impl Report {
    pub(super) fn new(op: Op, perf: &PerfRdma, local: Side, remote: Side, rows: Vec<Row>) -> Self {
        let mock = |side: &Side| side.device_backend.as_deref() == Some("mock");
        let backend = if local.software || remote.software {
            "software"
        } else if mock(&local) || mock(&remote) {
            "mock"
        } else {
            "hardware"
        };
        Self {
            operation: op.name(),
            clock: CLOCK,
            backend,
            local,
            remote,
            window: perf.window,
            signal_every: perf.signal.min(perf.window),
            rows,
        }
    }
}

fn side(side: &Side) -> String {
    let mtu = side
        .mtu_bytes
        .map_or_else(String::new, |mtu| format!(", MTU {mtu} B"));
    let memory = match &side.device_backend {
        Some(backend) => format!("device memory of {} ({backend})", side.memory),
        None => "host memory".to_owned(),
    };
    let why = side
        .why
        .as_ref()
        .map_or_else(String::new, |why| format!("; no dma-buf region: {why}"));
    format!(
        "{} ({}{mtu}), {memory}, by {}{why}",
        side.nic, side.provider, side.path
    )
}

pub(super) fn print(report: &Report, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return output.document("gaudi.perf_rdma", report);
    }
    output.line(format!("local      {}", side(&report.local)))?;
    output.line(format!("remote     {}", side(&report.remote)))?;
    output.line(format!("clock      {}", report.clock))?;
    output.line(format!(
        "bandwidth  {} operations under way, every {}th tells its completion; times are of one of a group",
        report.window, report.signal_every
    ))?;
    output.line("latency    one after the other; ½: half of there and back")?;
    output.line("")?;
    let header = [
        "operation",
        "measure",
        "by",
        "on",
        "bytes",
        "n",
        "warm-up",
        "median[µs]",
        "p99[µs]",
        "min[µs]",
        "max[µs]",
        "MiB/s",
        "op/s",
        "verified",
    ];
    let micros = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            vec![
                row.operation.to_owned(),
                format!(
                    "{}{}",
                    row.measure,
                    if row.half_of_round_trip { " ½" } else { "" }
                ),
                row.by.to_owned(),
                report.backend.to_owned(),
                grouped(row.size_bytes),
                grouped(row.n),
                grouped(row.warm_up.into()),
                micros(row.median_ns),
                micros(row.p99_ns),
                micros(row.min_ns),
                micros(row.max_ns),
                format!("{:.2}", row.bytes_per_second as f64 / f64::from(1 << 20)),
                grouped(row.operations_per_second),
                match row.verified {
                    Some(true) => "yes",
                    Some(false) => "NO",
                    None => "-",
                }
                .to_owned(),
            ]
        })
        .collect();
    output.table(&header, &[4, 5, 6, 7, 8, 9, 10, 11, 12], &rows)?;
    match report.backend {
        "software" => {
            output.line("")?;
            output.line("software: the NIC is this processor's work; no figure above is hardware's")?;
        }
        "mock" => {
            output.line("")?;
            output.line("mock: the device is this processor's work; no figure above is hardware's")?;
        }
        _ => {}
    }
    Ok(())
}
