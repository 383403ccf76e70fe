//! The mock and the real driver on a modelled Gaudi2, asked the same generated operations (tests/diff).

use gaudi_diff::{Plan, run};
use gaudi_lab::card;

/// Sequences of 200 operations each.
const CASES: u64 = 104;
/// How many answers that must be.
const LEAST: u64 = 20_000;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_mock_answers_as_the_driver_does() {
    // Seconds after which the driver gives a submission up; the usual 30 only cost time.
    card::load(&["timeout_locked=5"]);
    let plan = Plan {
        seed: gaudi_random::seed(),
        first: 0,
        cases: u64::from(gaudi_random::cases(CASES as u32)),
        ops: 200,
    };
    println!("seed={} cases={}", plan.seed, plan.cases);
    let specs = ["mock:gaudi2", "kernel:0"].map(|spec| spec.parse().expect("a spec"));
    let report = run(&plan, [&specs[0], &specs[1]], |_| {}).expect("both open");
    println!("{report}");
    assert_eq!(
        report.differences(),
        0,
        "differences that no row explains: see above; cargo xtask lab diff --seed {} finds them again",
        plan.seed
    );
    if plan.cases >= CASES {
        assert!(report.operations() >= LEAST, "{} operations", report.operations());
        for side in 0..2 {
            let errnos = report.errnos(side);
            assert!(errnos.len() >= 12, "the answers of side {side}: {errnos:?}");
        }
    }
}
