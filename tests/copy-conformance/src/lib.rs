//! One suite for the memory domain `gaudi_copy` and the transport `gaudi_cpy`: what they answer to
//! each operation, as named cases over one or two cards.
//!
//! - *A case needs a spec of a card*: the mock on any machine, a driver's card in the lab.
//! - *A case that leaves something behind fails*: the suite closes the card after each.
//! - *Cases fork*: a runner has one thread.

pub mod cases;
mod suite;

pub use suite::{Case, Fixture, Need, Outcome, run_case};
