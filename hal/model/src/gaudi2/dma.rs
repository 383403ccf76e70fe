//! The DMA engines: copies and fills in pieces of contiguous memory.

use gaudi_spec::DeviceVa;

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::counters::Counters;
use crate::gaudi2::event::Access;
use crate::gaudi2::place::Side;

/// Bytes that are swapped at once: whole groups of 2, 4 and 8.
const PIECE: usize = 4096;

/// Bytes that a transfer moves before others run: whole pieces, so that groups stay whole.
const TURN: u64 = 4 << 20;
const _: () = assert!(TURN % PIECE as u64 == 0, "a turn ends where a piece does");

/// A transfer of so many bytes, of which some are done, and the next turn of it.
#[derive(Clone, Copy)]
struct Part {
    size: u64,
    done: u64,
    end: u64,
}

impl Part {
    fn new(size: u64, done: u64) -> Self {
        let done = done.min(size);
        let end = done.saturating_add(TURN).min(size);
        Self { size, done, end }
    }

    fn left(&self) -> u64 {
        self.end - self.done
    }
}

/// Goes on with a copy of `size` bytes, of which `done` are done: how many are now. Overlapping
/// ranges come out as if the source had been read whole first; what the chip does with them is not
/// documented. At a fault, the pieces before it have been written, as on the chip.
pub(crate) fn copy(
    bus: &Bus,
    counters: &mut Counters,
    to: DeviceVa,
    from: DeviceVa,
    size: u64,
    done: u64,
) -> Result<u64, Fault> {
    let overlaps_ahead = to
        .offset_from(from)
        .is_some_and(|ahead| ahead > 0 && ahead < size);
    let mut part = Part::new(size, done);
    while part.left() > 0 {
        let (source, destination);
        if overlaps_ahead {
            let last = part.size - part.done - 1;
            source = bus.memory_back(step(from, last, Access::Read)?, part.left(), Access::Read)?;
            destination = bus.memory_back(step(to, last, Access::Write)?, part.left(), Access::Write)?;
        } else {
            source = bus.memory(step(from, part.done, Access::Read)?, part.left(), Access::Read)?;
            destination = bus.memory(step(to, part.done, Access::Write)?, part.left(), Access::Write)?;
        }
        let len = source.0.len().min(destination.0.len()) as u64;
        let first = match overlaps_ahead {
            true => part.size - part.done - len,
            false => part.done,
        };
        let chunk = bus.chunk(step(to, first, Access::Write)?, len)?;
        let moved = if overlaps_ahead {
            let len = source.0.len().min(destination.0.len());
            destination.0.last(len).copy_from(source.0.last(len))
        } else {
            destination.0.copy_from(source.0)
        } as u64;
        bus.corrupt(chunk)?;
        *counters.direction(source.1, destination.1) += moved;
        part.done += moved;
    }
    Ok(part.done)
}

/// Goes on with a copy that turns round every `group` bytes, as [`copy`]; what is left of a group
/// at the end is copied as it is (`source: inferred`). Front to back in pieces, so overlapping
/// ranges come out as such a loop leaves them.
pub(crate) fn copy_swapped(
    bus: &Bus,
    counters: &mut Counters,
    to: DeviceVa,
    from: DeviceVa,
    (size, done): (u64, u64),
    group: usize,
) -> Result<u64, Fault> {
    let mut buffer = [0; PIECE];
    let mut part = Part::new(size, done);
    while part.left() > 0 {
        let want = usize::try_from(part.left()).unwrap_or(PIECE).min(PIECE);
        let (source, destination) = (
            step(from, part.done, Access::Read)?,
            step(to, part.done, Access::Write)?,
        );
        let piece = buffer.get_mut(..want).unwrap_or_default();
        let (got, fault) = bus.read(source, piece, Access::Read);
        let piece = piece.get_mut(..got).unwrap_or_default();
        piece.chunks_exact_mut(group).for_each(<[u8]>::reverse);
        if got > 0 {
            let sides = (
                bus.memory(source, 1, Access::Read)?.1,
                bus.memory(destination, 1, Access::Write)?.1,
            );
            let chunk = bus.chunk(destination, got as u64)?;
            bus.write(destination, piece)?;
            bus.corrupt(chunk)?;
            *counters.direction(sides.0, sides.1) += got as u64;
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        part.done += got as u64;
    }
    Ok(part.done)
}

/// Goes on with a fill of `size` bytes with a pattern, its first byte at `to`, as [`copy`].
pub(crate) fn fill(
    bus: &Bus,
    counters: &mut Counters,
    to: DeviceVa,
    pattern: u32,
    size: u64,
    done: u64,
) -> Result<u64, Fault> {
    let mut part = Part::new(size, done);
    while part.left() > 0 {
        let (span, _) = bus.memory(step(to, part.done, Access::Write)?, part.left(), Access::Write)?;
        let chunk = bus.chunk(step(to, part.done, Access::Write)?, span.len() as u64)?;
        // A piece may start in the middle of the pattern.
        span.fill(pattern.rotate_right((part.done % 4) as u32 * 8).to_le_bytes());
        bus.corrupt(chunk)?;
        part.done += span.len() as u64;
        counters.memset += span.len() as u64;
    }
    Ok(part.done)
}

impl Counters {
    fn direction(&mut self, from: Side, to: Side) -> &mut u64 {
        match (from, to) {
            (Side::Host, Side::Device) => &mut self.host_to_device,
            (Side::Device, Side::Host) => &mut self.device_to_host,
            (Side::Device, Side::Device) => &mut self.device_to_device,
            (Side::Host, Side::Host) => &mut self.host_to_host,
        }
    }
}
