//! The result of `gaudi perf write|read|send|atomic`.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::node::Side;
use super::op::{Measure, Op, Tally};
use super::plan::Plan;
use super::samples::{Bucket, Taken};
use crate::control::printable;
use crate::figures::{CLOCK, micros, note_software, rate_of, yes};
use crate::nic::with_provider;
use crate::output::{Output, grouped};
use crate::report::columns;

#[derive(Serialize)]
pub(super) struct Report {
    operation: Op,
    clock: &'static str,
    /// `software`, `mock` or `hardware`: what was measured.
    backend: &'static str,
    /// `local` or `remote`: the end that measured.
    measured_by: &'static str,
    local: Side,
    remote: Side,
    path_mtu_bytes: Option<u32>,
    queue_pairs: u32,
    window: u32,
    signal_every: u32,
    post_list: u32,
    bidirectional: bool,
    duration_ms: Option<u64>,
    rows: Vec<Row>,
}

/// How the end of an operation was observed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum By {
    Memory,
    Completion,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    operation: Op,
    measure: Measure,
    by: By,
    /// Times are half of a round trip.
    half_of_round_trip: bool,
    size_bytes: u64,
    /// Of both directions.
    n: u64,
    warm_up: u32,
    /// Number of times: one of each operation for latency, none for bandwidth.
    samples: u64,
    median_ns: Option<u64>,
    p99_ns: Option<u64>,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    /// All bytes over all time, of both directions.
    bytes_per_second: u64,
    operations_per_second: u64,
    /// Processor time over time: of the process that measures.
    cpu_percent: f64,
    /// Of the process that serves; `None` if it did not measure it.
    peer_cpu_percent: Option<f64>,
    /// `None` if it was not requested.
    histogram: Option<Vec<Bucket>>,
    /// `None` if the bytes were not compared.
    verified: Option<bool>,
}

fn cpu_percent(tally: &Tally) -> Option<f64> {
    let percent = tally.cpu_ns as f64 * 100.0 / tally.time_ns as f64;
    (tally.time_ns > 0).then_some((percent * 10.0).round() / 10.0)
}

impl Row {
    pub(super) fn new(
        plan: &Plan,
        measure: Measure,
        bytes: u64,
        mut taken: Taken,
        by_memory: bool,
        verified: Option<bool>,
    ) -> Self {
        let is_latency = measure == Measure::Latency;
        let (ours, theirs) = (&taken.ours, &taken.theirs);
        let rate = |amount: u64| {
            [ours, theirs]
                .iter()
                .map(|tally| rate_of(tally.operations.saturating_mul(amount), tally.time_ns))
                .fold(0, u64::saturating_add)
        };
        let ranks = if is_latency { taken.samples.ranks() } else { None };
        Self {
            operation: plan.op,
            measure,
            by: if by_memory { By::Memory } else { By::Completion },
            half_of_round_trip: is_latency && (by_memory || plan.op == Op::Send),
            size_bytes: bytes,
            n: ours.operations.saturating_add(theirs.operations),
            warm_up: plan.warm_up,
            samples: if is_latency { taken.samples.len() } else { 0 },
            min_ns: ranks.map(|ranks| ranks[0]),
            median_ns: ranks.map(|ranks| ranks[1]),
            p99_ns: ranks.map(|ranks| ranks[2]),
            max_ns: ranks.map(|ranks| ranks[3]),
            bytes_per_second: rate(bytes),
            operations_per_second: rate(1),
            cpu_percent: cpu_percent(ours).unwrap_or(0.0),
            peer_cpu_percent: cpu_percent(theirs),
            histogram: (plan.histogram && is_latency).then(|| taken.samples.histogram()),
            verified,
        }
    }
}

/// Formats the row as one line for the log.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} bytes/s, median {:?} ns, verified {:?}",
            self.n, self.bytes_per_second, self.median_ns, self.verified
        )
    }
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        is_measured_here: bool,
        local: Side,
        remote: Side,
        path_mtu_bytes: Option<u32>,
        rows: Vec<Row>,
    ) -> Self {
        let mock = |side: &Side| side.device_backend.as_deref() == Some("mock");
        let backend = if local.software || remote.software {
            "software"
        } else if mock(&local) || mock(&remote) {
            "mock"
        } else {
            "hardware"
        };
        Self {
            operation: plan.op,
            clock: CLOCK,
            backend,
            measured_by: if is_measured_here { "local" } else { "remote" },
            local,
            remote,
            path_mtu_bytes,
            queue_pairs: plan.qps,
            window: plan.window,
            signal_every: plan.signal.min(plan.window),
            post_list: plan.post_list,
            bidirectional: plan.bidirectional,
            duration_ms: plan.duration_ms,
            rows,
        }
    }

    /// Returns false if a row's bytes differ.
    pub(super) fn is_verified(&self) -> bool {
        self.rows.iter().all(|row| row.verified != Some(false))
    }

    fn of(&self, measure: Measure) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.measure == measure)
    }
}

