//! Both sides in step: an operation on the one, the same on the other, and the two answers compared.

use std::time::Instant;

use gaudi_random::smallest;
use gaudi_seam::{DeviceSpec, Result};

use crate::arena::Arena;
use crate::bench::fault;
use crate::compare::{Comparison, Met, compare};
use crate::op::Op;
use crate::outcome::Outcome;
use crate::plan;
use crate::report::{Found, Report};
use crate::side::Side;

/// Runs that one difference may cost at most: on the driver each begins with a close.
const MOST_RUNS: usize = 250;
/// Differences after which a run ends.
const MOST_FOUND: usize = 12;

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

struct Pair<'a> {
    sides: [Side<'a>; 2],
    met: Met,
}

impl Pair<'_> {
    /// Runs a sequence to its end or to its first difference, and cleans up after it.
    fn run(
        &mut self,
        ops: &[(u32, Op)],
        mut tell: impl FnMut(&Op, usize, &Outcome),
    ) -> Result<Option<Difference>> {
        let mut difference = None;
        for (at, (number, op)) in ops.iter().enumerate() {
            let outcomes = self.sides.each_mut().map(|side| side.perform(*number, op));
            for (side, outcome) in outcomes.iter().enumerate() {
                tell(op, side, outcome);
            }
            if std::env::var("DBG").is_ok() {
                eprintln!("{number} {op:?} -> {}", outcomes[0]);
                if outcomes[0].verdict() == "EBUSY" && !matches!(op, Op::SecondOpen) { panic!("reset") }
            }
            match compare(op, &outcomes[0], &outcomes[1], &mut self.met) {
                Comparison::Same => {}
                Comparison::Excused => self.sides.iter_mut().for_each(|side| side.forget(*number)),
                Comparison::Different(what) => {
                    difference = Some(Difference { at, what, outcomes });
                    break;
                }
            }
        }
        let [first, second] = self.sides.each_mut().map(|side| side.clean());
        if let (Ok(()), Ok(())) = (&first, &second) {
            return Ok(difference);
        }
        // What is left behind on one side alone is a difference too.
        if first.is_ok() != second.is_ok() && difference.is_none() {
            difference = Some(Difference {
                at: ops.len().saturating_sub(1),
                what: "what can be given back in the end".to_owned(),
                outcomes: [Outcome::of(first), Outcome::of(second)],
            });
        }
        self.reopen()?;
        Ok(difference)
    }

    fn reopen(&mut self) -> Result<()> {
        self.sides.iter_mut().try_for_each(Side::reopen)
    }

    /// The smallest part of a sequence that differs in the same way, or all of it where it does so no more.
    fn shrink(&mut self, number: u64, ops: &[(u32, Op)], first: Difference) -> Result<Found> {
        let kind = ops[first.at].1.kind();
        let ops = &ops[..=first.at];
        let mut best = (ops.to_vec(), first);
        let mut broken = None;
        smallest(ops.len(), MOST_RUNS, |kept| {
            if broken.is_some() {
                return false;
            }
            let part: Vec<_> = kept.iter().map(|&at| ops[at].clone()).collect();
            let answer = self.reopen().and_then(|()| self.run(&part, |_, _, _| {}));
            match answer {
                Ok(Some(difference))
                    if part[difference.at].1.kind() == kind
                        && same_words(&difference.outcomes, &best.1.outcomes) =>
                {
                    best = (part[..=difference.at].to_vec(), difference);
                    true
                }
                Ok(_) => false,
                Err(error) => {
                    broken = Some(error);
                    false
                }
            }
        });
        if let Some(error) = broken {
            return Err(error);
        }
        self.reopen()?;
        let (ops, difference) = best;
        Ok(Found {
            number,
            ops,
            what: difference.what,
            outcomes: difference.outcomes,
        })
    }
}

fn same_words(one: &[Outcome; 2], other: &[Outcome; 2]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.verdict() == other.verdict())
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
        let ops: Vec<_> = (0_u32..).zip(plan::sequence(plan.seed, number, plan.ops)).collect();
        let difference = pair.run(&ops, |op, side, outcome| report.count(op, side, outcome))?;
        report.sequences += 1;
        if let Some(difference) = difference {
            // What differs in one place does so again; one case of it is enough.
            let class = (ops[difference.at].1.kind(), difference.what.clone());
            if !kinds.contains(&class) {
                kinds.push(class);
                report.found.push(pair.shrink(number, &ops, difference)?);
            } else {
                report.again += 1;
                pair.reopen()?;
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
