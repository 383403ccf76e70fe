//! Allocates device addresses with the driver's algorithm: the same calls return the same
//! addresses.

use std::collections::BTreeMap;
use std::ops::Range;

use gaudi_seam::DeviceVa;
use gaudi_spec::asic;
use gaudi_uapi::memory::MemFlags;

/// The bits of a hint at device memory that count (gaudi2.h `DRAM_VA_HINT_MASK`).
const DRAM_HINT_MASK: u64 = 0xffff_ffff_ffff;

/// The free blocks of one address range (driver common/memory.c `struct hl_va_range`).
#[derive(Debug)]
pub(crate) struct VaSpace {
    /// Start → end of each free block; neighbours are merged.
    free: BTreeMap<u64, u64>,
    page: u64,
    /// Where nothing is put unless a hint asks for it.
    reserved: Range<u64>,
    /// Whether the range is one of device memory, whose page need not be a power of two.
    range: asic::VaRange,
}

/// A request for an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hint {
    pub(crate) address: Option<DeviceVa>,
    /// `HL_MEM_FORCE_HINT`.
    pub(crate) forced: bool,
}

impl Hint {
    pub(crate) const NONE: Self = Self {
        address: None,
        forced: false,
    };

    pub(crate) fn new(address: Option<DeviceVa>, flags: MemFlags) -> Self {
        Self {
            address,
            forced: flags.contains(MemFlags::FORCE_HINT),
        }
    }

    /// Whether the hint and a size pass the end of 64 bits.
    pub(crate) fn wraps(&self, size: u64) -> bool {
        let end = |address: DeviceVa| address.0.checked_add(size);
        self.address.is_some_and(|address| end(address).is_none())
    }
}

impl VaSpace {
    pub(crate) fn new(range: asic::VaRange, page: u64, reserved: Range<u64>) -> Self {
        Self {
            free: BTreeMap::from([(range.start.0, range.end.0)]),
            page,
            reserved,
            range,
        }
    }

    /// Takes a block (memory.c:get_va_block): at the hint where it is free, else in the
    /// smallest block that is large enough. `None` if there is no such block, or the hint was
    /// forced and is not free, or it wraps: the driver takes its sum with the size, which is
    /// small, for free, and then cannot put the rest of the block back.
    pub(crate) fn take(&mut self, size: u64, align: u64, hint: Hint) -> Option<DeviceVa> {
        let by_power = self.page.is_power_of_two();
        let size = if by_power {
            Some(size)
        } else {
            size.checked_next_multiple_of(self.page)
        }?;
        let mut wanted = hint
            .address
            .map(|address| address.0)
            .filter(|&address| address != 0);
        if let Some(address) = wanted {
            let inside = self.range.contains(DeviceVa(address), 0);
            // memory.c:get_va_block: of a DRAM hint only the offset below bit 48 must be whole
            // pages; the space's own bits are no multiple of 3.
            let misaligned = if by_power {
                address % align != 0
            } else {
                inside && (address & DRAM_HINT_MASK) % self.page != 0
            };
            if misaligned && hint.forced {
                return None;
            }
            if misaligned {
                wanted = None;
            }
        }
        if wanted.is_some_and(|address| address.checked_add(size).is_none()) {
            return None;
        }
        let mut best: Option<(u64, u64, u64)> = None; // (block, start in it, room from there)
        for (&block, &end) in &self.free {
            let start = if by_power {
                block.checked_next_multiple_of(align)?
            } else {
                block
            };
            let Some(room) = end.checked_sub(start).filter(|&room| room >= size) else {
                continue;
            };
            if wanted.is_none() && start < self.reserved.end && start + size > self.reserved.start {
                continue;
            }
            if best.is_none_or(|(_, _, least)| room < least) {
                best = Some((block, start, room));
            }
            if let Some(address) = wanted {
                if address >= start && address.checked_add(size).is_some_and(|last| last < end) {
                    best = Some((block, address, room));
                    break;
                }
            }
        }
        let (block, start, _) = best?;
        if hint.forced && Some(start) != wanted {
            return None;
        }
        let end = self.free.remove(&block)?;
        if block < start {
            self.free.insert(block, start);
        }
        if start + size < end {
            self.free.insert(start + size, end);
        }
        Some(DeviceVa(start))
    }

    /// Takes the lowest block, as a `gen_pool` with its default algorithm does (lib/genalloc.c
    /// `gen_pool_first_fit`).
    pub(crate) fn take_lowest(&mut self, size: u64) -> Option<DeviceVa> {
        let size = size.checked_next_multiple_of(self.page)?;
        let fits = |row: &(&u64, &u64)| row.1 - row.0 >= size;
        let (&start, &end) = self.free.iter().find(fits)?;
        self.free.remove(&start);
        if start + size < end {
            self.free.insert(start + size, end);
        }
        Some(DeviceVa(start))
    }

