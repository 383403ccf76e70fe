//! One conformance suite for every backend: what the driver answers, as named cases that a kernel, a mock or a recording must pass.
//!
//! - *A case is a named (operation, precondition, outcome)* with the line of the driver that decides it; a sweep of parameters is one
//!   case. The mock is faithful where these cases and the driver say the same.
//! - *Cases share one open device*, because the driver resets the chip at every close. After each case the bench looks at what it
//!   left behind: memory, mappings, buffers, submissions, exports. A case that leaves something fails by itself, and the device is
//!   opened anew so that no other is blamed. Only cases tagged `lifecycle` open and close.
//! - *Five outcomes*: passed, failed, skipped (with what would un-skip it), unsupported (for good, with the reason), and expected
//!   failure (a gap that is known; when the case passes, that is a failure of the table, so the table can only shrink).
//! - *An assertion is a sentence*: what was looked at, what was expected, what was seen.
//!
//! # Adding a case
//! 1. Find the line of the driver that decides the outcome.
//! 2. Write a function in the area's file under `src/cases`: `fn name(bench: &mut Bench) -> Verdict`. Take the device from
//!    `bench.io()`; use the holders of `rig` (`Dram`, `Host`, `Buffer`, `Gate`), which give back what they took when they go.
//! 3. Assert with `equal`, `holds`, `refused`, `same_bytes`; `?` on an operation that must succeed is an assertion too.
//! 4. Add a row to the file's `CASES`: id, `file.c:function` of the driver, function; `.tagged(&[Tag::Lifecycle])` if it opens or closes.
//! 5. Break the rule in the mock and see the case fail. A case that no defect can fail is no case.
//!
//! Work proceeds only inside a wait where the backend's order is stepped: wait for a submission before looking at what it did.
//!
//! # Running
//! `cargo test -p gaudi-conformance` runs every case on the mock in both orders, and those tagged `clock` on the machine's clock.
//! `gaudi-conformance --device SPEC` runs them on any device, `--list` prints id, chip and source, `--coverage` what of the driver they show.

mod bench;
mod case;
pub mod cases;
pub mod check;
pub mod coverage;
mod expect;
mod observe;
mod opener;
mod rig;
mod runner;

pub use bench::Bench;
pub use case::{Case, Failure, Tag, Verdict};
pub use expect::{Expectation, expectation};
pub use runner::{Outcome, Report, Row, run};
