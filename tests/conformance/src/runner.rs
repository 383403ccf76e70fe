//! Runs cases on one device and reports each outcome.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use gaudi_seam::DeviceSpec;
use serde::Serialize;

use crate::bench::Bench;
use crate::case::{Case, Tag};
use crate::expect::{Expectation, expectation};
use crate::observe::{Log, Seen};
use crate::verdict::{Failure, equal};

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// The case failed.
    Failed(Failure),
    /// The case did not run.
    Skipped {
        /// The condition to run it.
        need: &'static str,
    },
    /// The backend can never run the case.
    Unsupported {
        /// The reason.
        why: &'static str,
    },
    /// The case failed because of a known gap.
    ExpectedFailure {
        /// The gap.
        gap: &'static str,
    },
}

impl Outcome {
    /// Returns the outcome's name in tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
            Self::Skipped { .. } => "skipped",
            Self::Unsupported { .. } => "unsupported",
            Self::ExpectedFailure { .. } => "expected failure",
        }
    }
}

/// A case and its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The case.
    pub id: &'static str,
    /// Its chip.
    pub chip: &'static str,
    /// Its source.
    pub source: &'static str,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its duration in microseconds.
    pub took_us: u128,
}

/// The rows of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// In the order of running.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns the number of rows whose outcome matches.
    pub fn count(&self, like: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| like(&row.outcome)).count()
    }

    /// Returns the number of failed cases.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// Returns the number of passed cases.
    pub fn passed(&self) -> usize {
        self.count(|outcome| *outcome == Outcome::Passed)
    }
}

/// Runs cases on the device of a spec. Calls `report_row` after each.
///
/// # Errors
/// Those of opening the control node.
pub fn run(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut report_row: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    let mut bench = Bench::new(spec)?;
    let mut report = Report::default();
    for case in cases {
        let row = row(&mut bench, spec, case);
        report_row(&row);
        report.rows.push(row);
    }
    Ok(report)
}

/// Runs one case if its backend supports it, and measures its duration.
pub(crate) fn row(bench: &mut Bench, spec: &DeviceSpec, case: &'static Case) -> Row {
    let begin = Instant::now();
    let outcome = match expectation(&spec.backend, case) {
        Expectation::Unsupported(why) => Outcome::Unsupported { why },
        Expectation::Skip(need) => Outcome::Skipped { need },
        Expectation::Pass => match one(bench, case) {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure),
        },
        Expectation::Fail(gap) => match one(bench, case) {
            Err(_) => Outcome::ExpectedFailure { gap },
            Ok(()) => Outcome::Failed(Failure::new(
                "the case, which the table of exceptions expects to fail",
                format!("a failure ({gap})"),
                "that it passes: remove its row from the table",
            )),
        },
    };
    Row {
        id: case.id,
        chip: case.chip,
        source: case.source,
        outcome,
        took_us: begin.elapsed().as_micros(),
    }
}

/// Runs every case and reports its operations and answers, without those of the bench's checks.
pub(crate) fn observe(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut report_row: impl FnMut(&'static Case, Result<(), Failure>, BTreeSet<Seen>),
) -> gaudi_seam::Result<()> {
    let log = Log::default();
    let mut bench = Bench::observed(spec, &log)?;
    for case in cases {
        let verdict = catch_panic("the case", || {
            bench.io().map(drop).and_then(|()| (case.run)(&mut bench))
        });
        let seen = log.take();
        let left = bench.ledger();
        if left.is_err() {
            bench.close();
        }
        let _ = log.take();
        report_row(case, verdict.and(left), seen);
    }
    Ok(())
}

/// Runs one case and checks what it left. The next case always starts with a clean device.
fn one(bench: &mut Bench, case: &Case) -> Result<(), Failure> {
    let verdict = catch_panic("the case", || {
        bench.io()?;
        let before = bench.resets()?;
        (case.run)(bench)?;
        // The driver counts a reset when it ends, so wait for it.
        bench.io()?;
        equal(
            "whether the driver reset the device, as the case's tags declare",
            bench.resets()? > before,
            case.has(Tag::Reset),
        )
    });
    let ledger = catch_panic("the check of what the case left", || bench.ledger());
    if ledger.is_err() {
        // The driver frees everything that was left at the close.
        let _ = catch_panic("the close after the case", || {
            bench.close();
            Ok(())
        });
    }
    // The case's own failure explains more than the objects that it left because of it.
    verdict.and(ledger)
}

/// Turns a panic of a backend in this process into a failure of the case.
fn catch_panic(what: &str, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    // Only the device's state may be inconsistent, and the bench reopens it after a failure.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned());
        Err(Failure::new(what, "no panic", format!("a panic: {message}")))
    })
}
