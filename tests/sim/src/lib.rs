//! The stack under faults as a property: whole-system runs, each made from a seed and a number.
//!
//! - *A case is a sequence of operations and a fault plan*: device, queues, copies, exports and the seam itself are used in any order
//!   while the plan makes operations fail, wait, vanish or end the device ([`case`]).
//! - *Two references judge*: one says what the driver must answer to each call, one what the plan makes of it; every layer of the
//!   stack stands between two watchers. What the stack then says to its user must be what they saw.
//! - *What must hold*: nothing leaks (descriptors, mappings, device memory, pins), nothing hangs, no byte of others changes, every
//!   submission ends once and is told truthfully ([`run`]).
//! - *Virtual time, one thread, a mock of its own for each case*: a seed and a number are all that a replay needs.
//! - *A failure is made small* by leaving out operations and rules, and printed with the command that repeats it ([`shrink`]).
//! - *The judge is judged*: a [`Mutation`] breaks one rule on purpose, and must be caught.

mod book;
pub mod case;
mod driver;
mod mutant;
mod observed;
mod plan;
pub mod run;
pub mod shrink;
mod world;

pub use mutant::Mutation;
