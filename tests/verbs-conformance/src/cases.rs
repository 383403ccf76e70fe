//! The cases, by topic.

use crate::suite::Case;

mod atomics;
mod connections;
mod datagrams;
mod errors;
mod events;
mod inline;
mod limits;
mod operations;
mod regions;
mod rights;
mod shared;
mod teardown;
mod windows;

/// Every case.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        operations::CASES,
        inline::CASES,
        atomics::CASES,
        rights::CASES,
        regions::CASES,
        errors::CASES,
        connections::CASES,
        shared::CASES,
        windows::CASES,
        datagrams::CASES,
        events::CASES,
        limits::CASES,
        teardown::CASES,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn every_case_has_a_sentence_of_its_own() {
        let mut seen = BTreeSet::new();
        for case in all() {
            assert!(seen.insert(case.name), "{} stands twice", case.name);
            assert!(
                case.sentence().split(' ').count() >= 3,
                "{} is no sentence",
                case.name
            );
        }
        assert!(seen.len() >= 200, "{} cases", seen.len());
    }
}
