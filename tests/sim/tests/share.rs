//! A short run with a new seed each time.
// One test: descriptors and address space are counted for the whole process.

use gaudi_sim::case::Case;
use gaudi_sim::run::Runner;
use gaudi_sim::shrink::shrink;

#[test]
fn stack_passes_random_cases_under_faults() {
    let (seed, cases) = (gaudi_random::seed(), u64::from(gaudi_random::cases(4000)));
    println!("seed {seed}, {cases} cases");
    let mut runner = Runner::new(None).expect("a runner");
    for at in 0..cases {
        let case = Case::generate(seed, at);
        let violations = runner.run(&case);
        if violations.is_empty() {
            continue;
        }
        match shrink(&mut runner, &case) {
            Some(failure) => panic!("{failure}"),
            None => panic!("seed {seed} case {at} failed once and not again: {violations:#?}"),
        }
    }
    let counts = &runner.counts;
    println!("{counts:?}");
    assert!(
        counts.with_faults * 100 >= counts.cases * 87,
        "faults were injected in fewer than 87 % of the cases: {counts:?}"
    );
    for errno in ["EINVAL", "ENOMEM", "EBUSY", "EIO", "ETIMEDOUT", "EAGAIN", "EINTR"] {
        assert!(
            counts.errnos.contains_key(errno),
            "the stack never received {errno}: {counts:?}"
        );
    }
}
