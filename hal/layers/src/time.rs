//! [`Time`]: the clock of the layers. It is injected, so tests do not sleep.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use gaudi_sys::clock::VirtualClock;

/// A clock that can sleep.
pub trait Time: fmt::Debug + Send + Sync + 'static {
    /// Nanoseconds since a fixed point.
    fn now_ns(&self) -> u64;

    /// Nanoseconds since 1970 (UTC), for the header of a trace.
    fn unix_ns(&self) -> u64;

    /// Sleeps at most `at_most`. It may return earlier, so that the caller checks its condition
    /// again.
    fn pause(&self, at_most: Duration);

    /// Sleeps for this time.
    fn sleep(&self, duration: Duration) {
        let end = self.now_ns().saturating_add(nanoseconds(duration));
        loop {
            match end.saturating_sub(self.now_ns()) {
                0 => return,
                left => self.pause(Duration::from_nanos(left)),
            }
        }
    }
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Time for Monotonic {
    fn now_ns(&self) -> u64 {
        nanoseconds(self.0.elapsed())
    }

    fn unix_ns(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, nanoseconds)
    }

    fn pause(&self, at_most: Duration) {
        // The caller notices a reset by another thread within this time.
        const SLICE: Duration = Duration::from_millis(20);
        thread::sleep(at_most.min(SLICE));
    }
}

impl Time for VirtualClock {
    fn now_ns(&self) -> u64 {
        Self::now_ns(self)
    }

    /// As if the clock had started in 1970: the same in every run.
    fn unix_ns(&self) -> u64 {
        Self::now_ns(self)
    }

    fn pause(&self, at_most: Duration) {
        self.advance(at_most);
    }
}

/// A duration as nanoseconds, at most `u64::MAX`.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
