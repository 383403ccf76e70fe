//! The clock of a session: the processor's time stamp counter where the kernel uses it too,
//! otherwise CLOCK_MONOTONIC. The tracer converts the counter's values to nanoseconds.

#![allow(unsafe_code, reason = "reads the clock, also in signal handlers")]

use std::fs;

use nix::libc;

/// Returns CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the timespec. Linux always has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Returns the value of the counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. A program that disables it (prctl(2),
    // PR_SET_TSC) cannot call clock_gettime(2) of the vDSO either.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Never called: [`has_counter`] is false.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn counter() -> u64 {
    monotonic_ns()
}

/// Returns whether the counter has a constant rate on all processors, also when they sleep. The
/// kernel decides so, and then uses it itself.
pub(crate) fn has_counter() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let cpus = text("/proc/cpuinfo");
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    let has = |flag: &str| flags.is_some_and(|line| line.split(' ').any(|word| word == flag));
    cfg!(target_arch = "x86_64") && has("constant_tsc") && has("nonstop_tsc") && text(SOURCE).trim() == "tsc"
}

/// A value of the counter, and the time at which it was read.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ticks: u64,
    ns: u64,
}

impl Pair {
    /// Reads both, as close to each other as three tries allow.
    fn now() -> Self {
        let read = |_| {
            let before = counter();
            let ns = monotonic_ns();
            let took = counter().saturating_sub(before);
            (
                took,
                Self {
                    ticks: before + took / 2,
                    ns,
                },
            )
        };
        let best = (0..3).map(read).min_by_key(|&(took, _)| took);
        best.map_or(Self { ticks: 0, ns: 0 }, |(_, pair)| pair)
    }
}

/// The length of the interval from which the rate is computed, in nanoseconds: the kernel adjusts
/// the rate of its clock.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Converts values of the counter to nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    first: Pair,
    middle: Pair,
    /// Nanoseconds of a tick, times 2^32.
    rate: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let first = Pair::now();
        let mut clock = Self {
            first,
            middle: first,
            rate: 1 << 32,
        };
        // A first rate; the interval is longer when the first record is read.
        while Pair::now().ns.saturating_sub(first.ns) < 100_000 {}
        clock.update();
        clock
    }

    /// Computes the rate anew.
    pub(crate) fn update(&mut self) {
        let now = Pair::now();
        let ticks = now.ticks.saturating_sub(self.first.ticks);
        let ns = now.ns.saturating_sub(self.first.ns);
        if ticks > 0 {
            let rate = (u128::from(ns) << 32) / u128::from(ticks);
            self.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
        if now.ns.saturating_sub(self.middle.ns) > INTERVAL_NS {
            self.first = self.middle;
            self.middle = now;
        }
    }

    /// Returns the time of a value. Any value is accepted: the program writes it.
    pub(crate) fn ns(&self, ticks: u64) -> u64 {
        let scaled = |ticks: u64| {
            let ns = (u128::from(ticks) * u128::from(self.rate)) >> 32;
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        match ticks.checked_sub(self.first.ticks) {
            Some(after) => self.first.ns.saturating_add(scaled(after)),
            None => self.first.ns.saturating_sub(scaled(self.first.ticks - ticks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_follows_the_clock() {
        if !has_counter() {
            return gaudi_harness::skip("a time stamp counter that the kernel uses");
        }
        let mut clock = Clock::new();
        for _ in 0..20 {
            let before = monotonic_ns();
            let ticks = counter();
            let after = monotonic_ns();
            std::thread::sleep(std::time::Duration::from_millis(1));
            clock.update();
            let ns = clock.ns(ticks);
            // The two clocks are read within 100 ns of each other, or later on a busy machine. A
            // wrong rate differs by milliseconds.
            assert!(
                before.saturating_sub(100_000) <= ns && ns <= after + 100_000,
                "{before} <= {ns} <= {after}"
            );
        }
    }

    #[test]
    fn hostile_values_do_not_overflow() {
        let clock = Clock::new();
        for ticks in [0, 1, u64::MAX / 2, u64::MAX] {
            let _: u64 = clock.ns(ticks);
        }
    }
}
