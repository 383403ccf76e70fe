//! One conformance suite for every backend: the driver's answers as named cases.
//!
//! - *A case is an operation, a precondition and an outcome*, with the function of the driver that
//!   decides it. The mock is faithful where it and the driver pass the same cases.
//! - *Cases share one open device*, because the driver resets the chip at every close. A case that
//!   leaves memory, mappings, buffers, submissions or exports fails, and the bench reopens the
//!   device. Only cases tagged `lifecycle` open and close.
//! - *Five outcomes*: passed, failed, skipped (until a condition holds), unsupported (with the
//!   reason), and expected failure (a known gap; if the case passes, its row must be removed).
//! - *An assertion is a sentence*: the checked value, the expected one, the seen one.
//!
//! # Adding a case
//! 1. Find the function of the driver that decides the outcome.
//! 2. Write a function in the area's file under `src/cases`: `fn name(bench: &mut Bench) ->
//!    Verdict`. Take the device from `bench.io()`; the types of `rig` (`Dram`, `Host`, `Buffer`,
//!    `Gate`) release their objects on drop.
//! 3. Assert with `equal`, `holds`, `refused`, `invalid`, `same_bytes`, or `?` on an operation that
//!    must succeed.
//! 4. Add a row to the file's `cases!`: id, `file.c:function` of the driver, function, tags.
//! 5. Break the rule in the mock and check that the case fails. Otherwise it tests nothing.
//!
//! In the stepped order work proceeds only inside waits: wait for a submission before a check of
//! its results.
//!
//! # Running
//! `cargo test -p gaudi-conformance` runs every case on the mock in both orders, and those tagged
//! `clock` on the machine's clock. `gaudi-conformance --device SPEC` runs them on any device,
//! `--list` prints id, chip and source, `--coverage` the part of the driver's interface that they
//! cover.

mod bench;
mod bytes;
mod case;
pub mod cases;
pub mod check;
pub mod coverage;
mod expect;
mod observe;
mod opener;
mod rig;
mod runner;
mod session;
mod verdict;

pub use bench::Bench;
pub use case::{Case, Failure, Tag, Verdict};
pub use expect::{Expectation, expectation};
pub use rig::{Built, Program, offset, pattern};
pub use runner::{Outcome, Report, Row, run, run_over_bytes, run_restarted};
pub use session::session;
pub use verdict::{equal, holds, same_bytes};
