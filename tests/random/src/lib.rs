//! How many cases a random test takes, and from which seed: one way for every test of the tree.
//!
//! - *`GAUDI_TEST_CASES`* is the number of cases of each test, above the one that the test names;
//!   where it is not set, proptest's own `PROPTEST_CASES` is heard.
//! - *`GAUDI_TEST_SEED`* is the seed; where it is not set, the clock gives one.
//! - *[`Rng`]* makes what is made without proptest; [`smallest`] leaves out what a failure does not
//!   need.
//! - *Both are printed*, whether the test passes or not; `-- --nocapture` shows them for a test
//!   that passes.

mod rng;
mod shrink;

use std::time::{SystemTime, UNIX_EPOCH};

pub use rng::Rng;
pub use shrink::smallest;

use proptest::test_runner::{Config, RngAlgorithm, RngSeed};

/// The variable that says how many cases each random test takes.
pub const CASES_VARIABLE: &str = "GAUDI_TEST_CASES";
/// The variable that says which seed random tests start from.
pub const SEED_VARIABLE: &str = "GAUDI_TEST_SEED";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let read = text.trim().parse();
    Some(read.unwrap_or_else(|_| panic!("{variable}={text:?} is no decimal number")))
}

/// The number of cases: the environment's, else the test's own.
pub fn cases(own: u32) -> u32 {
    let asked = number(CASES_VARIABLE).or_else(|| number("PROPTEST_CASES"));
    asked.map_or(own, |cases| u32::try_from(cases).unwrap_or(u32::MAX))
}

/// The seed: the environment's, else the clock's.
pub fn seed() -> u64 {
    number(SEED_VARIABLE).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 & 0xffff_ffff
    })
}

/// What `proptest_config` takes, for a test that takes `own` cases by itself. Prints seed and
/// cases; keeps no file of failures, since a seed says as much.
pub fn config(own: u32) -> Config {
    let (seed, cases) = (seed(), cases(own));
    println!("seed={seed} cases={cases} ({SEED_VARIABLE}={seed} {CASES_VARIABLE}={cases} replays it)");
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        // Numbers are drawn faster than by the default, in a debug build above all.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    }
}
