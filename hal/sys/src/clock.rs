//! The machine's clocks (clock_gettime(2)).

use std::time::Duration;

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
