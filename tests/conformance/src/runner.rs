//! Runs cases on one device and says what became of each.

use std::collections::BTreeSet;
use std::time::Instant;

use gaudi_seam::DeviceSpec;

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, equal};
use crate::expect::{Expectation, expectation};
use crate::observe::{Log, Seen};

/// Outcome of a case.
pub type Outcome = gaudi_harness::Outcome<Failure>;
/// A case and its outcome.
pub type Row = gaudi_harness::Row<Failure>;
/// Outcomes of a run.
pub type Report = gaudi_harness::Report<Failure>;

/// Runs cases on the device of a spec, telling each as it is done.
pub fn run(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut tell: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    let mut bench = Bench::new(spec)?;
    let mut report = Report {
        name: spec.to_string(),
        rows: Vec::new(),
    };
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
        Expectation::Unsupported(why) => Outcome::Unsupported { why: why.into() },
        Expectation::Skip(need) => Outcome::Skipped { need: need.into() },
        Expectation::Pass => match one(bench, case) {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure),
        },
        Expectation::Fail(gap) => match one(bench, case) {
            Err(_) => Outcome::ExpectedFailure { gap: gap.into() },
            Ok(()) => Outcome::Failed(Failure::new(
                "the case, which the table of exceptions expects to fail",
                format!("a failure ({gap})"),
                "that it passes: take its row out of the table",
            )),
        },
    };
    Row {
        id: case.id,
        group: case.group,
        source: case.source,
        outcome,
        took_us: begin.elapsed().as_micros(),
    }
}

/// Runs every case, and tells what each asked and was answered. What the look at the ledger asks is not the case's.
pub(crate) fn observe(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut tell: impl FnMut(&'static Case, Result<(), Failure>, BTreeSet<Seen>),
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
    // The state of the device is unknown after a panic. The bench opens it anew after a failure.
    gaudi_harness::survive(run)
        .unwrap_or_else(|panic| Err(Failure::new(what, "an end", format!("a panic: {panic}"))))
}
