//! Address translation for the one user context: ranges of device addresses to device memory, host
//! memory or the doorbell.

use gaudi_seam::engine::{HostRange, MapError};
use gaudi_spec::{DevicePa, DeviceVa};

/// What a device address leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// The chip's memory.
    Device(DevicePa),
    /// Host memory: the range, and the byte of it.
    Host(&'a HostRange, usize),
    /// The page in which a word written raises that interrupt vector.
    Doorbell,
}

/// An address translated, and how far the translation goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation<'a> {
    /// Where the address leads.
    pub(crate) target: Target<'a>,
    /// Bytes in a row from the address on, at least 1.
    pub(crate) after: u64,
    /// Bytes in a row before the address.
    pub(crate) before: u64,
}

/// What a range of device addresses leads to.
#[derive(Debug)]
pub(crate) enum Backing {
    Device(DevicePa),
    Host(HostRange),
    Doorbell,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    len: u64,
    backing: Backing,
}

/// Mapped ranges in the order of their addresses. A packet looks some up and a mapping changes
/// them, so that it is a row and not a tree: half the time of a short packet went into the walk.
#[derive(Debug, Default)]
pub(crate) struct RangeMmu {
    ranges: Vec<Mapping>,
}

impl RangeMmu {
    /// Removes the range that starts at `va`. Returns whether there was one.
    pub(crate) fn unmap(&mut self, va: DeviceVa) -> bool {
        let at = self
            .ranges
            .binary_search_by_key(&va.get(), |mapping| mapping.start);
        at.map(|at| self.ranges.remove(at)).is_ok()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Maps `len` bytes from `va`.
    pub(crate) fn insert(&mut self, va: DeviceVa, len: u64, backing: Backing) -> Result<(), MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let last = va.checked_add(len - 1).ok_or(MapError::Wraps)?;
        // The new range goes behind all that begin before its end: it may overlap the last of them
        // only.
        let at = self.behind(last.get());
        if let Some(&Mapping { start, len, .. }) = at.checked_sub(1).and_then(|at| self.ranges.get(at)) {
            if start >= va.get() || va.get() - start < len {
                return Err(MapError::Overlaps(DeviceVa(start)));
            }
        }
        let start = va.get();
        self.ranges.insert(at, Mapping { start, len, backing });
        Ok(())
    }

    /// How many ranges begin at `va` or before.
    #[inline]
    fn behind(&self, va: u64) -> usize {
        self.ranges.partition_point(|mapping| mapping.start <= va)
    }

    /// Where `va` leads; `None` is a page fault.
    pub(crate) fn translate(&self, va: DeviceVa) -> Option<Translation<'_>> {
        let mapping = self.ranges.get(self.behind(va.get()).checked_sub(1)?)?;
        let before = va.get() - mapping.start;
        if before >= mapping.len {
            return None;
        }
        let target = match &mapping.backing {
            Backing::Device(pa) => Target::Device(pa.checked_add(before)?),
            Backing::Host(range) => Target::Host(range, usize::try_from(before).ok()?),
            Backing::Doorbell => Target::Doorbell,
        };
        Some(Translation {
            target,
            after: mapping.len - before,
            before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmu(ranges: &[(u64, u64)]) -> RangeMmu {
        let mut mmu = RangeMmu::default();
        for &(va, len) in ranges {
            mmu.insert(DeviceVa(va), len, Backing::Device(DevicePa(va)))
                .expect("the ranges do not overlap");
        }
        mmu
    }

    #[test]
    fn overlap_is_refused_on_every_side() {
        let mut mmu = mmu(&[(0x2000, 0x1000), (0x8000, 0x1000)]);
        let mut refused = |va, len| {
            mmu.insert(DeviceVa(va), len, Backing::Device(DevicePa(0)))
                .expect_err("an overlap")
        };
        assert_eq!(
            refused(0x2fff, 1),
            MapError::Overlaps(DeviceVa(0x2000)),
            "the last byte is taken"
        );
        assert_eq!(
            refused(0x1000, 0x1001),
            MapError::Overlaps(DeviceVa(0x2000)),
            "from below by one byte"
        );
        assert_eq!(
            refused(0x1000, 0x9000),
            MapError::Overlaps(DeviceVa(0x8000)),
            "over both"
        );
        assert_eq!(
            refused(0x2000, 0x1000),
            MapError::Overlaps(DeviceVa(0x2000)),
            "the same again"
        );
        assert_eq!(refused(0x3000, 0), MapError::Empty);
        assert_eq!(refused(u64::MAX, 2), MapError::Wraps);
        mmu.insert(DeviceVa(0x3000), 0x5000, Backing::Device(DevicePa(0)))
            .expect("the gap between them fits exactly");
        mmu.insert(DeviceVa(u64::MAX), 1, Backing::Device(DevicePa(0)))
            .expect("the last byte of the space can be mapped");
    }

    #[test]
    fn translation_reports_its_extent() {
        let mmu = mmu(&[(0x2000, 0x1000)]);
        let found = mmu.translate(DeviceVa(0x2ff0)).expect("mapped");
        assert_eq!((found.before, found.after), (0xff0, 0x10));
        assert!(matches!(found.target, Target::Device(DevicePa(0x2ff0))));
        assert!(
            mmu.translate(DeviceVa(0x3000)).is_none(),
            "the byte after the range is a fault"
        );
        assert!(mmu.translate(DeviceVa(0x1fff)).is_none(), "and the one before");
    }

    #[test]
    fn unmap_needs_the_start_of_range() {
        let mut mmu = mmu(&[(0x2000, 0x1000)]);
        assert!(!mmu.unmap(DeviceVa(0x2800)));
        assert!(mmu.unmap(DeviceVa(0x2000)));
        assert!(
            mmu.translate(DeviceVa(0x2000)).is_none(),
            "an unmapped address is a fault"
        );
    }
}
