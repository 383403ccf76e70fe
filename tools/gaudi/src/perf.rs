//! `gaudi perf copy`: measures copies, and memcpy in the same run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use gaudi::{Device, Error, ErrorKind, Fallback, HostBuffer, Location, Pages};
use serde::Serialize;

use crate::args::{HostPages, Measured, Perf, PerfCopy, Place};
use crate::common::Common;
use crate::copy::{self, Memory, ON_DEVICE, TO_DEVICE, TO_HOST};
use crate::exit::{self, Usage};
use crate::figures::{CLOCK, micros, nanos, rate_of, yes};
use crate::info::chosen;
use crate::output::Output;
use crate::perf_rdma::{self, Op, Samples};
use crate::progress::Progress;
use crate::report::columns;

/// Duration of the measured copies of one size, without `--iterations`.
const BUDGET: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Report {
    device: String,
    backend: &'static str,
    clock: &'static str,
    host_pages: String,
    warm_up: u32,
    in_flight: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    from: &'static str,
    to: &'static str,
    /// `memcpy`, or the backend of the device that copied.
    backend: &'static str,
    size_bytes: u64,
    n: u64,
    median_ns: u64,
    p99_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// At the median time.
    bytes_per_second: u64,
    /// Median time of memcpy over median time of the copy, both of this run; 1 for memcpy itself.
    memcpy_ratio: f64,
    /// Of each copy; 0 for memcpy.
    lin_dma_packets: u64,
    submissions: u64,
    verified: bool,
}

impl From<HostPages> for Pages {
    fn from(pages: HostPages) -> Self {
        match pages {
            HostPages::Small => Self::Small,
            HostPages::Transparent => Self::Transparent,
            HostPages::Huge2MiB => Self::Huge2MiB,
            HostPages::Huge1GiB => Self::Huge1GiB,
        }
    }
}

pub(crate) fn run(common: &Common, perf: &Perf, output: &mut Output) -> Result<u8> {
    match &perf.of {
        Measured::Copy(perf) => measure_copies(common, perf, output),
        Measured::Write(rdma) => perf_rdma::run(common, rdma, Op::Write, output),
        Measured::Read(rdma) => perf_rdma::run(common, rdma, Op::Read, output),
        Measured::Send(rdma) => perf_rdma::run(common, rdma, Op::Send, output),
        Measured::Atomic(rdma) => perf_rdma::run(common, rdma, Op::Atomic, output),
    }
}

/// The device and the memory of every copy, large enough for every size.
struct Rig {
    device: Device,
    host: [Memory; 2],
    inside: [Memory; 2],
    /// Memory that no device maps, for memcpy.
    private: [Aligned; 2],
    timeout: Duration,
}

/// Memory that starts at a page.
///
/// memcpy's speed depends on where both ends lie in their pages: with ends a few bytes apart modulo
/// 4096 it is up to 16 times slower on some processors. Every end that is measured begins at a
/// page.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

const PAGE: usize = 4096;

