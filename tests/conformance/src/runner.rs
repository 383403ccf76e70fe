//! Runs cases on one device and reports each outcome.

use std::time::Instant;

use gaudi_harness::steady;
use gaudi_seam::DeviceSpec;

use crate::bench::Bench;
use crate::case::{Case, Tag};
use crate::expect::{Expectation, expectation};
use crate::observe::{Log, Observation};
use crate::verdict::{Failure, equal};

/// Outcome of a case.
pub type Outcome = gaudi_harness::Outcome<Failure>;
/// A case and its outcome.
pub type Row = gaudi_harness::Row<Failure>;
/// Outcomes of a run.
pub type Report = gaudi_harness::Report<Failure>;

/// Runs cases on the device of a spec. Takes each from `cases` as it begins, and calls `report_row`
/// after it.
///
/// # Errors
/// Those of opening the control node.
pub fn run(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    report_row: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    Ok(run_on(Bench::new(spec)?, spec, cases, report_row))
}

/// As [`run`], on the kernel backend whose driver is the device: every request and answer goes
/// through the bytes of its ioctl.
///
/// # Errors
/// Those of opening the control node.
pub fn run_over_bytes(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    report_row: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    Ok(run_on(Bench::over_bytes(spec)?, spec, cases, report_row))
}

/// As [`run`], on a mock with private memory that restarts before each case.
///
/// # Errors
/// `Unsupported` if the spec's device is not a mock; those of making the mock.
pub fn run_restarted(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    report_row: impl FnMut(&Row),
) -> gaudi_seam::Result<Report> {
    Ok(run_on(Bench::restarted(spec)?, spec, cases, report_row))
}

fn run_on(
    mut bench: Bench,
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut report_row: impl FnMut(&Row),
) -> Report {
    let mut report = Report {
        name: spec.to_string(),
        rows: Vec::new(),
    };
    for case in cases {
        let restarted = bench.restart();
        let mut row = row(&mut bench, spec, case);
        if let Err(error) = restarted {
            row.outcome = Outcome::Failed(error.into());
        }
        report_row(&row);
        report.rows.push(row);
    }
    report
}

/// Runs one case if its backend supports it, and measures its duration.
pub(crate) fn row(bench: &mut Bench, spec: &DeviceSpec, case: &'static Case) -> Row {
    let begin = Instant::now();
    let outcome = match expectation(&spec.backend, case) {
        Expectation::Unsupported(why) => Outcome::Unsupported { why: why.into() },
        Expectation::Skip(need) => Outcome::Skipped { need: need.into() },
        Expectation::Pass => match steady(case.id, || one(bench, case)) {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure),
        },
        Expectation::Fail(gap) => match one(bench, case) {
            Err(_) => Outcome::ExpectedFailure { gap: gap.into() },
            Ok(()) => Outcome::Failed(Failure::new(
                "the case, which the table of exceptions expects to fail",
                format!("a failure ({gap})"),
                "that it passes: remove its row from the table",
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

/// Runs every case and reports its operations and answers, without those of the bench's checks.
pub(crate) fn observe(
    spec: &DeviceSpec,
    cases: impl IntoIterator<Item = &'static Case>,
    mut report_row: impl FnMut(&'static Case, Result<(), Failure>, Observation),
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
    // The state of the device is unknown after a panic. The bench opens it anew after a failure.
    gaudi_harness::survive(run)
        .unwrap_or_else(|panic| Err(Failure::new(what, "an end", format!("a panic: {panic}"))))
}

#[cfg(test)]
mod tests {
    use gaudi_seam::KernelIoExt as _;
    use gaudi_uapi::info::HlOpenStatsInfo;

    use super::*;

    /// On the real driver, a close resets the card: seconds for each case.
    #[test]
    fn cases_share_one_open() {
        let spec = "mock:gaudi2?clock=virtual&name=shared-open"
            .parse()
            .expect("a spec");
        let control = gaudi_hal::control(&spec).expect("it opens");
        let ids = ["wait.counter.reached-already", "wait.counter.poll-not-reached"];
        let cases = crate::cases::all().filter(|case| ids.contains(&case.id));
        let report = run(&spec, cases, |_| {}).expect("the cases run");
        assert_eq!(report.rows.len(), ids.len(), "the cases that ran");
        let stats: HlOpenStatsInfo = control.query().expect("it answers");
        assert_eq!(stats.open_counter, 1, "the opens of both cases");
    }
}
