//! The conformance cases that end in a reset, on the real driver of a modelled Gaudi2.
//!
//! They take minutes, most of them spent waiting for the driver's timers, and so have a guest of
//! their own.

mod cases;
mod first_card;

use gaudi_conformance::Tag;
use gaudi_lab::skips_twice;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn zz_those_that_end_in_a_reset_hold() {
    if skips_twice("zz_those_that_end_in_a_reset_hold") {
        return;
    }
    cases::conformance("each with a reset", |case| case.has(Tag::Reset));
}
