//! The same generated operations on the mock and on the real driver, and every answer compared.
//!
//! - *In step*: one process has both open, asks the one, asks the other, and compares: return value, errno, every field of the answer, and
//!   the bytes that engines moved. Handles, addresses and sequence numbers are told by their first appearance.
//! - *From a seed*: sequence n of a seed is the same for ever; two thirds of its operations are right, the others wrong in a way that the
//!   driver must refuse. Nothing in it can hang or break a card.
//! - *State is freed, not closed*: the driver resets the chip at each close.
//! - *A difference is made small* by leaving operations out, and printed. What must differ is a row of a table (`differences.rs`) with its
//!   reason; a row that nothing meets is told.

mod arena;
mod bench;
mod compare;
mod differences;
mod op;
mod outcome;
mod plan;
mod report;
mod run;
mod side;

pub use report::Report;
pub use run::{Plan, run};