/// Prints the lines of one end. A peer's text may contain control characters.
fn side(name: &str, side: &Side, output: &mut Output) -> Result<()> {
    let mtu = side
        .mtu_bytes
        .map_or_else(String::new, |mtu| format!(", port MTU {mtu}"));
    let memory = match &side.device_backend {
        Some(backend) => format!("device memory of {} ({backend})", side.memory),
        None => "host memory".to_owned(),
    };
    let path = match side.staged() {
        true => side.path.clone(),
        false => format!("registered by {}", side.path),
    };
    let nic = with_provider(&side.nic, &side.provider) + &mtu;
    let (label, indent) = (format!("{name:<11}"), " ".repeat(11));
    output.hanging(&label, &printable(&nic))?;
    output.hanging(&indent, &printable(&format!("{memory}, {path}")))?;
    match &side.why {
        Some(why) => output.hanging(&indent, &printable(&format!("not registered: {why}"))),
        None => Ok(()),
    }
}

pub(super) fn print(report: &Report, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return output.document("gaudi.perf_rdma", report);
    }
    let ways = if report.bidirectional {
        ", both directions at once"
    } else {
        ""
    };
    output.line(format!("operation  {}{ways}", report.operation.name()))?;
    side("local", &report.local, output)?;
    side("remote", &report.remote, output)?;
    if let Some(mtu) = report.path_mtu_bytes {
        output.line(format!("path MTU   {mtu}"))?;
    }
    let clock = format!(
        "{} of the {} end; CPU is that end's, peer the other's",
        report.clock, report.measured_by
    );
    output.hanging("clock      ", &clock)?;
    let warm_up = report.rows.first().map_or(0, |row| row.warm_up);
    let length = match report.duration_ms {
        Some(ms) => format!(", {} s a row", ms as f64 / 1e3),
        None => String::new(),
    };
    output.hanging(
        "warm-up    ",
        &format!("{warm_up} of each row, not counted{length}"),
    )?;
    bandwidth(report, output)?;
    latency(report, output)?;
    if report.backend != "hardware" {
        output.line("")?;
    }
    let mock = (report.backend == "mock").then_some("the device");
    note_software(output, mock, report.backend == "software")
}

fn bandwidth(report: &Report, output: &mut Output) -> Result<()> {
    if report.of(Measure::Bandwidth).next().is_none() {
        return Ok(());
    }
    output.line("")?;
    let plural = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let how = match report.local.staged() || report.remote.staged() {
        true => format!("{} in flight, staged", plural(report.window, "transfer")),
        false => format!(
            "{}, {} in flight on each, every {}th signaled{}",
            plural(report.queue_pairs, "queue pair"),
            report.window,
            report.signal_every,
            match report.post_list {
                1 => String::new(),
                list => format!(", posted {list} in a row"),
            }
        ),
    };
    output.hanging("bandwidth: ", &how)?;
    let columns = columns! { (&Report, &Row):
        text "" "operation" |(_, row)| row.operation.name();
        text "" "on" |(report, _)| report.backend;
        grouped "" "bytes" |(_, row)| row.size_bytes;
        grouped "" "n" |(_, row)| row.n;
        number "" "GB/s" |(_, row)| format!("{:.4}", row.bytes_per_second as f64 / 1e9);
        grouped "" "op/s" |(_, row)| row.operations_per_second;
        number "" "CPU[%]" |(_, row)| format!("{:.0}", row.cpu_percent);
        number "" "peer[%]" |(_, row)| format!("{:.0}", row.peer_cpu_percent?);
        text "" "verified" |(_, row)| yes(row.verified?);
    };
    output.rows(&columns, report.of(Measure::Bandwidth).map(|row| (report, row)))
}

