//! The cases, one file per area.

mod buffer;
mod control;
mod counter;
mod dma;
mod events;
mod export;
mod info;
mod interrupt;
mod likeness;
mod memory;
mod open;
mod packets;
mod queue;
mod scarce;
mod signal;
mod steering;
mod sync;
mod wait;

use crate::case::Case;

/// Returns every case, area by area.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        open::CASES,
        info::CASES,
        events::CASES,
        memory::CASES,
        buffer::CASES,
        queue::CASES,
        signal::CASES,
        wait::CASES,
        interrupt::CASES,
        counter::CASES,
        control::CASES,
        dma::CASES,
        packets::CASES,
        steering::CASES,
        sync::CASES,
        export::CASES,
        scarce::CASES,
        likeness::CASES,
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
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
            assert!(
                case.id.contains('.') && case.id.chars().all(plain),
                "{:?} is not a valid id",
                case.id
            );
            let (file, place) = case.source.rsplit_once(':').expect("a source is file:function");
            let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            assert!(
                (file.ends_with(".c") || file.ends_with(".h"))
                    && place.parse::<u32>().is_err()
                    && !place.is_empty()
                    && place.chars().all(name),
                "{case:?} has a source without a function"
            );
        }
        assert!(seen.len() >= 60, "the suite has {} cases", seen.len());
    }
}
