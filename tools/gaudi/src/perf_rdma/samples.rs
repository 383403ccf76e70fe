//! Times of single operations.

use serde::{Deserialize, Serialize};

use super::op::Tally;

/// The times of a row.
#[derive(Debug)]
pub(super) struct Taken {
    /// Of single operations, for latency.
    pub(super) samples: Samples,
    pub(super) ours: Tally,
    pub(super) theirs: Tally,
}

/// Times that are stored for percentiles. Of more, a random sample is stored: a row may last a day.
const KEPT: usize = 1 << 20;
/// Buckets of the histogram: four in each power of two.
const BUCKETS: usize = 256;

/// The times of a row. Extremes and histogram include all of them, percentiles at most 2^20.
#[derive(Debug)]
pub(crate) struct Samples {
    kept: Vec<u64>,
    seen: u64,
    min: u64,
    max: u64,
    random: u64,
    buckets: Vec<u64>,
}

/// How many operations took at least `from_ns` and less than `to_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bucket {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) n: u64,
}

/// Returns the bucket of a time: its highest bit and the two below.
#[inline]
fn bucket(ns: u64) -> usize {
    let octave = 63 - (ns | 1).leading_zeros();
    let below = ((u128::from(ns) << 2) >> octave) as usize & 3;
    (octave as usize) << 2 | below
}

/// Returns the least time of a bucket; `u64::MAX` for the one behind the last.
fn least(bucket: usize) -> u64 {
    let (octave, below) = (bucket >> 2, (bucket & 3) as u128);
    u64::try_from((((4 + below) << octave) + 3) >> 2).unwrap_or(u64::MAX)
}

/// Returns the value that this many of a thousand `sorted` values do not exceed.
fn rank(sorted: &[u64], of_thousand: usize) -> u64 {
    let rank = (sorted.len() * of_thousand).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

impl Samples {
    /// Allocates all room at once, so that a push never allocates.
    pub(crate) fn new(expected: u64) -> Self {
        Self {
            kept: Vec::with_capacity(usize::try_from(expected).unwrap_or(KEPT).min(KEPT)),
            seen: 0,
            min: u64::MAX,
            max: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            buckets: vec![0; BUCKETS],
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, ns: u64) {
        self.seen += 1;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        self.buckets[bucket(ns)] += 1;
        if self.kept.len() < KEPT {
            self.kept.push(ns);
            return;
        }
        // Reservoir sampling: each time is stored with the same probability (xorshift64).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if let Some(place) = self.kept.get_mut((self.random % self.seen) as usize) {
            *place = ns;
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.seen
    }

    /// Returns minimum, median, 99th percentile and maximum; `None` without samples.
    pub(crate) fn ranks(&mut self) -> Option<[u64; 4]> {
        self.kept.sort_unstable();
        (self.seen > 0).then(|| [self.min, rank(&self.kept, 500), rank(&self.kept, 990), self.max])
    }

    /// Returns the buckets with samples in them, in ascending order.
    pub(super) fn histogram(&self) -> Vec<Bucket> {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled
            .map(|(at, &n)| Bucket {
                from_ns: least(at),
                to_ns: least(at + 1),
                n,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_the_times_between_their_bounds() {
        let mut all: Vec<u64> = (0..5000).collect();
        all.extend((12..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        for ns in all.into_iter().filter(|&ns| ns > 0) {
            let at = bucket(ns);
            assert!(least(at) <= ns, "{ns} in the bucket from {}", least(at));
            assert!(
                ns < least(at + 1) || at == BUCKETS - 1,
                "{ns} below {}",
                least(at + 1)
            );
        }
    }

    #[test]
    fn ranks_and_histogram_are_of_every_sample() {
        let mut samples = Samples::new(4);
        assert_eq!(samples.ranks(), None);
        for ns in [1000, 3000, 1001, 2000] {
            samples.push(ns);
        }
        assert_eq!(samples.ranks(), Some([1000, 1001, 3000, 3000]));
        let buckets = samples.histogram();
        assert_eq!(buckets.iter().map(|bucket| bucket.n).sum::<u64>(), samples.len());
        assert_eq!(
            (buckets[0].from_ns, buckets[0].to_ns, buckets[0].n),
            (896, 1024, 2)
        );
    }

    #[test]
    fn memory_is_bounded_and_extremes_are_kept() {
        let mut samples = Samples::new(u64::MAX);
        samples.push(1);
        (0..2 * KEPT as u64).for_each(|ns| samples.push(1000 + ns % 1000));
        samples.push(1 << 40);
        let [min, median, _, max] = samples.ranks().unwrap();
        assert_eq!((samples.kept.len(), samples.kept.capacity()), (KEPT, KEPT));
        assert_eq!((min, max, samples.len()), (1, 1 << 40, 2 * KEPT as u64 + 2));
        assert!((1400..1600).contains(&median), "{median} of 1000 to 1999");
    }
}
