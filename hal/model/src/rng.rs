//! The random numbers of stepped mode: SplitMix64, small and the same everywhere.

#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`, which is small against 2⁶⁴: the bias is below 2⁻⁵⁰. Zero where `bound` is zero.
    pub(crate) const fn below(&mut self, bound: u32) -> u32 {
        ((self.next() as u128 * bound as u128) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_those_of_the_published_generator() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            rng.next(),
            6_457_827_717_110_365_317,
            "SplitMix64, seed 1234567, first"
        );
        assert_eq!(rng.next(), 3_203_168_211_198_807_973, "second");
    }
}
