//! Free ranges of one span of bytes: best fit, with coalescing.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges, by offset. No two ranges touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FreeRanges {
    len: u64,
    free: BTreeMap<u64, u64>,
    /// The same ranges as (bytes, offset): the smallest that is large enough comes first.
    by_size: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    /// `len` bytes, all free.
    pub(crate) fn new(len: u64) -> Self {
        let mut ranges = Self::taken(len);
        if len > 0 {
            ranges.add(0, len);
        }
        ranges
    }

    /// `len` bytes, none of them free.
    pub(crate) fn taken(len: u64) -> Self {
        Self {
            len,
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
        }
    }

    fn add(&mut self, start: u64, size: u64) {
        self.free.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let size = self.free.remove(&start)?;
        self.by_size.remove(&(size, start));
        Some(size)
    }

    fn find(&self, len: u64, align: u64) -> Option<(u64, u64, u64)> {
        let align = align.max(1);
        self.by_size.range((len, 0)..).find_map(|&(size, start)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(len)?;
            (len > 0 && end <= start + size).then_some((start, size, at))
        })
    }

    /// Returns the largest range's bytes.
    pub(crate) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(size, _)| size)
    }

    /// Returns the free bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Takes `len` bytes at a multiple of `align` from the smallest range that has them.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, size, at) = self.find(len, align)?;
        self.remove(start);
        if at > start {
            self.add(start, at - start);
        }
        let (end, old_end) = (at + len, start + size);
        if end < old_end {
            self.add(end, old_end - end);
        }
        Some(at)
    }

    /// Releases bytes that [`take`](Self::take) returned.
    pub(crate) fn release(&mut self, at: u64, len: u64) {
        let (mut start, mut size) = (at, len);
        if let Some((&before, &before_size)) = self.free.range(..at).next_back() {
            debug_assert!(before + before_size <= at, "{at} is released twice");
            if before + before_size == at {
                self.remove(before);
                (start, size) = (before, size + before_size);
            }
        }
        if let Some(after_size) = self.remove(at + len) {
            size += after_size;
        }
        self.add(start, size);
    }

    /// Whether all bytes are free.
    pub(crate) fn is_whole(&self) -> bool {
        self.free.get(&0) == Some(&self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn take_is_best_fit_and_release_coalesces() {
        let mut ranges = FreeRanges::new(1000);
        assert_eq!(ranges.take(100, 1), Some(0));
        assert_eq!(
            ranges.take(100, 128),
            Some(128),
            "the gap before the alignment stays free"
        );
        assert_eq!(ranges.take(28, 1), Some(100), "and the gap is the best fit");
        assert_eq!(ranges.take(800, 1), None, "772 are left");
        ranges.release(100, 28);
        ranges.release(0, 100);
        ranges.release(128, 100);
        assert!(ranges.is_whole(), "all is free again in one piece: {ranges:?}");
        assert_eq!(ranges.take(0, 1), None, "an empty range is not taken");
        assert_eq!(FreeRanges::new(10).take(u64::MAX, 1), None, "no length wraps");
    }

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        /// Taken ranges never overlap, are aligned and inside, and releasing all leaves one range.
        #[test]
        fn taken_ranges_never_overlap(steps in prop::collection::vec((any::<bool>(), 1_u64..300, 0_u32..9, any::<prop::sample::Index>()), 1..80)) {
            let mut ranges = FreeRanges::new(4096);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (release, len, shift, which) in steps {
                if release && !taken.is_empty() {
                    let (at, len) = taken.swap_remove(which.index(taken.len()));
                    ranges.release(at, len);
                } else if let Some(at) = ranges.take(len, 1 << shift) {
                    prop_assert_eq!(at % (1 << shift), 0, "{} is aligned", at);
                    prop_assert!(at + len <= 4096, "{}+{} lies inside", at, len);
                    for &(other, other_len) in &taken {
                        prop_assert!(at + len <= other || other + other_len <= at, "{}+{} overlaps {}+{}", at, len, other, other_len);
                    }
                    taken.push((at, len));
                }
            }
            for (at, len) in taken {
                ranges.release(at, len);
            }
            prop_assert!(ranges.is_whole());
            prop_assert_eq!(ranges.by_size.len(), 1, "both indexes have the same ranges");
        }
    }
}
