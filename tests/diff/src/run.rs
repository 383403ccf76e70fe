//! Runs both sides in lockstep and compares the answers to each operation.

use std::time::Instant;

use gaudi_random::smallest;
use gaudi_seam::{DeviceSpec, Result};

use crate::arena::Arena;
use crate::compare::{RowHits, compare};
use crate::fixtures::fault;
use crate::op::Op;
use crate::outcome::Outcome;
use crate::plan;
use crate::report::{Finding, Report};
use crate::side::Side;

/// The maximum number of runs to reduce one difference.
const MAX_RUNS: usize = 60;
/// The number of differences after which a run ends.
const MAX_FINDINGS: usize = 40;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed of the sequences.
    pub seed: u64,
    /// The number of the first sequence.
    pub first: u64,
    /// The number of sequences.
    pub cases: u64,
    /// The number of operations in each sequence.
    pub ops: usize,
}

/// A difference and its position in the sequence.
struct Difference {
    at: usize,
    what: String,
    outcomes: [Outcome; 2],
}

impl Difference {
    /// Returns what identifies the difference, without values.
    fn words(&self) -> [String; 3] {
        let field = self.what.split(':').next().unwrap_or_default().to_owned();
        let [first, second] = &self.outcomes;
        [field, first.verdict().to_owned(), second.verdict().to_owned()]
    }
}

struct Pair<'a> {
    sides: [Side<'a>; 2],
    hits: RowHits,
}

impl Pair<'_> {
    /// Runs a sequence to its end, or to an operation that only one side refused, and releases its
    /// objects. Returns every difference.
    fn run(
        &mut self,
        ops: &[(u32, Op)],
        mut report_to: impl FnMut(&Op, usize, &Outcome),
    ) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for (at, (number, op)) in ops.iter().enumerate() {
            let outcomes = self.sides.each_mut().map(|side| side.perform(*number, op));
            for (side, outcome) in outcomes.iter().enumerate() {
                report_to(op, side, outcome);
            }
            let verdicts_differ = outcomes[0].verdict() != outcomes[1].verdict();
            if let Some(what) = compare(op, &outcomes[0], &outcomes[1], &mut self.hits) {
                differences.push(Difference { at, what, outcomes });
                if verdicts_differ {
                    break;
                }
            } else if verdicts_differ {
                // A known difference. Neither side continues with an object that the other lacks.
                self.sides.iter_mut().for_each(|side| side.discard(*number));
            }
        }
        let [first, second] = self.sides.each_mut().map(|side| side.clean());
        if let (Ok(()), Ok(())) = (&first, &second) {
            return Ok(differences);
        }
        // An object that only one side cannot release is a difference, too.
        if first.is_ok() != second.is_ok() && differences.is_empty() {
            differences.push(Difference {
                at: ops.len().saturating_sub(1),
                what: "the release of objects at the end".to_owned(),
                outcomes: [Outcome::of(first), Outcome::of(second)],
            });
        }
        self.reopen()?;
        Ok(differences)
    }

    fn reopen(&mut self) -> Result<()> {
        self.sides.iter_mut().try_for_each(Side::reopen)
    }

    /// Returns a small part of a sequence with the same difference; the whole sequence if the
    /// difference does not occur again.
    fn shrink(&mut self, number: u64, ops: &[(u32, Op)], first: Difference) -> Result<Finding> {
        let ops = &ops[..=first.at];
        let (kind, words) = (ops[first.at].1.kind(), first.words());
        let mut best = (ops.to_vec(), first);
        let mut broken = None;
        let mut fails = |part: Vec<(u32, Op)>| match self.run(&part, |_, _, _| {}) {
            Ok(differences) => {
                let same = |other: &Difference| part[other.at].1.kind() == kind && other.words() == words;
                let found = differences.into_iter().find(same);
                if let Some(difference) = found {
                    best = (part[..=difference.at].to_vec(), difference);
                    return true;
                }
                false
            }
            Err(error) => {
                broken = Some(error);
                false
            }
        };
        // The operations that it refers to, directly or not, usually suffice.
        let needed = needed(ops);
        let ops: Vec<_> = match fails(needed.clone()) {
            true => needed,
            false => ops.to_vec(),
        };
        smallest(ops.len(), MAX_RUNS, |kept| {
            fails(kept.iter().map(|&at| ops[at].clone()).collect())
        });
        if let Some(error) = broken {
            return Err(error);
        }
        let (ops, difference) = best;
        Ok(Finding {
            number,
            ops,
            what: difference.what,
            outcomes: difference.outcomes,
        })
    }
}

/// Returns the last operation and those that it refers to, directly or not.
fn needed(ops: &[(u32, Op)]) -> Vec<(u32, Op)> {
    let mut kept: Vec<(u32, Op)> = Vec::new();
    for (number, op) in ops.iter().rev() {
        if kept.is_empty() || kept.iter().any(|(_, later)| later.names().contains(number)) {
            kept.push((*number, op.clone()));
        }
    }
    kept.reverse();
    kept
}

/// Runs the sequences of a plan on two devices and compares every answer. The report calls the
/// first device the mock and the second the driver. Calls `report_to` after each sequence.
///
/// # Errors
/// Those of opening a device, for the first time or again. Differences are in the report.
pub fn run(plan: &Plan, specs: [&DeviceSpec; 2], mut report_to: impl FnMut(&Report)) -> Result<Report> {
    let begin = Instant::now();
    let arena = Arena::new().map_err(fault)?;
    let mut pair = Pair {
        sides: [Side::new(specs[0], &arena)?, Side::new(specs[1], &arena)?],
        hits: RowHits::default(),
    };
    let mut report = Report::new(plan.seed, [specs[0].to_string(), specs[1].to_string()]);
    let mut kinds = Vec::new();
    for number in plan.first..plan.first + plan.cases {
        let ops: Vec<_> = (0_u32..)
            .zip(plan::sequence(plan.seed, number, plan.ops))
            .collect();
        let differences = pair.run(&ops, |op, side, outcome| report.count(op, side, outcome))?;
        report.sequences += 1;
        for difference in differences {
            // One case of each kind of difference is enough.
            let class = (ops[difference.at].1.kind(), difference.words());
            if kinds.contains(&class) {
                report.again += 1;
            } else {
                kinds.push(class);
                report.found.push(pair.shrink(number, &ops, difference)?);
            }
        }
        report.hits = pair.hits.clone();
        report.took = begin.elapsed();
        report_to(&report);
        if report.found.len() >= MAX_FINDINGS {
            break;
        }
    }
    Ok(report)
}
