//! The memory domain and its transport under random faults: no case breaks an invariant.

use std::time::Instant;

use gaudi_faults::{Case, Stack};

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
            let smallest = stack.reduce(case);
            panic!("seed {seed} case {number} on a domain: {violation}\n{smallest}");
        }
        faulty += u64::from(!outcome.met.is_empty());
        calls += outcome.calls;
    }
    let rate = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    let percent = faulty * 100 / cases;
    println!("seed={seed} cases={cases} faults in {percent} % calls={calls} {rate:.0} a minute");
    assert!(percent >= 80, "faults in {percent} % of the cases");
}
