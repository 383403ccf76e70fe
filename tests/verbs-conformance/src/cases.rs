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
