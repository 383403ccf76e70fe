//! What several tests of this crate use.

/// Returns the number in an environment variable, or the test's own without one.
pub(crate) fn number(variable: &str, own: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(own, |text| text.parse().expect("a number"))
}
