//! Time as the layers see it: injected, so that a test sleeps in no time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where time comes from, and how it is let pass.
pub trait Time: fmt::Debug + Send + Sync + 'static {
    /// Nanoseconds since a point that does not move.
    fn now_ns(&self) -> u64;

    /// Nanoseconds since 1970 (UTC), for the heading of a record.
    fn unix_ns(&self) -> u64;

    /// Lets time pass, `at_most` long. It may come back earlier, so that the caller looks at what else happened.
    fn pause(&self, at_most: Duration);

    /// Lets that much time pass.
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
        // A reset by another thread is seen within this time.
        const SLICE: Duration = Duration::from_millis(20);
        thread::sleep(at_most.min(SLICE));
    }
}

/// A clock that stands still until somebody sleeps.
#[derive(Debug, Default)]
pub struct VirtualTime(AtomicU64);

impl VirtualTime {
    /// A clock at 0.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Time for VirtualTime {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Time since 1970 as if the clock had started then: the same in every run.
    fn unix_ns(&self) -> u64 {
        self.now_ns()
    }

    fn pause(&self, at_most: Duration) {
        let step = nanoseconds(at_most);
        let later = |now: u64| Some(now.saturating_add(step));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }
}

/// A duration as nanoseconds, at most `u64::MAX`.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
