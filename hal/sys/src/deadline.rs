//! [`Deadline`]: the time at which a wait ends.

use std::time::{Duration, Instant};

use crate::clock;

/// The time at which a wait ends, or none. A [`Duration`] counts from the conversion, on the clock
/// that the thread uses ([`clock::now`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No limit: only the operation itself ends the wait.
    pub const NEVER: Self = Self(None);

    /// The time at which the wait ends; `None` for [`Deadline::NEVER`].
    #[inline]
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Time left, at most `longest`. 0 once the deadline has passed; always `longest` for
    /// [`Deadline::NEVER`].
    #[inline]
    pub fn remaining(self, longest: Duration) -> Duration {
        match self.0 {
            Some(end) => end.saturating_duration_since(clock::now()).min(longest),
            None => longest,
        }
    }

    /// The time of the next wait, at most 10 s so that no conversion overflows, and whether it is
    /// the last.
    #[inline]
    pub fn step(self) -> (Duration, bool) {
        const STEP: Duration = Duration::from_secs(10);
        match self.0 {
            None => (STEP, false),
            Some(end) => {
                let left = end.saturating_duration_since(clock::now());
                (left.min(STEP), left <= STEP)
            }
        }
    }

    /// Whether the deadline has passed.
    #[inline]
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|end| clock::now() >= end)
    }
}

impl From<Instant> for Deadline {
    #[inline]
    fn from(end: Instant) -> Self {
        Self(Some(end))
    }
}

impl From<Option<Instant>> for Deadline {
    /// `None` is [`Deadline::NEVER`].
    #[inline]
    fn from(end: Option<Instant>) -> Self {
        Self(end)
    }
}

impl From<Duration> for Deadline {
    /// A duration beyond the clock's range is [`Deadline::NEVER`].
    #[inline]
    fn from(after: Duration) -> Self {
        Self(clock::now().checked_add(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_is_bounded_by_both_limits() {
        let step = Duration::from_secs(10);
        assert_eq!(Deadline::NEVER.remaining(step), step);
        assert_eq!(Deadline::from(Duration::from_secs(1000)).remaining(step), step);
        let past = Deadline::from(Duration::ZERO);
        assert!(past.has_passed() && past.remaining(step).is_zero());
    }

    #[test]
    fn duration_beyond_the_clock_is_never() {
        assert_eq!(Deadline::from(Duration::MAX), Deadline::NEVER);
    }
}
