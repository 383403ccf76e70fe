//! The cases, one file an area.

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

/// Every case, area by area.
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
    fn every_case_has_a_name_of_its_own_and_a_line_of_the_driver() {
        let mut seen = BTreeSet::new();
        for case in super::all() {
            assert!(seen.insert(case.id), "two cases are called {}", case.id);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
            assert!(
                case.id.contains('.') && case.id.chars().all(plain),
                "{:?} is no id",
                case.id
            );
            let (file, place) = case.source.rsplit_once(':').expect("a source is file:place");
            let function = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(
                (file.ends_with(".c") || file.ends_with(".h"))
                    && (place.parse::<u32>().is_ok() || (!place.is_empty() && place.chars().all(function))),
                "{case:?} names no line or function"
            );
        }
        assert!(seen.len() >= 60, "the suite has {} cases", seen.len());
    }
}
