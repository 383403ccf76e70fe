//! `gaudi copy`: copies bytes by the DMA engines, and verifies them.

use std::time::{Duration, Instant};

use anyhow::Result;
use gaudi::sys::random::SplitMix64;
use gaudi::{Buffer, Deadline, Device, Error, ErrorKind, HostMapping, Location, Options, Pages};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::args::{self, Place};
use crate::common::Common;
use crate::exit::{self, Usage};
use crate::figures::{nanos, yes};
use crate::info::chosen;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::columns;

/// Bytes that are filled or digested at a time.
const PIECE: usize = 1 << 20;

#[derive(Serialize)]
struct Report {
    device: String,
    backend: &'static str,
    copies: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    from: &'static str,
    to: &'static str,
    size_bytes: u64,
    from_offset_bytes: u64,
    to_offset_bytes: u64,
    lin_dma_packets: u64,
    submissions: u64,
    time_ns: u64,
    sha256: String,
    verified: bool,
}

/// Memory of either kind, with room for the copy at its offset.
pub(crate) enum Memory {
    Host(HostMapping),
    Device(Buffer),
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

impl Memory {
    pub(crate) fn new(device: &Device, place: Place, len: u64) -> Result<Self> {
        let len = len.max(1);
        Ok(match place {
            Place::Host => Self::Host(device.alloc_host(usize::try_from(len)?)?),
            Place::Device => Self::Device(device.alloc(len)?),
        })
    }

    /// Returns the pages of host memory; `None` for device memory.
    pub(crate) fn pages(&self) -> Option<Pages> {
        match self {
            Self::Host(host) => host.pages(),
            Self::Device(_) => None,
        }
    }

    pub(crate) fn at(&self, start: u64, len: u64) -> Result<Location, Error> {
        let range = start..start.saturating_add(len);
        match self {
            Self::Host(host) => host.at(range),
            Self::Device(buffer) => buffer.at(range),
        }
    }

    fn write(&self, device: &Device, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Host(host) => host.write(offset, bytes),
            Self::Device(buffer) => device.write(buffer, offset, bytes),
        }
    }

    fn read(&self, device: &Device, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::Host(host) => host.read(offset, bytes),
            Self::Device(buffer) => device.read(buffer, offset, bytes),
        }
    }
}

pub(crate) const TO_DEVICE: (Place, Place) = (Place::Host, Place::Device);
pub(crate) const TO_HOST: (Place, Place) = (Place::Device, Place::Host);
pub(crate) const ON_DEVICE: (Place, Place) = (Place::Device, Place::Device);

/// Returns the directions that the command line names, or all.
pub(crate) fn directions(
    named: (Option<Place>, Option<Place>),
    all: [(Place, Place); 3],
) -> Vec<(Place, Place)> {
    match named {
        (Some(from), Some(to)) => vec![(from, to)],
        _ => all.to_vec(),
    }
}

/// The shortest timeout of a device's work.
const SHORTEST: Duration = Duration::from_secs(1);

pub(crate) fn run(common: &Common, copy: &args::Copy, output: &mut Output) -> Result<u8> {
    let [spec] = chosen(common)?
        .try_into()
        .map_err(|_| Usage("a copy takes one device".to_owned()))?;
    let directions = directions((copy.from, copy.to), [TO_DEVICE, ON_DEVICE, TO_HOST]);
    // A copy that times out ends with the device: closing it must not wait longer than the copy's
    // timeout.
    let mut options = Options::default();
    options.timeout = copy.timeout.clamp(SHORTEST, options.timeout);
    let device = Device::with_options(gaudi::open(&spec)?, options)?;
    fits(&device, copy)?;
    // Each byte counts twice: it is generated in the source and verified in the destination.
    let all = copy.size.saturating_mul(2 * directions.len() as u64);
    let mut progress = Progress::new("copying", all, output.is_quiet());
    let rows: Vec<Row> = directions
        .into_iter()
        .map(|(from, to)| one(&device, copy, from, to, &mut progress))
        .collect::<Result<_>>()?;
    drop(progress);
    let backend = device.id().backend.name();
    device.close()?;
    let is_good = rows.iter().all(|row| row.verified);
    let report = Report {
        device: spec.to_string(),
        backend,
        copies: rows,
    };
    let printed = print(&report, output).and_then(|()| output.finish());
    exit::judged(is_good, printed, || {
        Error::new(ErrorKind::Corrupt, "copy").because("the destination is not what the source was")
    })
}

