//! A word that a register keeps.

/// The place of a register's word.
pub(crate) enum Word<'a> {
    /// A word, of which `mask` can be set.
    Whole { of: &'a mut u32, mask: u32 },
    /// A half of a 64-bit value.
    Half { of: &'a mut u64, high: bool },
}

impl<'a> Word<'a> {
    pub(crate) fn whole(of: &'a mut u32) -> Self {
        Self::Whole { of, mask: u32::MAX }
    }

    pub(crate) fn half(of: &'a mut u64, high: bool) -> Self {
        Self::Half { of, high }
    }

    pub(crate) fn get(&self) -> u32 {
        match self {
            Self::Whole { of, .. } => **of,
            Self::Half { of, high } => (**of >> (32 * u32::from(*high))) as u32,
        }
    }

    pub(crate) fn set(self, value: u32) {
        match self {
            Self::Whole { of, mask } => *of = value & mask,
            Self::Half { of, high } => {
                let shift = 32 * u32::from(high);
                *of = *of & !(0xffff_ffff << shift) | u64::from(value) << shift;
            }
        }
    }
}
