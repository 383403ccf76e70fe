//! The allocations in the pool of device memory: first fit, in whole pages of 4 KiB, so that every
//! allocation can be exported by itself.

use std::collections::BTreeMap;

/// The unit of an export (memory.c `validate_export_params_common`).
pub(crate) const PAGE: u64 = 4096;

/// The live allocations of the pool.
#[derive(Debug)]
pub(crate) struct Heap {
    base: u64,
    end: u64,
    /// Start → end.
    live: BTreeMap<u64, u64>,
}

impl Heap {
    /// Returns the heap of a pool that ends below 2^64.
    pub(crate) fn new(base: u64, bytes: u64) -> Self {
        Self {
            base,
            end: base.saturating_add(bytes),
            live: BTreeMap::new(),
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the pool.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.base
    }

    /// Takes a range, at the address `wanted` if it is given. `None` if there is no room.
    pub(crate) fn take(&mut self, bytes: u64, wanted: Option<u64>) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let starts = std::iter::once(self.base).chain(self.live.values().copied());
        let ends = self.live.keys().copied().chain(std::iter::once(self.end));
        let mut gaps = starts.zip(ends);
        let start = match wanted {
            None => gaps.find(|(start, end)| end - start >= bytes)?.0,
            Some(at) => {
                let end = at.checked_add(bytes).filter(|_| at % PAGE == 0)?;
                gaps.find(|gap| gap.0 <= at && end <= gap.1)?;
                at
            }
        };
        self.live.insert(start, start + bytes);
        Some(start)
    }

    /// Frees the allocation that begins at an address. Returns whether there was one.
    pub(crate) fn give(&mut self, start: u64) -> bool {
        self.live.remove(&start).is_some()
    }

    /// Whether one allocation holds all bytes of a range.
    pub(crate) fn holds(&self, start: u64, bytes: u64) -> bool {
        let below = self.live.range(..=start).next_back();
        below.is_some_and(|(_, &end)| start.checked_add(bytes).is_some_and(|last| last <= end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_gap_that_fits_is_taken() {
        let mut heap = Heap::new(0x10_0000, 8 * PAGE);
        let [a, b, c] = [1, PAGE + 1, 5 * PAGE].map(|bytes| heap.take(bytes, None));
        assert_eq!([a, b, c], [Some(0x10_0000), Some(0x10_1000), Some(0x10_3000)]);
        assert_eq!(heap.take(1, None), None, "the pool is full");
        assert!(heap.give(0x10_1000) && !heap.give(0x10_1000) && !heap.give(0x10_3001));
        assert_eq!(heap.take(3 * PAGE, None), None, "the gap has two pages");
        assert_eq!(heap.take(PAGE, Some(0x10_2000)), Some(0x10_2000));
        assert_eq!(heap.take(2 * PAGE, Some(0x10_1000)), None, "half of it is taken");
        assert_eq!(heap.take(u64::MAX, None), None);
        assert_eq!(heap.take(PAGE, Some(u64::MAX - PAGE + 1)), None);
    }

    #[test]
    fn ranges_over_two_allocations_are_refused() {
        let mut heap = Heap::new(0x10_0000, 8 * PAGE);
        heap.take(PAGE, None);
        heap.take(PAGE, None);
        assert!(heap.holds(0x10_0000, PAGE) && heap.holds(0x10_0fff, 1) && heap.holds(0x10_1000, PAGE));
        assert!(!heap.holds(0x10_0000, PAGE + 1) && !heap.holds(0x10_2000, 1) && !heap.holds(0, 1));
        assert!(!heap.holds(0x10_0000, u64::MAX));
    }
}