fn latency(report: &Report, output: &mut Output) -> Result<()> {
    let rows: Vec<&Row> = report.of(Measure::Latency).collect();
    let Some(first) = rows.first() else {
        return Ok(());
    };
    output.line("")?;
    let how = match (first.half_of_round_trip, first.by) {
        (true, By::Memory) => "one at a time; half of a round trip, observed in memory",
        (true, By::Completion) => "one at a time; half of a round trip, observed by completions",
        (false, _) => "one at a time, each up to its completion",
    };
    output.hanging("latency: ", how)?;
    let columns = columns! { (&Report, &Row):
        text "" "operation" |(_, row)| row.operation.name();
        text "" "on" |(report, _)| report.backend;
        grouped "" "bytes" |(_, row)| row.size_bytes;
        grouped "" "n" |(_, row)| row.n;
        number "" "min[µs]" |(_, row)| micros(row.min_ns?);
        number "" "median[µs]" |(_, row)| micros(row.median_ns?);
        number "" "p99[µs]" |(_, row)| micros(row.p99_ns?);
        number "" "max[µs]" |(_, row)| micros(row.max_ns?);
    };
    output.rows(&columns, rows.iter().map(|&row| (report, row)))?;
    for row in rows {
        if let Some(buckets) = &row.histogram {
            histogram(row.size_bytes, buckets, output)?;
        }
    }
    Ok(())
}

fn histogram(bytes: u64, buckets: &[Bucket], output: &mut Output) -> Result<()> {
    const BAR: u64 = 40;
    let most = buckets.iter().map(|bucket| bucket.n).max().unwrap_or(0).max(1);
    let all = buckets.iter().map(|bucket| u128::from(bucket.n)).sum::<u128>();
    let bar = |bucket: &Bucket| {
        let bar = u128::from(bucket.n) * u128::from(BAR);
        "#".repeat(bar.div_ceil(u128::from(most)) as usize) // at most `BAR`
    };
    let share = |bucket: &Bucket| format!("{:.2}", bucket.n as f64 * 100.0 / all.max(1) as f64);
    let row = |bucket: &Bucket| {
        let (from, to) = (micros(bucket.from_ns), micros(bucket.to_ns));
        vec![from, to, grouped(bucket.n), share(bucket), bar(bucket)]
    };
    let rows: Vec<Vec<String>> = buckets.iter().map(row).collect();
    output.line("")?;
    output.line(format!("latencies of {} bytes", grouped(bytes)))?;
    output.table(&["from[µs]", "to[µs]", "n", "share[%]", ""], &[0, 1, 2, 3], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::samples::Samples;
    use super::*;
    use crate::args_rdma::{Memory, Way, What};

    fn plan() -> Plan {
        Plan {
            op: Op::Write,
            memory: Memory::Host,
            dmabuf: Way::Try,
            sizes: vec![1000],
            measure: What::Both,
            iterations: 100,
            duration_ms: None,
            warm_up: 7,
            window: 8,
            signal: 16,
            post_list: 1,
            qps: 1,
            mtu_bytes: None,
            bidirectional: true,
            histogram: true,
        }
    }

    fn taken() -> Taken {
        let mut samples = Samples::new(2);
        samples.push(10);
        samples.push(30);
        let tally = |operations, cpu_ns| Tally {
            sent: operations + 7,
            operations,
            time_ns: 1_000_000,
            cpu_ns,
        };
        Taken {
            samples,
            ours: tally(100, 2_000_000),
            theirs: tally(50, 250_000),
        }
    }

    #[test]
    fn rates_of_both_directions_are_added() {
        let row = Row::new(&plan(), Measure::Bandwidth, 1000, taken(), false, Some(true));
        assert_eq!(
            (row.n, row.operations_per_second, row.bytes_per_second),
            (150, 150_000, 150_000_000)
        );
        assert_eq!((row.cpu_percent, row.peer_cpu_percent), (200.0, Some(25.0)));
        assert_eq!((row.samples, row.min_ns, &row.histogram), (0, None, &None));
    }

    #[test]
    fn latency_has_ranks_and_a_histogram() {
        let row = Row::new(&plan(), Measure::Latency, 1000, taken(), true, None);
        assert_eq!((row.min_ns, row.max_ns, row.samples), (Some(10), Some(30), 2));
        assert!(row.half_of_round_trip, "a write that is observed in memory");
        assert_eq!(row.histogram.map(|buckets| buckets.len()), Some(2));
        let row = Row::new(&plan(), Measure::Latency, 1000, taken(), false, None);
        assert!(!row.half_of_round_trip, "up to its completion");
    }

    #[test]
    fn wrong_bytes_fail_the_report() {
        let side = Side {
            nic: "a".to_owned(),
            provider: "b".to_owned(),
            software: true,
            mtu_bytes: None,
            memory: "host".to_owned(),
            device_backend: None,
            path: "c".to_owned(),
            why: None,
        };
        let report = |verified| {
            let row = Row::new(&plan(), Measure::Bandwidth, 1000, taken(), false, verified);
            Report::new(&plan(), true, side.clone(), side.clone(), None, vec![row])
        };
        assert!(report(Some(true)).is_verified() && report(None).is_verified());
        assert!(!report(Some(false)).is_verified());
    }
}
