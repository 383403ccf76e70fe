//! Property tests of the whole stack under faults: each run is made from a seed and a number.
//!
//! - *A case is a sequence of operations and a fault plan* ([`case`]). The plan makes operations
//!   fail, delays them, loses completions or resets the device.
//! - *Two reference models check every call*: one of the driver, one of the fault plan. The stack
//!   must report what the two watchers around the fault layer observed.
//! - *What must hold* ([`run`]): no leak, no hang, no change to memory of other users; every
//!   submission ends once and reports its real result.
//! - *Virtual time, one thread, one mock for each case*: a seed and a number replay a case.
//! - *A failure is reduced* ([`shrink`]) and printed with the command that repeats it.
//! - *The checks are tested*: a [`Mutation`] breaks one rule, and the run must detect it.

pub mod case;
mod driver;
mod mutant;
mod observed;
mod plan;
pub mod run;
pub mod shrink;
mod watchers;
mod world;

pub use mutant::Mutation;
