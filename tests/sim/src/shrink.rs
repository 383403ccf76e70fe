//! Makes a failing case small: operations and rules are left out as long as it still fails.

use crate::case::Case;
use crate::run::{Failure, Runner};

/// Runs that one failure may cost at most.
const MOST_RUNS: usize = 4000;

/// The smallest case that was found to fail, or nothing where it does not fail.
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
