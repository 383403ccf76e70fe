//! The cases, by topic.

use crate::fixture::Fixture;
use crate::suite::{Case, Report, run_case};

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

/// Runs the selected cases.
pub fn run_where(fixture: &Fixture, select: impl Fn(&Case) -> bool) -> Report {
    let selected = all().filter(|case| select(case));
    Report {
        name: fixture.name.clone(),
        rows: selected.map(|case| run_case(case, fixture)).collect(),
    }
}

/// Runs every case.
pub fn run(fixture: &Fixture) -> Report {
    run_where(fixture, |_| true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn every_case_has_its_own_sentence() {
        let mut seen = BTreeSet::new();
        for case in all() {
            assert!(seen.insert(case.id), "two cases are named {}", case.id);
            assert!(
                case.sentence().split(' ').count() >= 3,
                "{} is not a sentence",
                case.id
            );
        }
        assert!(seen.len() >= 200, "{} cases", seen.len());
    }
}