fn print(report: &Report, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return output.document("gaudi.copy", report);
    }
    let columns = columns! { (&Report, &Row):
        text "" "from" |(_, row)| row.from;
        text "" "to" |(_, row)| row.to;
        text "" "backend" |(report, _)| report.backend;
        grouped "" "bytes" |(_, row)| row.size_bytes;
        grouped "" "LIN_DMA" |(_, row)| row.lin_dma_packets;
        grouped "" "CS" |(_, row)| row.submissions;
        number "" "time[ms]" |(_, row)| format!("{:.3}", row.time_ns as f64 / 1e6);
        text "" "verified" |(_, row)| yes(row.verified);
    };
    output.rows(&columns, report.copies.iter().map(|row| (report, row)))
}

/// Rejects a copy that is larger than the device's memory: each direction has an end there.
fn fits(device: &Device, copy: &args::Copy) -> Result<()> {
    let room = device.info()?.dram_bytes;
    let ends = [
        ("--from-offset", copy.from_offset),
        ("--to-offset", copy.to_offset),
    ];
    for (option, offset) in ends {
        let end = u128::from(offset) + u128::from(copy.size);
        if end > u128::from(room) {
            let what = match offset {
                0 => "--size".to_owned(),
                _ => format!("--size with {option}"),
            };
            return Err(Usage(format!(
                "{what}: {end} bytes do not fit the device's memory of {room} bytes ({} GiB)",
                room >> 30
            ))
            .into());
        }
    }
    Ok(())
}

/// The cost of a copy.
pub(crate) struct Taken {
    /// From the submission to the end of the wait.
    pub(crate) time: Duration,
    pub(crate) lin_dma_packets: u64,
    pub(crate) submissions: u64,
}

/// Copies and waits.
///
/// # Errors
/// `TimedOut`: it took longer than `timeout`, even if it has completed. A mock's engine, for
/// example, runs in this thread, which no deadline interrupts.
pub(crate) fn timed(device: &Device, to: &Location, from: &Location, timeout: Duration) -> Result<Taken> {
    let before = device.stats();
    let start = Instant::now();
    device
        .copy(to, from)?
        .wait(start.checked_add(timeout).map_or(Deadline::NEVER, Deadline::from))?;
    let time = start.elapsed();
    if time > timeout {
        return Err(Error::timed_out("copy")
            .saw(
                format!("{} s", time.as_secs_f64()),
                format!("at most {} s (--timeout)", timeout.as_secs_f64()),
            )
            .into());
    }
    let after = device.stats();
    Ok(Taken {
        time,
        lin_dma_packets: after.lin_dma_packets - before.lin_dma_packets,
        submissions: after.submissions - before.submissions,
    })
}

fn one(device: &Device, copy: &args::Copy, from: Place, to: Place, progress: &mut Progress) -> Result<Row> {
    let _span = tracing::info_span!("copy", from = from.name(), to = to.name(), bytes = copy.size).entered();
    // `fits` checked the sums.
    let (source_len, target_len) = (copy.from_offset + copy.size, copy.to_offset + copy.size);
    let source = Memory::new(device, from, source_len)?;
    let target = Memory::new(device, to, target_len)?;
    let sent = fill(device, &source, copy.from_offset, copy.size, progress)?;
    let (into, out_of) = (
        target.at(copy.to_offset, copy.size)?,
        source.at(copy.from_offset, copy.size)?,
    );
    let taken = timed(device, &into, &out_of, copy.timeout)?;
    let got = digest(device, &target, copy.to_offset, copy.size, progress)?;
    tracing::info!(time = ?taken.time, verified = got == sent, "copied");
    Ok(Row {
        from: from.name(),
        to: to.name(),
        size_bytes: copy.size,
        from_offset_bytes: copy.from_offset,
        to_offset_bytes: copy.to_offset,
        lin_dma_packets: taken.lin_dma_packets,
        submissions: taken.submissions,
        time_ns: nanos(taken.time),
        verified: got == sent,
        sha256: crate::demo::hex(&got),
    })
}

/// Fills memory with random bytes, the same in every run, and returns their digest.
pub(crate) fn fill(
    device: &Device,
    memory: &Memory,
    start: u64,
    size: u64,
    progress: &mut Progress,
) -> Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    let mut noise = SplitMix64::default();
    pieces(size, |offset, piece| {
        noise.fill(piece);
        hasher.update(&*piece);
        progress.advance(piece.len() as u64);
        memory.write(device, start + offset, piece)
    })?;
    Ok(hasher.finalize().to_vec())
}

pub(crate) fn digest(
    device: &Device,
    memory: &Memory,
    start: u64,
    size: u64,
    progress: &mut Progress,
) -> Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    pieces(size, |offset, piece| {
        progress.advance(piece.len() as u64);
        memory.read(device, start + offset, piece)?;
        hasher.update(&*piece);
        Ok(())
    })?;
    Ok(hasher.finalize().to_vec())
}

/// Calls `each` with the offset of each piece and a place for its bytes.
pub(crate) fn pieces(
    size: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    while offset < size {
        let len = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
        each(offset, &mut piece[..len])?;
        offset += len as u64;
    }
    Ok(())
}
