//! The DMA engines' work: copy and fill, piece by piece as far as memory lies in a row.

use gaudi_spec::DeviceVa;

use crate::bus::{Bus, Fault, Side, step};
use crate::chip::Counters;
use crate::event::Access;

/// Copies `size` bytes. Overlapping ranges come out as if the source had been read whole first; what the chip does with them is not
/// documented. At a fault, the pieces before it have been written, as on the chip.
pub(crate) fn copy(
    bus: &Bus,
    counters: &mut Counters,
    to: DeviceVa,
    from: DeviceVa,
    size: u64,
) -> Result<(), Fault> {
    let overlaps_ahead = to
        .offset_from(from)
        .is_some_and(|ahead| ahead > 0 && ahead < size);
    let mut left = size;
    while left > 0 {
        let (source, destination);
        if overlaps_ahead {
            source = bus.memory_back(step(from, left - 1, Access::Read)?, left, Access::Read)?;
            destination = bus.memory_back(step(to, left - 1, Access::Write)?, left, Access::Write)?;
        } else {
            source = bus.memory(step(from, size - left, Access::Read)?, left, Access::Read)?;
            destination = bus.memory(step(to, size - left, Access::Write)?, left, Access::Write)?;
        }
        let moved = if overlaps_ahead {
            let len = source.0.len().min(destination.0.len());
            destination.0.last(len).copy_from(source.0.last(len))
        } else {
            destination.0.copy_from(source.0)
        } as u64;
        *counters.direction(source.1, destination.1) += moved;
        left -= moved;
    }
    Ok(())
}

/// Fills `size` bytes with a pattern, its first byte at `to`.
pub(crate) fn fill(
    bus: &Bus,
    counters: &mut Counters,
    to: DeviceVa,
    pattern: u32,
    size: u64,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < size {
        let (span, _) = bus.memory(step(to, done, Access::Write)?, size - done, Access::Write)?;
        // A piece may start in the middle of the pattern.
        span.fill(pattern.rotate_right((done % 4) as u32 * 8).to_le_bytes());
        done += span.len() as u64;
        counters.memset += span.len() as u64;
    }
    Ok(())
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
