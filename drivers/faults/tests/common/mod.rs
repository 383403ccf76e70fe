//! What several tests of this crate use.

/// Returns the cases of a run, at least one, and its seed: those of the environment, otherwise
/// `own` and 1. The tests require a share of faults, which a seed of the clock could miss.
pub(crate) fn cases_and_seed(own: u64) -> (u64, u64) {
    let own = u32::try_from(own).expect("the number of a test's own cases");
    let seed = match std::env::var_os(gaudi_random::SEED_VARIABLE) {
        Some(_) => gaudi_random::seed(),
        None => 1,
    };
    (gaudi_random::cases(own).max(1).into(), seed)
}
