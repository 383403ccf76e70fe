//! Tables of measurements: each column is described once, with its head and its cells.

use std::time::Duration;

use anyhow::Result;

use crate::output::Output;

pub(crate) const CLOCK: &str = "CLOCK_MONOTONIC";

/// A column's head, whether its cells are numbers, and the cell of a row.
pub(crate) type Column<'a, T> = (&'a str, bool, &'a dyn Fn(&T) -> String);

pub(crate) fn table<'r, T: 'r>(
    output: &mut Output,
    rows: impl IntoIterator<Item = &'r T>,
    columns: &[Column<'_, T>],
) -> Result<()> {
    let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let numbers: Vec<usize> = (0..columns.len()).filter(|&at| columns[at].1).collect();
    let cells = |row| columns.iter().map(|column| column.2(row)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    output.table(&heads, &numbers, &rows)
}

/// A verdict: a wrong one stands out.
pub(crate) fn yes(is_good: bool) -> String {
    if is_good { "yes" } else { "NO" }.to_owned()
}

/// A time as tables print it.
pub(crate) fn micros(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

/// An amount over a time, for a second.
pub(crate) fn rate_of(amount: u64, time_ns: u64) -> u64 {
    let rate = u128::from(amount) * 1_000_000_000 / u128::from(time_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Whole nanoseconds. A longer time than 584 years is that long.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Prints what the figures are of, if a `mock` or a software NIC did the work.
pub(crate) fn note_software(output: &mut Output, mock: Option<&str>, software: bool) -> Result<()> {
    let (first, whose) = match (mock, software) {
        (Some(mock), _) => ("mock: ", mock),
        (None, true) => ("software: ", "the NIC"),
        (None, false) => return Ok(()),
    };
    let text = format!("{whose} is this processor's work; no figure above is hardware's");
    output.hanging(first, &text)
}
