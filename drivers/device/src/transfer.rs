//! The checks of a copy or a fill, and its packets.

use std::sync::Arc;

use gaudi_seam::{DeviceVa, Error, Result};

use crate::context::Context;
use crate::location::Location;

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From host to device memory.
    ToDevice,
    /// From device to host memory.
    ToHost,
    /// Within device memory.
    InDevice,
}

/// A copy or a fill of any length, whose ends are checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer<'a> {
    pub(crate) dst: &'a Location,
    pub(crate) source: Source<'a>,
    /// Of a fill: an engine that copies in this direction can fill the memory.
    pub(crate) direction: Direction,
}

/// What a transfer writes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    Memory(&'a Location),
    /// 32 bits, over and over.
    Pattern(u32),
}

const OP: &str = "copy";

impl<'a> Transfer<'a> {
    /// Checks both ends of a copy.
    ///
    /// # Errors
    /// - `InvalidInput`: an end is not mapped or belongs to another device, or the ends overlap or
    ///   differ in length.
    /// - `Unsupported`: both ends are host memory.
    pub(crate) fn copy(context: &Arc<Context>, dst: &'a Location, src: &'a Location) -> Result<Self> {
        let transfer = Self::between(context, dst, src)?;
        if dst.len() != src.len() {
            return Err(context.invalid(OP, "the two ends have different lengths").saw(
                format!("destination {}, source {}", dst.len(), src.len()),
                "the same",
            ));
        }
        if dst.overlaps(src) && !dst.is_empty() {
            return Err(context
                .invalid(
                    OP,
                    "the ends overlap, and an engine reads and writes in no fixed order",
                )
                .saw(
                    format!("{} and {} + {:#x}", dst.address(), src.address(), dst.len()),
                    "disjoint ranges",
                ));
        }
        Ok(transfer)
    }

    /// Checks the memory of both ends, for copies of parts of them.
    ///
    /// # Errors
    /// As [`copy`](Self::copy), except for lengths and overlaps.
    pub(crate) fn between(context: &Arc<Context>, dst: &'a Location, src: &'a Location) -> Result<Self> {
        for end in [dst, src] {
            check_memory(context, OP, end)?;
        }
        let direction = match (dst.is_host(), src.is_host()) {
            (false, true) => Direction::ToDevice,
            (true, false) => Direction::ToHost,
            (false, false) => Direction::InDevice,
            (true, true) => {
                return Err(Error::unsupported(
                    OP,
                    "host memory to host memory crosses the bus twice to do what the processor does better",
                )
                .on(context.id)
                .helped_by("copy with the processor; in the library, HostMapping::copy_on_cpu does it"));
            }
        };
        let source = Source::Memory(src);
        Ok(Self {
            dst,
            source,
            direction,
        })
    }

    /// Checks the memory of a fill.
    ///
    /// # Errors
    /// `InvalidInput`: the memory is not mapped, or belongs to another device.
    pub(crate) fn fill(
        context: &Arc<Context>,
        operation: &'static str,
        dst: &'a Location,
        pattern: u32,
    ) -> Result<Self> {
        check_memory(context, operation, dst)?;
        Ok(Self {
            dst,
            source: Source::Pattern(pattern),
            direction: if dst.is_host() {
                Direction::ToHost
            } else {
                Direction::InDevice
            },
        })
    }

    /// The packets of the transfer. Each packet of a fill starts the pattern anew, so packets are
    /// whole patterns and not aligned.
    pub(crate) fn pieces(&self, context: &Context) -> Pieces {
        let (start, line) = match self.source {
            Source::Memory(_) => (self.dst.address(), context.asic.cache_line.into()),
            Source::Pattern(_) => (DeviceVa(0), 1),
        };
        Pieces::new(start, self.dst.len(), context.options.packet_bytes, line)
    }
}

/// Rejects memory of another device, and memory that a close has unmapped: an engine that accesses
/// it faults, and the driver resets the device.
fn check_memory(context: &Arc<Context>, operation: &'static str, end: &Location) -> Result<()> {
    if !Arc::ptr_eq(end.context(), context) {
        return Err(context.invalid(operation, "the memory belongs to another open device"));
    }
    if end.is_mapped() {
        return Ok(());
    }
    Err(context
        .invalid(operation, "the device can no longer access the memory")
        .helped_by("its close unmapped it and failed afterwards; close it again"))
}

/// The packets of one transfer: `(offset, length)`. After the first, each starts on a cache line of
/// the destination.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    offset: u64,
    len: u64,
    first: u64,
    most: u64,
}

impl Pieces {
    /// `most` is a multiple of `line`, larger than it, and fits a packet's 32-bit length.
    pub(crate) fn new(start: DeviceVa, len: u64, most: u64, line: u64) -> Self {
        Self {
            offset: 0,
            len,
            first: most - start.0 % line.max(1),
            most,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.offset == self.len
    }
}

impl Iterator for Pieces {
    type Item = (u64, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.len - self.offset;
        if left == 0 {
            return None;
        }
        let most = if self.offset == 0 { self.first } else { self.most };
        // `most` is a 32-bit length: `Options::packet_bytes` is at most the chip's.
        let len = left.min(most) as u32;
        let offset = self.offset;
        self.offset += u64::from(len);
        Some((offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        /// No piece is empty or too long, and all but the first start on a line.
        #[test]
        fn pieces_cover_a_transfer(start in 0_u64..1 << 40, len in 0_u64..100_000, lines in 2_u64..40) {
            let most = lines * 128;
            let mut next = 0;
            for (offset, piece) in Pieces::new(DeviceVa(start), len, most, 128) {
                prop_assert_eq!(offset, next, "no gap and no overlap");
                prop_assert!(piece > 0 && u64::from(piece) <= most, "{} is a valid length", piece);
                prop_assert!(offset == 0 || (start + offset) % 128 == 0, "{} starts on a line", offset);
                next += u64::from(piece);
            }
            prop_assert_eq!(next, len, "the pieces cover the transfer");
        }
    }

    #[test]
    fn packets_fit_their_size_field() {
        let most = u64::from(u32::MAX) / 128 * 128;
        let pieces: Vec<_> = Pieces::new(DeviceVa(7), 10 << 30, most, 128).collect();
        assert_eq!(pieces.len(), 3, "10 GiB are three packets: {pieces:?}");
        assert_eq!(
            pieces.iter().map(|&(_, len)| u64::from(len)).sum::<u64>(),
            10 << 30
        );
    }
}
