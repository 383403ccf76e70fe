//! Seeds and numbers of cases for every random test of the tree.
//!
//! - *`GAUDI_TEST_CASES`* is the number of cases of each test, in place of the test's own number.
//!   If it is not set, `PROPTEST_CASES` applies.
//! - *`GAUDI_TEST_SEED`* is the seed. If it is not set, the seed comes from the clock.
//! - *[`Rng`]* generates cases without proptest; [`smallest`] reduces a failing sequence.
//! - *Both numbers are printed*; `-- --nocapture` shows them for a test that passes.

mod rng;
mod shrink;

use std::time::{SystemTime, UNIX_EPOCH};

pub use rng::Rng;
pub use shrink::smallest;

use proptest::test_runner::{Config, RngAlgorithm, RngSeed};

/// The variable with the number of cases of each random test.
pub const CASES_VARIABLE: &str = "GAUDI_TEST_CASES";
/// The variable with the seed of random tests.
pub const SEED_VARIABLE: &str = "GAUDI_TEST_SEED";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let read = text.trim().parse();
    Some(read.unwrap_or_else(|_| panic!("{variable}={text:?} is not a decimal number")))
}

/// Returns the number of cases: from the environment, otherwise `own`.
pub fn cases(own: u32) -> u32 {
    let asked = number(CASES_VARIABLE).or_else(|| number("PROPTEST_CASES"));
    asked.map_or(own, |cases| u32::try_from(cases).unwrap_or(u32::MAX))
}

/// Returns the seed: from the environment, otherwise from the clock.
pub fn seed() -> u64 {
    number(SEED_VARIABLE).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 & 0xffff_ffff
    })
}

/// Returns the argument of `proptest_config` for a test with `own` cases by default. Prints the
/// seed and the number of cases. Failures are not saved to a file, because the seed replays them.
pub fn config(own: u32) -> Config {
    let (seed, cases) = (seed(), cases(own));
    println!("seed={seed} cases={cases} ({SEED_VARIABLE}={seed} {CASES_VARIABLE}={cases} replays it)");
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        // Faster than the default algorithm, mainly in debug builds.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    }
}
