//! Runs cases on one device and says what became of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use gaudi_seam::DeviceSpec;
use serde::Serialize;

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, equal};
use crate::expect::{Expectation, expectation};
use crate::observe::{Log, Observation};

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed(Failure),
    /// It was not run: what would un-skip it.
    Skipped {
        /// What is missing.
        need: &'static str,
    },
    /// It can never be run here: why.
    Unsupported {
        /// Why.
        why: &'static str,
    },
    /// It failed, and that is known.
    ExpectedFailure {
        /// The gap.
        gap: &'static str,
    },
}

impl Outcome {
    /// One word for a table.
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

/// A case and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The case.
    pub id: &'static str,
    /// Its chip.
    pub chip: &'static str,
    /// Its source.
    pub source: &'static str,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took, in microseconds.
    pub took_us: u128,
}

/// All rows of a run, and their sums.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// In the order of running.
    pub rows: Vec<Row>,
}

impl Report {
    /// How many rows have an outcome like this.
    pub fn count(&self, like: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| like(&row.outcome)).count()
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// How many passed.
    pub fn passed(&self) -> usize {
        self.count(|outcome| *outcome == Outcome::Passed)
    }
}

/// Runs cases on the device of a spec, telling each as it is done.
pub fn run(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut tell: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    let mut bench = Bench::new(spec)?;
    let mut report = Report::default();
    for case in cases {
        let row = row(&mut bench, spec, case);
        tell(&row);
        report.rows.push(row);
    }
    Ok(report)
}

/// Runs one case, as far as the device's backend is expected to, and times it.
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
                "that it passes: take its row out of the table",
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

/// Runs every case, and tells what each asked and was answered. What the look at the ledger asks is not the case's.
pub(crate) fn observe(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut tell: impl FnMut(&'static Case, Result<(), Failure>, Observation),
) -> gaudi_seam::Result<()> {
    let log = Log::default();
    let mut bench = Bench::observed(spec, &log)?;
    for case in cases {
        let verdict = survive("the case", || {
            bench.io().map(drop).and_then(|()| (case.run)(&mut bench))
        });
        let seen = log.take();
        let left = bench.ledger();
        if left.is_err() {
            bench.close();
        }
        let _ = log.take();
        tell(case, verdict.and(left), seen);
    }
    Ok(())
}

/// Runs one case and looks at what it left behind; the next case finds a clean device either way.
fn one(bench: &mut Bench, case: &Case) -> Result<(), Failure> {
    let verdict = survive("the case", || {
        bench.io()?;
        let before = bench.resets()?;
        (case.run)(bench)?;
        // A device in reset counts when it is done.
        bench.io()?;
        equal(
            "whether the driver has reset the device by itself, as the case's tags say",
            bench.resets()? > before,
            case.has(Tag::Reset),
        )
    });
    let ledger = survive("the look at what the case left", || bench.ledger());
    if ledger.is_err() {
        // Closing is what makes the driver take back everything that was left.
        let _ = survive("the close after the case", || {
            bench.close();
            Ok(())
        });
    }
    // The case's own failure explains more than what it left because of it.
    verdict.and(ledger)
}

/// A backend in this process may panic; that fails the case and not the run.
fn survive(what: &str, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    // What is half done is the device's state, and the bench opens the device anew after a failure.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no words".to_owned());
        Err(Failure::new(what, "an end", format!("a panic: {said}")))
    })
}
