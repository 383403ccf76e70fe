//! The cases, by topic.

mod alloc;
mod keys;
mod process;
mod query;
mod register;
mod transfers;
mod types;

use crate::suite::Case;

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        alloc::CASES,
        register::CASES,
        query::CASES,
        query::BOUNDARIES,
        keys::CASES,
        types::CASES,
        transfers::CASES,
        process::CASES,
    ]
    .into_iter()
    .flatten()
}
