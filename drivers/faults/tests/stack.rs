//! The library under random faults: no case breaks an invariant, and every pair of verdict and
//! operation that can meet does.

use std::time::Instant;

use gaudi_faults::{Case, Coverage, Kind, Op, Stack};
use gaudi_seam::fault::Plan;

mod common;

use common::cases_and_seed;

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 6000;
/// Those with real descriptors, which take longer.
const CASES_WITH_DESCRIPTORS: u64 = 1500;

#[test]
fn stack_breaks_no_invariant() {
    let (cases, seed) = cases_and_seed(CASES);
    let mut stack = Stack::new().expect("made");
    let (mut faulty, mut calls, mut coverage) = (0_u64, 0, Coverage::default());
    let begin = Instant::now();
    for number in 0..cases {
        let case = Case::generate(seed, number);
        let outcome = stack.run(&case).expect("the device opens");
        if let Some(violation) = outcome.violations.first() {
            let violation = violation.to_string();
            let (smallest, _) = stack.reduce(case, outcome);
            panic!("seed {seed} case {number}: {violation}\n{smallest}");
        }
        faulty += u64::from(outcome.has_fault());
        calls += outcome.calls;
        coverage.add(&outcome);
    }
    let rate = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    // The operations that need descriptors: their faults are in the same table.
    for number in 0..CASES_WITH_DESCRIPTORS {
        let case = Case::with_descriptors(seed, number);
        let outcome = stack.run(&case).expect("the device opens");
        if let Some(violation) = outcome.violations.first() {
            let violation = violation.to_string();
            let (smallest, _) = stack.reduce(case, outcome);
            panic!("seed {seed} case {number} with descriptors: {violation}\n{smallest}");
        }
        coverage.add(&outcome);
    }
    let pairs = coverage.pairs();
    let can_meet = pairs.iter().filter(|pair| pair.never.is_none()).count();
    println!(
        "{} of {can_meet} pairs met; {} have a reason why they never meet",
        can_meet - coverage.missing().len(),
        pairs.len() - can_meet
    );
    let percent = faulty * 100 / cases;
    println!("seed={seed} cases={cases} faults in {percent} % calls={calls} {rate:.0} a minute");
    assert!(
        percent >= 90 || cases < CASES,
        "faults in {percent} % of the cases"
    );
    let missing = coverage.missing();
    assert!(missing.is_empty() || cases < CASES, "{missing:#?}");
}

#[test]
fn case_repeats_exactly() {
    let mut stack = Stack::new().expect("made");
    for number in 0..50 {
        let case = Case::generate(3, number);
        let first = stack.run(&case).expect("runs");
        let again = stack.run(&case).expect("runs");
        assert_eq!(
            (first.calls, first.took, first.met),
            (again.calls, again.took, again.met),
            "{case}"
        );
    }
}

/// A poll that a fault refuses makes the library ask a second time.
#[test]
fn drain_knows_what_second_poll_learned() {
    let mut case = Case::generate(7002, 4_237_445);
    // The plan is written down, since it must not depend on the rules that seeds make.
    let plan = "cb_create:when=1:full=memory;wait_cs:when=3:timeout;wait_cs:when=1:error=EFAULT";
    case.plan = plan.parse().expect("a plan");
    let outcome = Stack::new()
        .and_then(|mut stack| stack.run(&case))
        .expect("the device opens");
    assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
}

/// The chip, whose work a seed orders, has not executed the copy when its destination is dropped.
#[test]
fn full_card_is_no_violation_during_copies() {
    let mut case = Case::with_descriptors(5006, 596_671);
    case.plan = Plan::default();
    let ops = [
        (Kind::AllocHost, 0),
        (Kind::AllocExclusive, 3267),
        (Kind::AllocExclusive, 11464),
        (Kind::CopyToDevice, 0),
        (Kind::AllocExclusive, 0),
        (Kind::AllocExclusive, 0),
        (Kind::DropBuffer, 189),
        (Kind::Alloc, 0),
    ];
    let op = |(kind, a)| Op { kind, a, b: 0, c: 0 };
    case.ops = ops.map(op).into_iter().enumerate().collect();
    let outcome = Stack::new()
        .and_then(|mut stack| stack.run(&case))
        .expect("the device opens");
    assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
}
