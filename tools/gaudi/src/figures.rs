//! Measured figures: their clock, their units and their text in tables.

use std::time::Duration;

use anyhow::Result;

use crate::output::Output;

pub(crate) const CLOCK: &str = "CLOCK_MONOTONIC";

/// Returns the table cell of a verification: a failure is in capitals.
pub(crate) fn yes(is_good: bool) -> String {
    if is_good { "yes" } else { "NO" }.to_owned()
}

/// Returns `ns` in microseconds, as tables print it.
pub(crate) fn micros(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

/// Returns `amount` for each second of `time_ns`.
pub(crate) fn rate_of(amount: u64, time_ns: u64) -> u64 {
    let rate = u128::from(amount) * 1_000_000_000 / u128::from(time_ns.max(1));
    // A rate above 2^64 follows only from a time of almost 0: the largest number is used for it.
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Returns `time` in whole nanoseconds; `u64::MAX` (584 years) for a longer time.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Prints that this processor did the work, if a `mock` or a software NIC was measured.
pub(crate) fn note_software(output: &mut Output, mock: Option<&str>, software: bool) -> Result<()> {
    let (first, whose) = match (mock, software) {
        (Some(mock), _) => ("mock: ", mock),
        (None, true) => ("software: ", "the NIC"),
        (None, false) => return Ok(()),
    };
    let text = format!("{whose} is this processor's work; no figure above is hardware's");
    output.hanging(first, &text)
}
