//! The cases, one file per area.

mod buffer;
mod c;
mod debug;
mod events;
mod export;
mod gaudi3;
mod info;
mod interrupt;
mod memory;
mod open;
mod process;
mod signal;
mod submit;
mod wait;

use crate::case::Case;

pub(crate) use c::is_compiled;
pub(crate) use export::FLAGS as EXPORT_FLAGS;

/// Returns every case, area by area.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        open::CASES,
        info::CASES,
        memory::CASES,
        export::CASES,
        buffer::CASES,
        submit::CASES,
        signal::CASES,
        wait::CASES,
        interrupt::CASES,
        events::CASES,
        debug::CASES,
        gaudi3::CASES,
        process::CASES,
        c::CASES,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn case_ids_are_unique_and_sources_valid() {
        let mut seen = BTreeSet::new();
        for case in super::all() {
            assert!(seen.insert(case.id), "two cases have the id {}", case.id);
            let (file, place) = case.source.rsplit_once(':').expect("a source is file:function");
            let is_file = [".c", ".h", ".cpp"].iter().any(|end| file.ends_with(end));
            assert!(
                is_file && !place.is_empty(),
                "{case:?} has a source without a function"
            );
        }
        assert!(seen.len() >= 250, "the suite has only {} cases", seen.len());
    }
}
