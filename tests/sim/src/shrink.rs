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
    let mut runs = 0;
    let mut part = best.kept.len().div_ceil(2);
    while part > 0 && runs < MOST_RUNS {
        let mut at = 0;
        let before = best.kept.len();
        while at < best.kept.len() && runs < MOST_RUNS {
            let end = (at + part).min(best.kept.len());
            let mut smaller = best.clone();
            smaller.kept.drain(at..end);
            smaller.case.ops.drain(at..end);
            runs += 1;
            smaller.violations = runner.run(&smaller.case);
            match smaller.violations.is_empty() {
                true => at = end,
                false => best = smaller,
            }
        }
        if part == 1 && best.kept.len() == before {
            break;
        }
        part = if part == 1 { 1 } else { part.div_ceil(2) };
    }
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
