//! A share of what a long run does, with a seed of its own each time.
// One test: descriptors and address space are counted for the whole process.

use gaudi_sim::case::Case;
use gaudi_sim::run::Runner;
use gaudi_sim::shrink::shrink;

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn the_stack_holds_under_faults() {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64 % 1_000_000_007);
    let seed = number("GAUDI_SIM_SEED").unwrap_or(clock);
    let cases = number("GAUDI_SIM_CASES").unwrap_or(4000);
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
        counts.struck * 100 >= counts.cases * 87,
        "a fault strikes in nine of ten cases, or nearly: {counts:?}"
    );
    for errno in ["EINVAL", "ENOMEM", "EBUSY", "EIO", "ETIMEDOUT", "EAGAIN", "EINTR"] {
        assert!(
            counts.errnos.contains_key(errno),
            "the stack meets {errno}: {counts:?}"
        );
    }
}
