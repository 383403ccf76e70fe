//! Reduces a failing case: removes operations and rules while the case still fails.

use crate::case::Case;
use crate::run::{Failure, Runner};

/// The maximum number of runs to reduce one failure.
const MOST_RUNS: usize = 4000;

/// Returns the smallest failing case found, or `None` if `case` does not fail.
pub fn shrink(runner: &mut Runner, case: &Case) -> Option<Failure> {
    let violations = runner.run(case);
    if violations.is_empty() {
        return None;
    }
    let mut best = Failure {
        case: case.clone(),
        kept: (0..case.ops.len()).collect(),
        violations,
    };
    let all = best.case.ops.clone();
    gaudi_random::smallest(all.len(), MOST_RUNS, |kept| {
        let mut smaller = best.clone();
        smaller.kept = kept.to_vec();
        smaller.case.ops = kept.iter().map(|&at| all[at]).collect();
        smaller.violations = runner.run(&smaller.case);
        let fails = !smaller.violations.is_empty();
        if fails {
            best = smaller;
        }
        fails
    });
    for rule in (0..best.case.plan.rules.len()).rev() {
        let mut smaller = best.clone();
        smaller.case.plan.rules.remove(rule);
        smaller.violations = runner.run(&smaller.case);
        if !smaller.violations.is_empty() {
            best = smaller;
        }
    }
    Some(best)
}
