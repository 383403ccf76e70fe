//! [`Histogram`]: durations in bounded memory, for percentiles.

/// Buckets of each power of two: a percentile is at most 1/64 below the true value.
const PARTS: u64 = 64;
const PART_BITS: u32 = PARTS.trailing_zeros();

/// Counts values by their size.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

/// Values below [`PARTS`] have a bucket each; above, each power of two has [`PARTS`].
fn bucket(value: u64) -> usize {
    let bits = value.checked_ilog2().unwrap_or(0);
    let index = match bits.checked_sub(PART_BITS) {
        None => value,
        Some(shift) => (u64::from(shift) + 1) * PARTS + ((value >> shift) & (PARTS - 1)),
    };
    // At most 59 * 64.
    index as usize
}

/// The smallest value of a bucket.
fn start(bucket: usize) -> u64 {
    let (power, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match power.checked_sub(1) {
        None => part,
        Some(shift) => (PARTS + part) << shift,
    }
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let at = bucket(value);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Returns the value that `percent` of the values do not exceed, within a bucket's width.
    pub(super) fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.total) * u128::from(percent)).div_ceil(100);
        let mut seen: u128 = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted && seen > 0 {
                return start(at);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000_u64 {
            histogram.add(value);
        }
        for percent in [1, 50, 99, 100] {
            let (seen, exact) = (histogram.percentile(percent), percent * 1000);
            assert!(seen <= exact && exact - seen <= exact / 64, "{percent}: {seen}");
        }
        assert_eq!(histogram.max(), 100_000);
        histogram.add(u64::MAX);
        assert_eq!(histogram.max(), u64::MAX);
        assert_eq!(Histogram::default().percentile(50), 0);
        for value in [0, 1, 63, 64, 65, 127, 128, 1 << 40, u64::MAX] {
            assert!(start(bucket(value)) <= value, "{value}");
            assert!(start(bucket(value) + 1) > value || value == u64::MAX, "{value}");
        }
    }
}
