//! Both sides in step: an operation on the one, the same on the other, and the two answers compared.

use std::time::Instant;

use gaudi_random::smallest;
use gaudi_seam::{DeviceSpec, Result};

use crate::arena::Arena;
use crate::bench::fault;
use crate::compare::{Met, compare};
use crate::op::Op;
use crate::outcome::Outcome;
use crate::plan;
use crate::report::{Found, Report};
use crate::side::Side;

/// Runs that one difference may cost at most.
const MOST_RUNS: usize = 60;
/// Differences after which a run ends.
const MOST_FOUND: usize = 40;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the sequences are made from.
    pub seed: u64,
    /// The first sequence's number.
    pub first: u64,
    /// How many.
    pub cases: u64,
    /// Operations in each.
    pub ops: usize,
}

/// Where a sequence differed.
struct Difference {
    at: usize,
    what: String,
    outcomes: [Outcome; 2],
}

impl Difference {
    /// What it is, without the values in it.
    fn words(&self) -> [String; 3] {
        let field = self.what.split(':').next().unwrap_or_default().to_owned();
        let [first, second] = &self.outcomes;
        [field, first.verdict().to_owned(), second.verdict().to_owned()]
    }
}

struct Pair<'a> {
    sides: [Side<'a>; 2],
    met: Met,
}

impl Pair<'_> {
    /// Runs a sequence to its end, or to an operation that one side refused and the other did not, and cleans up after it. Tells every
    /// difference on the way.
    fn run(
        &mut self,
        ops: &[(u32, Op)],
        mut tell: impl FnMut(&Op, usize, &Outcome),
    ) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for (at, (number, op)) in ops.iter().enumerate() {
            let outcomes = self.sides.each_mut().map(|side| side.perform(*number, op));
            for (side, outcome) in outcomes.iter().enumerate() {
                tell(op, side, outcome);
            }
            let parted = outcomes[0].verdict() != outcomes[1].verdict();
            if let Some(what) = compare(op, &outcomes[0], &outcomes[1], &mut self.met) {
                differences.push(Difference { at, what, outcomes });
                if parted {
                    break;
                }
            } else if parted {
                // As the table has it. Neither side goes on with what one of them alone was given.
                self.sides.iter_mut().for_each(|side| side.forget(*number));
            }
        }
        let [first, second] = self.sides.each_mut().map(|side| side.clean());
        if let (Ok(()), Ok(())) = (&first, &second) {
            return Ok(differences);
        }
        // What is left behind on one side alone is a difference too.
        if first.is_ok() != second.is_ok() && differences.is_empty() {
            differences.push(Difference {
                at: ops.len().saturating_sub(1),
                what: "what can be given back in the end".to_owned(),
                outcomes: [Outcome::of(first), Outcome::of(second)],
            });
        }
        self.reopen()?;
        Ok(differences)
    }

    fn reopen(&mut self) -> Result<()> {
        self.sides.iter_mut().try_for_each(Side::reopen)
    }

    /// A small part of a sequence that differs in the same way, or all of it where it does so no more.
    fn shrink(&mut self, number: u64, ops: &[(u32, Op)], first: Difference) -> Result<Found> {
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
        // What it names, and what that names, is mostly all that it needs.
        let needed = needed(ops);
        let ops: Vec<_> = match fails(needed.clone()) {
            true => needed,
            false => ops.to_vec(),
        };
        smallest(ops.len(), MOST_RUNS, |kept| {
            fails(kept.iter().map(|&at| ops[at].clone()).collect())
        });
        if let Some(error) = broken {
            return Err(error);
        }
        let (ops, difference) = best;
        Ok(Found {
            number,
            ops,
            what: difference.what,
            outcomes: difference.outcomes,
        })
    }
}

/// The last operation, those that it names, and those that these name.
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

/// Runs the sequences of a plan on two devices and compares every answer. The first is taken for the mock in the report, the second for the
/// driver. `tell` hears of the run from time to time.
///
/// An error is a device that could not be opened, again or at all; what is answered wrongly is in the report.
pub fn run(plan: &Plan, specs: [&DeviceSpec; 2], mut tell: impl FnMut(&Report)) -> Result<Report> {
    let begin = Instant::now();
    let arena = Arena::new().map_err(fault)?;
    let mut pair = Pair {
        sides: [Side::new(specs[0], &arena)?, Side::new(specs[1], &arena)?],
        met: Met::default(),
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
            // What differs in one place does so again; one case of it is enough.
            let class = (ops[difference.at].1.kind(), difference.words());
            if kinds.contains(&class) {
                report.again += 1;
            } else {
                kinds.push(class);
                report.found.push(pair.shrink(number, &ops, difference)?);
            }
        }
        report.met = pair.met.clone();
        report.took = begin.elapsed();
        tell(&report);
        if report.found.len() >= MOST_FOUND {
            break;
        }
    }
    Ok(report)
}
