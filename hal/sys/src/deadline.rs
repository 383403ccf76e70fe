//! The end of a wait.

use std::time::{Duration, Instant};

/// When a call stops waiting. A [`Duration`] counts from the conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub const NEVER: Self = Self(None);

    /// Returns the time; `None` for [`NEVER`](Self::NEVER).
    #[inline]
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Returns how long one wait may take, at most 10 s so that no conversion overflows, and
    /// whether it is the last.
    #[inline]
    pub fn step(self) -> (Duration, bool) {
        const STEP: Duration = Duration::from_secs(10);
        match self.0 {
            None => (STEP, false),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                (left.min(STEP), left <= STEP)
            }
        }
    }

    /// Whether the time has passed.
    #[inline]
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

impl From<Instant> for Deadline {
    #[inline]
    fn from(end: Instant) -> Self {
        Self(Some(end))
    }
}

impl From<Duration> for Deadline {
    /// A duration that leaves the clock's range is [`Deadline::NEVER`].
    #[inline]
    fn from(after: Duration) -> Self {
        Self(Instant::now().checked_add(after))
    }
}