impl Aligned {
    /// Writes every page, so that none is the shared page of zeros.
    fn new(len: usize, value: u8) -> Self {
        let bytes = vec![value; len + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// One kind of copy.
struct Way {
    from: Place,
    to: Place,
    ends: (Location, Location),
    times: Times,
}

/// The times of one kind of copy.
struct Times {
    taken: Samples,
    packets: u64,
    submissions: u64,
}

fn measure_copies(common: &Common, perf: &PerfCopy, output: &mut Output) -> Result<u8> {
    let [spec] = chosen(common)?
        .try_into()
        .map_err(|_| Usage("a measurement takes one device".to_owned()))?;
    if perf.calibrate && output.is_json() {
        return Err(Usage("--calibrate prints lines for a shell, and no JSON".to_owned()).into());
    }
    if perf.calibrate && perf.sizes.iter().min() == perf.sizes.iter().max() {
        return Err(Usage("--calibrate takes two sizes or more".to_owned()).into());
    }
    if perf.sizes.contains(&0) {
        return Err(Usage("a copy of no bytes takes no time: sizes begin at 1".to_owned()).into());
    }
    let directions = copy::directions((perf.from, perf.to), [TO_DEVICE, TO_HOST, ON_DEVICE]);
    let device = Device::open(&spec)?;
    let backend = device.id().backend.name();
    let mut rig = Rig::new(device, perf)?;
    let host_pages = rig.host[0].pages();
    if host_pages != Some(perf.pages.into()) {
        output.note(
            "note: pages of the kind that was asked for are not there: the figures are of smaller ones",
        );
    }
    let mut rows = Vec::new();
    let mut progress = Progress::new("measuring", perf.sizes.len() as u64, output.is_quiet());
    for &size in &perf.sizes {
        rows.extend(rig.measure(perf, &directions, size)?);
        progress.advance(1);
    }
    drop(progress);
    let Rig {
        device, host, inside, ..
    } = rig;
    drop((host, inside));
    device.close()?;
    let is_good = rows.iter().all(|row| row.verified);
    let report = Report {
        device: spec.to_string(),
        backend,
        clock: CLOCK,
        host_pages: host_pages.map_or_else(String::new, |pages| pages.to_string()),
        warm_up: perf.warm_up,
        in_flight: 1,
        rows,
    };
    let printed = match perf.calibrate {
        true => print_costs(&report, output),
        false => print(&report, output),
    };
    let printed = printed.and_then(|()| output.finish());
    exit::judged(is_good, printed, || {
        Error::new(ErrorKind::Corrupt, "perf copy").because("a destination is not what its source was")
    })
}

impl Rig {
    fn new(device: Device, perf: &PerfCopy) -> Result<Self> {
        // Whole pages, so that a buffer begins at a page behind another one.
        let most = perf.sizes.iter().copied().max().unwrap_or(1);
        let most = most.checked_next_multiple_of(PAGE as u64).unwrap_or(most);
        let len = usize::try_from(most)?;
        let host = || -> Result<Memory> {
            let buffer = HostBuffer::with_pages(len, perf.pages.into(), Fallback::Smaller)?;
            Ok(Memory::Host(device.map(&buffer)?))
        };
        let inside = || Memory::new(&device, Place::Device, most);
        let (host, inside) = ([host()?, host()?], [inside()?, inside()?]);
        // Every page is there before the first clock starts.
        for memory in [&host[0], &inside[0], &inside[1]] {
            copy::fill(&device, memory, 0, most, &mut Progress::none())?;
        }
        Ok(Self {
            host,
            inside,
            private: [Aligned::new(len, 1), Aligned::new(len, 2)],
            timeout: perf.timeout,
            device,
        })
    }

    fn memory(&self, place: Place, which: usize) -> &Memory {
        match place {
            Place::Host => &self.host[which],
            Place::Device => &self.inside[which],
        }
    }

    /// Measures the rows of one size. memcpy and every direction alternate, so that other load
    /// affects all of them.
    fn measure(&mut self, perf: &PerfCopy, directions: &[(Place, Place)], size: u64) -> Result<Vec<Row>> {
        let mut memcpy = Times::default();
        let mut ways = directions
            .iter()
            .map(|&(from, to)| {
                Ok(Way {
                    from,
                    to,
                    ends: (self.memory(to, 1).at(0, size)?, self.memory(from, 0).at(0, size)?),
                    times: Times::default(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        for _ in 0..perf.warm_up {
            self.round(size, &mut memcpy, &mut ways)?;
        }
        memcpy = Times::default();
        ways.iter_mut().for_each(|way| way.times = Times::default());
        let (start, budget) = (Instant::now(), BUDGET * (1 + ways.len() as u32));
        for n in 1.. {
            self.round(size, &mut memcpy, &mut ways)?;
            let done = match perf.iterations {
                Some(wanted) => n >= wanted,
                None => n >= 1000 || (n >= 10 && start.elapsed() >= budget),
            };
            if done {
                break;
            }
        }
        let peer = memcpy.median();
        for way in &mut ways {
            let (from, to) = (way.from.name(), way.to.name());
            let (n, median_ns) = (way.times.taken.len(), way.times.median());
            tracing::info!(from, to, bytes = size, n, median_ns, "measured");
        }
        let mut rows = vec![memcpy.row(("host", "host", "memcpy"), size, peer, true)];
        for mut way in ways {
            // The last copy is of this direction: others wrote to the same destination.
            copy::timed(&self.device, &way.ends.0, &way.ends.1, self.timeout)?;
            let digest = |place, which| {
                let memory = self.memory(place, which);
                copy::digest(&self.device, memory, 0, size, &mut Progress::none())
            };
            let verified = digest(way.from, 0)? == digest(way.to, 1)?;
            let names = (way.from.name(), way.to.name(), self.device.id().backend.name());
            rows.push(way.times.row(names, size, peer, verified));
        }
        Ok(rows)
    }

    fn round(&mut self, size: u64, memcpy: &mut Times, ways: &mut [Way]) -> Result<()> {
        let len = usize::try_from(size)?;
        let [from, to] = &mut self.private;
        let (from, to) = (from.get(len), to.get(len));
        let start = Instant::now();
        to.copy_from_slice(black_box(from));
        black_box(to);
        memcpy.taken.push(nanos(start.elapsed()).max(1));
        for Way { ends, times, .. } in ways {
            let taken = copy::timed(&self.device, &ends.0, &ends.1, self.timeout)?;
            times.taken.push(nanos(taken.time).max(1));
            times.packets += taken.lin_dma_packets;
            times.submissions += taken.submissions;
        }
        Ok(())
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            taken: Samples::new(0),
            packets: 0,
            submissions: 0,
        }
    }
}

impl Times {
    fn median(&mut self) -> u64 {
        self.taken.ranks().map_or(0, |[_, median, ..]| median)
    }

    fn row(
        &mut self,
        (from, to, backend): (&'static str, &'static str, &'static str),
        size: u64,
        memcpy: u64,
        verified: bool,
    ) -> Row {
        let n = self.taken.len().max(1);
        let [min_ns, median_ns, p99_ns, max_ns] = self.taken.ranks().unwrap_or([1; 4]);
        Row {
            from,
            to,
            backend,
            size_bytes: size,
            n,
            median_ns,
            p99_ns,
            min_ns,
            max_ns,
            bytes_per_second: rate_of(size, median_ns),
            memcpy_ratio: (memcpy as f64 / median_ns as f64 * 1000.0).round() / 1000.0,
            lin_dma_packets: self.packets / n,
            submissions: self.submissions / n,
            verified,
        }
    }
}

impl Row {
    fn direction(&self) -> String {
        format!("{} → {}", self.from, self.to)
    }
}

/// What a copy of any size costs: the latency in nanoseconds, and bytes a second.
///
/// The line through the smallest and the largest size of each direction; of all directions, the
/// largest latency and the smallest bandwidth. `None` if no direction was measured.
fn costs(rows: &[Row]) -> Option<(u64, u64)> {
    let mut worst: Option<(u64, u64)> = None;
    let is_copy = |row: &&Row| row.backend != "memcpy";
    for first in rows.iter().filter(is_copy) {
        let of_way = || {
            rows.iter()
                .filter(is_copy)
                .filter(|row| row.direction() == first.direction())
        };
        let small = of_way().min_by_key(|row| row.size_bytes)?;
        let large = of_way().max_by_key(|row| row.size_bytes)?;
        let bytes = (large.size_bytes - small.size_bytes) as f64;
        // A large copy that is no slower than a small one has no measurable cost of a byte.
        let ns = large.median_ns.saturating_sub(small.median_ns).max(1) as f64;
        let latency = (small.median_ns as f64 - small.size_bytes as f64 * ns / bytes).max(0.0) as u64;
        let rate = (bytes / ns * 1e9) as u64;
        let (most, least) = worst.unwrap_or((latency, rate));
        worst = Some((most.max(latency), least.min(rate)));
    }
    worst
}

fn print_costs(report: &Report, output: &mut Output) -> Result<()> {
    output.line(format!("# measured on {} ({})", report.device, report.backend))?;
    let Some((latency_ns, rate)) = costs(&report.rows) else {
        return Ok(());
    };
    let mb = (rate / 1_000_000).max(1);
    for (name, value) in [
        ("GAUDI_COPY_LATENCY", latency_ns.to_string()),
        ("GAUDI_COPY_BANDWIDTH", mb.to_string()),
        ("UCX_GAUDI_LATENCY", format!("{latency_ns}ns")),
        ("UCX_GAUDI_BW", format!("{mb}MBs")),
    ] {
        output.line(format!("export {name}={value}"))?;
    }
    Ok(())
}

fn print(report: &Report, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return output.document("gaudi.perf_copy", report);
    }
    output.line(format!("device    {} ({})", report.device, report.backend))?;
    let clock = format!(
        "{}; from a copy's submission to the end of the wait",
        report.clock
    );
    output.hanging("clock     ", &clock)?;
    output.line(format!("warm-up   {} of each row, not counted", report.warm_up))?;
    output.hanging("host      ", &report.host_pages)?;
    output.hanging("memcpy    ", "by this processor, in turns with the copies")?;
    output.line("")?;
    // Two tables: each fits 80 columns.
    let columns = columns! { Row:
        text "" "copy" |row| row.direction();
        text "" "by" |row| row.backend;
        grouped "" "bytes" |row| row.size_bytes;
        number "" "median[µs]" |row| micros(row.median_ns);
        number "" "GB/s" |row| format!("{:.2}", row.bytes_per_second as f64 / 1e9);
        number "" "×memcpy" |row| format!("{:.2}", row.memcpy_ratio);
        text "" "verified" |row| yes(row.verified);
    };
    output.rows(&columns, &report.rows)?;
    output.line("")?;
    let columns = columns! { Row:
        text "" "copy" |row| row.direction();
        grouped "" "bytes" |row| row.size_bytes;
        grouped "" "n" |row| row.n;
        number "" "min[µs]" |row| micros(row.min_ns);
        number "" "p99[µs]" |row| micros(row.p99_ns);
        number "" "max[µs]" |row| micros(row.max_ns);
        grouped "" "LIN_DMA" |row| row.lin_dma_packets;
        grouped "" "CS" |row| row.submissions;
    };
    output.rows(&columns, &report.rows)?;
    if report.backend == "mock" {
        output.line("")?;
        let text = "the engine is this processor's work too; no figure above is hardware's";
        output.hanging("mock: ", text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(taken: impl Iterator<Item = u64>) -> Times {
        let mut times = Times::default();
        taken.for_each(|ns| times.taken.push(ns));
        times
    }

    #[test]
    fn ranks_are_of_what_was_taken() {
        let mut all = times((1..=200).rev());
        assert_eq!((all.taken.ranks(), all.median()), (Some([1, 100, 198, 200]), 100));
        let ranks = times([7].into_iter()).taken.ranks();
        assert_eq!(ranks, Some([7; 4]), "one is all of them");
    }

    #[test]
    fn costs_are_those_of_the_slowest_direction() {
        let row = |from, backend, size, ns: u64| {
            times([ns].into_iter()).row((from, "device", backend), size, 1, true)
        };
        // 1000 ns and 1 byte a ns; 2000 ns and 2 bytes a ns.
        let rows = [
            row("host", "mock", 1000, 2000),
            row("host", "mock", 9000, 10_000),
            row("device", "mock", 1000, 2500),
            row("device", "mock", 9000, 6500),
            row("host", "memcpy", 1000, 99_000),
        ];
        assert_eq!(costs(&rows), Some((2000, 1_000_000_000)));
        assert_eq!(costs(&rows[4..]), None, "memcpy is no direction");
    }

    #[test]
    fn every_end_begins_at_a_page() {
        use crate::{Cli, Command};
        use clap::Parser as _;
        let words = ["gaudi", "perf", "copy", "-d", "mock", "--sizes", "5000,100001"];
        let perf = match Cli::try_parse_from(words).unwrap().command {
            Some(Command::Perf(Perf {
                of: Measured::Copy(perf),
            })) => perf,
            other => panic!("{other:?}"),
        };
        let device = Device::open(&"mock:gaudi2".parse().unwrap()).unwrap();
        let mut rig = Rig::new(device, &perf).unwrap();
        let mut starts: Vec<u64> = Vec::new();
        for memory in rig.host.iter().chain(&rig.inside) {
            starts.push(match memory {
                Memory::Host(host) => host.address().0,
                Memory::Device(buffer) => buffer.address().0,
            });
        }
        for private in &mut rig.private {
            starts.push(private.get(1).as_ptr().addr() as u64);
        }
        assert!(starts.iter().all(|start| start % 4096 == 0), "{starts:x?}");
    }

    #[test]
    fn ratio_above_one_beats_memcpy() {
        let mut times = Times {
            packets: 3,
            submissions: 2,
            ..times([500].into_iter())
        };
        let row = times.row(("host", "device", "mock"), 1000, 1000, true);
        assert_eq!(
            (row.memcpy_ratio, row.bytes_per_second, row.lin_dma_packets),
            (2.0, 2_000_000_000, 3)
        );
    }
}
