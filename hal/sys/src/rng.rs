//! Random numbers: SplitMix64, small and the same on every machine.

/// A stream of random numbers that its seed determines. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns the stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `bound`; 0 if `bound` is 0. The bias is below 2^-32.
    pub const fn below(&mut self, bound: u32) -> u32 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_the_published_ones() {
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(
            rng.next_u64(),
            6_457_827_717_110_365_317,
            "SplitMix64, seed 1234567, first"
        );
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973, "second");
    }
}
