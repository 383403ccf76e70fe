//! Runs the same generated operations on the mock and on the real driver, and compares every
//! answer.
//!
//! - *In lockstep*: one process has both open, performs each operation on both, and compares errno,
//!   every field of the answer, and the bytes that engines moved. Handles, addresses and sequence
//!   numbers are compared by the order of their first appearance.
//! - *From a seed*: sequence n of a seed never changes. Two thirds of its operations are valid; the
//!   driver must refuse the others. No operation can hang or damage a card.
//! - *Sequences free their objects and do not close*: the driver resets the chip at each close.
//! - *A difference is reduced* by leaving operations out, and printed. Known differences are rows
//!   of a table (`differences.rs`) with their reasons; the report counts each row.

mod arena;
mod compare;
mod differences;
mod fixtures;
mod op;
mod outcome;
mod plan;
mod report;
mod run;
mod side;

pub use report::Report;
pub use run::{Plan, run};
