//! SplitMix64: a small random number generator with the same numbers on every machine.
//!
//! No crate: the numbers are part of the interface (seeds that users and tests write down), which
//! `rand` promises for no generator across versions.

/// Adds `0x9e3779b97f4a7c15` for each number; [`SplitMix64::nth`] jumps.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers. Not for secrets.
#[derive(Debug, Clone, Default)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the `n`th number of a seed's stream; the first one has the number 1.
    pub const fn nth(seed: u64, n: u64) -> u64 {
        let z = seed.wrapping_add(n.wrapping_mul(STEP));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        let value = Self::nth(self.0, 1);
        self.0 = self.0.wrapping_add(STEP);
        value
    }

    /// Returns a number below `end`, or 0 if `end` is 0. The bias is `end` / 2^64.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// Fills `into` with random bytes.
    pub fn fill(&mut self, into: &mut [u8]) {
        for word in into.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_match_published_splitmix64() {
        let mut rng = SplitMix64::new(1_234_567);
        let numbers = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
        assert_eq!(SplitMix64::nth(1_234_567, 3), numbers[2]);
    }

    #[test]
    fn fill_continues_the_stream() {
        let mut bytes = [0; 11];
        SplitMix64::new(7).fill(&mut bytes);
        assert_eq!(bytes[..8], SplitMix64::nth(7, 1).to_le_bytes());
        assert_eq!(bytes[8..], SplitMix64::nth(7, 2).to_le_bytes()[..3]);
    }
}