    /// Frees a block, as large as [`take`](Self::take) made it.
    pub(crate) fn give(&mut self, start: DeviceVa, size: u64) {
        let size = if self.page.is_power_of_two() {
            size
        } else {
            size.next_multiple_of(self.page)
        };
        let (mut start, mut end) = (start.0, start.0 + size);
        if let Some((&below, &below_end)) = self.free.range(..start).next_back() {
            if below_end == start {
                self.free.remove(&below);
                start = below;
            }
        }
        if let Some(above_end) = self.free.remove(&end) {
            end = above_end;
        }
        self.free.insert(start, end);
    }

    /// Frees every block.
    pub(crate) fn restart(&mut self) {
        if !self.is_whole() {
            self.free = BTreeMap::from([(self.range.start.0, self.range.end.0)]);
        }
    }

    /// Whether every block is free.
    pub(crate) fn is_whole(&self) -> bool {
        self.free.len() == 1 && self.free.get(&self.range.start.0) == Some(&self.range.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(page: u64) -> VaSpace {
        let range = asic::VaRange {
            start: DeviceVa(0x10_0000),
            end: DeviceVa(0x20_0000),
            page,
        };
        VaSpace::new(range, page, 0..0)
    }

    #[test]
    fn smallest_hole_is_filled_first() {
        let mut space = space(0x1000);
        let a = space.take(0x3000, 0x1000, Hint::NONE).unwrap();
        let b = space.take(0x1000, 0x1000, Hint::NONE).unwrap();
        assert_eq!((a.0, b.0), (0x10_0000, 0x10_3000));
        space.give(a, 0x3000);
        assert_eq!(
            space.take(0x1000, 0x1000, Hint::NONE).unwrap().0,
            0x10_0000,
            "the hole is smaller than the rest"
        );
        space.give(DeviceVa(0x10_0000), 0x1000);
        space.give(b, 0x1000);
        assert!(space.is_whole());
    }

    #[test]
    fn lowest_hole_is_filled_first() {
        let mut space = space(0x1000);
        let all = [3, 1, 1, 1].map(|pages| space.take_lowest(pages * 0x1000).unwrap());
        space.give(all[0], 0x3000);
        space.give(all[2], 0x1000);
        assert_eq!(space.take_lowest(1).map(|va| va.0), Some(0x10_0000));
        assert_eq!(space.take_lowest(0x3000).map(|va| va.0), Some(0x10_6000));
        assert_eq!(space.take_lowest(u64::MAX), None);
    }

    #[test]
    fn occupied_hint_fails_only_if_forced() {
        let mut space = space(0x1000);
        let hint = |address, forced| Hint {
            address: Some(DeviceVa(address)),
            forced,
        };
        assert_eq!(
            space.take(0x1000, 0x1000, hint(0x15_0000, false)).unwrap().0,
            0x15_0000
        );
        assert_eq!(
            space.take(0x1000, 0x1000, hint(0x15_0000, true)),
            None,
            "taken already"
        );
        assert_eq!(
            space.take(0x1000, 0x1000, hint(0x15_0800, true)),
            None,
            "not aligned"
        );
        assert!(
            space
                .take(0x1000, 0x1000, hint(0x15_0000, false))
                .is_some_and(|va| va.0 != 0x15_0000)
        );
    }

    #[test]
    fn wrapping_hint_fails_unless_misaligned() {
        let mut space = space(0x1000);
        let hint = |address| Hint {
            address: Some(DeviceVa(address)),
            forced: false,
        };
        assert_eq!(space.take(0x1000, 0x1000, hint(u64::MAX - 0xfff)), None);
        assert!(space.take(0x1000, 0x1000, hint(u64::MAX - 0x1fff)).is_some());
        assert!(space.take(0x1000, 0x1000, hint(u64::MAX)).is_some());
    }

    #[test]
    fn odd_page_sizes_round_up() {
        let mut space = space(0x3000);
        let a = space.take(1, 0x3000, Hint::NONE).unwrap();
        let b = space.take(0x3001, 0x3000, Hint::NONE).unwrap();
        assert_eq!(b.0 - a.0, 0x3000);
        space.give(b, 0x3001);
        space.give(a, 1);
        assert!(space.is_whole());
    }

    #[test]
    fn reserved_range_needs_a_hint() {
        let range = asic::VaRange {
            start: DeviceVa(0x10_0000),
            end: DeviceVa(0x20_0000),
            page: 0x1000,
        };
        let mut space = VaSpace::new(range, 0x1000, 0x10_0000..0x18_0000);
        // The driver looks at the first fitting address of each free block only, and here that one
        // is reserved.
        assert_eq!(space.take(0x1000, 0x1000, Hint::NONE), None);
    }
}
