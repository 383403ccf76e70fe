//! Until when a caller waits.

use std::time::{Duration, Instant};

/// The end of a caller's patience. A [`Duration`] counts from the conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Waits for as long as it takes: the driver ends every submission by its own timeout.
    pub const NEVER: Self = Self(None);

    /// Returns the end of the wait; `None` for [`Deadline::NEVER`].
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// How long one wait may take, and whether it is the last: the driver is asked in steps, so that no conversion overflows.
    pub(crate) fn step(self) -> (Duration, bool) {
        const STEP: Duration = Duration::from_secs(10);
        match self.0 {
            None => (STEP, false),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                (left.min(STEP), left <= STEP)
            }
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

impl From<Instant> for Deadline {
    fn from(end: Instant) -> Self {
        Self(Some(end))
    }
}

impl From<Duration> for Deadline {
    /// A duration that leaves the clock's range is [`Deadline::NEVER`].
    fn from(after: Duration) -> Self {
        Self(Instant::now().checked_add(after))
    }
}
