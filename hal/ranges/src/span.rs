//! [`Span`]: a non-empty range of addresses.

use std::fmt;

/// A range of at least one byte that ends at address 2^64 - 1 at the latest. The caller chooses the
/// address space: this process, a device, or offsets in a region.
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

    /// Returns the span of `len` bytes from `start`; `None` if it is empty or passes the last
    /// address.
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

    /// Returns the first address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the last address (inclusive).
    #[inline]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Returns the number of bytes; 2^64 - 1 for [`ALL`](Self::ALL), which has one more.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a span is never empty")]
    pub const fn len(self) -> u64 {
        (self.last - self.start).saturating_add(1)
    }

    /// Whether `other` lies inside this span.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last <= self.last
    }

    /// Whether both spans share an address.
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
