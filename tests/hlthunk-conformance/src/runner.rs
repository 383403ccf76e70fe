//! Runs cases on one device and reports each outcome.

use std::time::Instant;

use gaudi_conformance::{Failure, Verdict};
use gaudi_harness::{steady, survive};

use crate::bench::Bench;
use crate::case::Case;
use crate::differences::{Expectation, expectation};

/// The outcome of a case.
pub type Outcome = gaudi_harness::Outcome<Failure>;

/// Runs a case if its backend supports it. Returns the outcome and the duration.
pub fn run(bench: &mut Bench, case: &Case) -> (Outcome, std::time::Duration) {
    let begin = Instant::now();
    let outcome = match expectation(bench.backend, case) {
        Expectation::Unsupported(why) => Outcome::Unsupported { why: why.into() },
        Expectation::Skip(need) => Outcome::Skipped { need: need.into() },
        Expectation::Pass => match steady(case.id, || one(bench, case)) {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure),
        },
    };
    (outcome, begin.elapsed())
}

/// Runs a case and checks for leaks. The next case starts with a clean device.
fn one(bench: &mut Bench, case: &Case) -> Verdict {
    let verdict = catch("the case", || {
        bench.begin(case)?;
        (case.run)(bench)
    });
    let ledger = catch("the leak check", || bench.ledger(case));
    if ledger.is_err() {
        // The driver frees everything at close.
        let _ = catch("the close after the case", || bench.close());
    }
    // The case's own failure is more informative than the leaks that it caused.
    verdict.and(ledger)
}

fn catch(what: &str, run: impl FnOnce() -> Verdict) -> Verdict {
    survive(run).unwrap_or_else(|panic| Err(Failure::new(what, "an end", format!("a panic: {panic}"))))
}
