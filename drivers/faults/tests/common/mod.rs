//! What several tests of this crate use.

/// Returns the cases of a run, which are `own` unless `GAUDI_TEST_CASES` is another number, and its
/// seed, which is 1 unless `GAUDI_TEST_SEED` is another.
pub(crate) fn cases_and_seed(own: u64) -> (u64, u64) {
    let number = |variable: &str, own| {
        let text = std::env::var(variable).ok();
        text.map_or(own, |text| text.parse().expect("a number"))
    };
    (number("GAUDI_TEST_CASES", own), number("GAUDI_TEST_SEED", 1))
}
