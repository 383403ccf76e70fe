//! The mock and the real driver on a modelled Gaudi2, asked the same generated operations
//! (tests/diff).

use gaudi_diff::{Plan, run};
use gaudi_lab::{card, skips_twice};

/// Sequences of 200 operations each.
const CASES: u64 = 104;
/// The seed, unless the environment sets one: every run generates the same operations, so that a
/// failure is a change's. `cargo xtask lab diff` asks by any other.
const SEED: u64 = 20_261_122;
/// How many answers that must be.
const LEAST: u64 = 20_000;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_mock_answers_as_the_driver_does() {
    // The mock is made after the newest driver.
    if skips_twice("the_mock_answers_as_the_driver_does") {
        return;
    }
    card::load(&[]);
    let plan = Plan {
        seed: match std::env::var_os(gaudi_random::SEED_VARIABLE) {
            Some(_) => gaudi_random::seed(),
            None => SEED,
        },
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

/// What this machine is for: a card whose whole memory is in its BAR, so that every page can be
/// exported.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn bar_covers_all_card_memory() {
    card::load(&[]);
    let ranges = std::fs::read_to_string("/sys/class/accel/accel0/device/resource").expect("its BARs");
    let sizes = ranges.lines().filter_map(|line| {
        let mut numbers = line
            .split(' ')
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let (first, last) = (numbers.next()??, numbers.next()??);
        (last > first).then(|| last - first + 1)
    });
    assert_eq!(sizes.max(), Some(128 << 30), "BAR 4: {ranges}");
}
