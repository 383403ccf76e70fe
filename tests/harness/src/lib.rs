//! What the conformance suites share: cases, outcomes, reports, and libtest's command line.
//!
//! - A [`Case`] is data: a suite defines what its function takes and which tags it has.
//! - An [`Outcome`] states whether a case can ever run here: `Unsupported` lasts, `Skipped` names
//!   what would let it run, and an `ExpectedFailure` that passes is a failure.
//! - [`Session`] prints what libtest prints, so that one parser reads all tests.
//! - [`Watch`] ends a case that hangs in a guest of the lab, and reports where it hangs.
//! - [`skip`] counts a test that cannot run here.
//! - [`steady`] repeats a case that failed while the host paused the guest.
//!
//! Random tests take their seed and their number of cases from gaudi-random. It is a crate of its
//! own, because `gaudi check` links this one and must not link proptest.

mod arguments;
mod case;
mod report;
mod session;
mod skip;
mod steady;
mod watch;

pub use arguments::Arguments;
pub use case::Case;
pub use report::{Outcome, Report, Row};
pub use session::Session;
pub use skip::{skip, skip_named};
pub use steady::steady;
pub use watch::Watch;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// An address at which nothing is mapped: Linux places programs, heaps and mappings elsewhere. What
/// is unmapped may be mapped again by another thread.
pub const UNMAPPED: u64 = 1 << 36;

/// Runs a closure and returns its result, or the message of its panic.
///
/// # Errors
/// The message of the panic.
pub fn survive<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "a panic without a message".to_owned())
    })
}
