//! The machine's clocks (clock_gettime(2)), and virtual ones.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC_RAW` in nanoseconds, as the driver's `ktime_get_raw_ns`; 0 where the kernel has
/// no such clock.
pub fn monotonic_raw_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).ok();
    let nanoseconds = time.and_then(|t| t.tv_sec().checked_mul(1_000_000_000)?.checked_add(t.tv_nsec()));
    nanoseconds.and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    // Linux always has this clock, and it starts at boot, so the value is not negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Processor time of all threads of this process (`CLOCK_PROCESS_CPUTIME_ID`), user and system.
pub fn process_cpu_time() -> Duration {
    // Linux always has this clock.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// A clock that only waits and sleeps advance. A clone is the same clock.
#[derive(Debug, Clone, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

thread_local! {
    static CURRENT: RefCell<Option<VirtualClock>> = const { RefCell::new(None) };
}

/// Ends the use of a virtual clock in this thread when it is dropped.
#[derive(Debug)]
#[must_use = "the thread uses the clock until the guard is dropped"]
pub struct Entered {
    before: Option<VirtualClock>,
    // It belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl VirtualClock {
    /// A clock that stands at this time, in nanoseconds.
    pub fn at(now_ns: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now_ns)))
    }

    /// The time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The time as an `Instant`. Those of all virtual clocks count from one start.
    pub fn instant(&self) -> Instant {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        // An `Instant` cannot represent every time: the start is returned instead.
        start
            .checked_add(Duration::from_nanos(self.now_ns()))
            .unwrap_or(start)
    }

    /// Advances the clock to a time. An earlier time changes nothing.
    pub fn advance_to(&self, then_ns: u64) {
        self.0.fetch_max(then_ns, Ordering::AcqRel);
    }

    /// Advances the clock by a duration.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let later = |now: u64| Some(now.saturating_add(by));
        // `later` never returns `None`, so the update succeeds.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Sets the clock to any time, for a new run: no earlier reading of the clock may be in use.
    pub fn restart(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Release);
    }

    /// Makes [`now`], [`sleep`] and every [`Deadline`](crate::Deadline) of this thread use the
    /// clock until the guard is dropped.
    pub fn enter(&self) -> Entered {
        Entered {
            before: CURRENT.replace(Some(self.clone())),
            _thread: PhantomData,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// The time: of the virtual clock that this thread uses, otherwise the machine's.
pub fn now() -> Instant {
    let virtual_time = CURRENT.with_borrow(|clock| clock.as_ref().map(VirtualClock::instant));
    virtual_time.unwrap_or_else(Instant::now)
}

/// Sleeps: advances the virtual clock that this thread uses, otherwise blocks.
pub fn sleep(duration: Duration) {
    let is_virtual = CURRENT.with_borrow(|clock| {
        let clock = clock.as_ref();
        clock.inspect(|clock| clock.advance(duration)).is_some()
    });
    if !is_virtual {
        thread::sleep(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;

    #[test]
    fn virtual_deadline_passes_by_sleeps_alone() {
        let clock = VirtualClock::at(5);
        let entered = clock.enter();
        let deadline = Deadline::from(Duration::from_secs(3600));
        assert!(!deadline.has_passed());
        assert_eq!(
            deadline.remaining(Duration::from_secs(7200)),
            Duration::from_secs(3600)
        );
        let began = Instant::now();
        sleep(Duration::from_secs(3600));
        assert!(deadline.has_passed());
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no time of the machine"
        );
        clock.advance_to(7);
        assert_eq!(clock.now_ns(), 5 + 3_600_000_000_000, "it never goes back");
        drop(entered);
        assert!(now() <= Instant::now(), "the machine's clock again");
    }
}
