//! [`Span`]: a range of addresses that has at least one byte and an end.

use std::fmt;

/// `len` bytes from `start`, at least one, none beyond address 2^64 - 1. What the addresses are of
/// is the caller's affair: this process, a device, a region's own numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    start: u64,
    last: u64,
}

impl Span {
    /// Every address.
    pub const ALL: Self = Self {
        start: 0,
        last: u64::MAX,
    };

    /// `None` where there is no byte, or one beyond the last address.
    #[inline]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        let Some(more) = len.checked_sub(1) else {
            return None;
        };
        match start.checked_add(more) {
            Some(last) => Some(Self { start, last }),
            None => None,
        }
    }

    /// The first address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The last address: that of a byte, not the one behind it.
    #[inline]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Bytes; 2^64 - 1 of [`ALL`](Self::ALL) too, which has one more.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a span is never empty")]
    pub const fn len(self) -> u64 {
        (self.last - self.start).saturating_add(1)
    }

    /// Whether every address of the other is one of this.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last <= self.last
    }

    /// Whether they have an address in common.
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..={:#x}", self.start, self.last)
    }
}
