//! The memory domain and its transport under random faults: no case breaks an invariant.

use std::time::Instant;

use gaudi_faults::{Case, Kind, Op, Stack};

mod common;

use common::cases_and_seed;

const CASES: u64 = 1500;

#[test]
fn memory_domain_breaks_no_invariant() {
    let (cases, seed) = cases_and_seed(CASES);
    let mut stack = Stack::default();
    let (mut faulty, mut calls) = (0_u64, 0);
    let begin = Instant::now();
    for number in 0..cases {
        let case = Case::on_domain(seed, number);
        let outcome = stack.run(&case).expect("the device opens");
        if let Some(violation) = outcome.violations.first() {
            let violation = violation.to_string();
            let (smallest, _) = stack.reduce(case, outcome);
            panic!("seed {seed} case {number} on a domain: {violation}\n{smallest}");
        }
        faulty += u64::from(outcome.has_fault());
        calls += outcome.calls;
    }
    let rate = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    let percent = faulty * 100 / cases;
    println!("seed={seed} cases={cases} faults in {percent} % calls={calls} {rate:.0} a minute");
    assert!(
        percent >= 80 || cases < CASES,
        "faults in {percent} % of the cases"
    );
}

/// The put is accepted and its completion has the error, which no flush has reported yet.
#[test]
fn bytes_of_refused_put_are_unknown() {
    let mut case = Case::on_domain(9202, 2_212_611);
    let plan = "submit:when=6:error=EBUSY;submit:when=4:full=queue";
    case.plan = plan.parse().expect("a plan");
    let ops = [
        (Kind::DomainAlloc, 51),
        (Kind::DomainAllocHost, 481),
        (Kind::PutZcopy, 0),
        (Kind::GetZcopy, 0),
        (Kind::PutBcopy, 43),
        (Kind::GetShort, 82),
        (Kind::PutZcopy, 0),
        (Kind::GetShort, 226),
    ];
    let op = |(kind, c)| Op { kind, a: 0, b: 0, c };
    case.ops = ops.map(op).into_iter().enumerate().collect();
    let outcome = Stack::default().run(&case).expect("the device opens");
    assert_eq!(outcome.met.len(), 2, "{case}");
    assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
}
