//! The mock's clock: the machine's, or one that stands still until a wait moves it.

use std::time::{Duration, Instant};

use gaudi_seam::Clock;
use gaudi_sys::clock::VirtualClock;

/// Where a virtual clock starts. A time of 0 means "none" in the driver's answers.
const START_NS: u64 = 1_000_000_000;

/// Nanoseconds since the device was made.
#[derive(Debug)]
pub(crate) enum Timekeeper {
    Monotonic(Instant),
    Virtual(VirtualClock),
    /// A virtual clock that other devices or NICs use too.
    Shared(VirtualClock),
}

impl Timekeeper {
    pub(crate) fn new(clock: Clock) -> Self {
        match clock {
            Clock::Monotonic => Self::Monotonic(Instant::now()),
            Clock::Virtual => Self::Virtual(VirtualClock::at(START_NS)),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic(start) => nanoseconds(start.elapsed()),
            Self::Virtual(clock) | Self::Shared(clock) => clock.now_ns(),
        }
    }

    /// Lets virtual time pass until `then`; false where time passes by itself.
    pub(crate) fn jump_to(&mut self, then: u64) -> bool {
        match self {
            Self::Monotonic(_) => false,
            Self::Virtual(clock) | Self::Shared(clock) => {
                clock.advance_to(then);
                true
            }
        }
    }

    /// The virtual clock; `None` where time passes by itself.
    pub(crate) fn as_virtual(&self) -> Option<VirtualClock> {
        match self {
            Self::Monotonic(_) => None,
            Self::Virtual(clock) | Self::Shared(clock) => Some(clock.clone()),
        }
    }

    /// Starts again, as for a new device.
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Monotonic(start) => *start = Instant::now(),
            Self::Virtual(clock) => clock.restart(START_NS),
            // Its owner restarts it.
            Self::Shared(_) => {}
        }
    }
}

/// A duration as nanoseconds, at most `u64::MAX`.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as the driver's answers have it, at most `i64::MAX`.
pub(crate) fn timestamp(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
