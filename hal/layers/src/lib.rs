//! Layers over seam 1: trace, record, fault injection and validation.
//!
//! - *Layers stack in any order over any backend*; the leftmost of a device spec is the innermost.
//!   Each implements [`Layer`](gaudi_seam::Layer). Without layers nothing is in the path.
//! - *A fault is a rule*, which prints as one line; the same line works in a test, a file and the
//!   command line. See [`fault`].
//! - *A trace is data*: JSON Lines with the kernel's names, written and read by the same types. See
//!   [`trace`].
//! - *A record is what a replay answers from*: the ioctls that a program would make. See
//!   docs/src/reference/gcap.md.
//! - *Validation explains the driver's errno* and does not replace it. See [`validate`].
//! - *Time is injected*, so that a delay of an hour costs a test no time. See [`time`].
//! - *Layers do not access memory*, except that `record` with `data` copies mapped memory.
//!
//! ```
//! use gaudi_layers::fault::Rule;
//!
//! let rule: Rule = "submit:when=3..9+2:error=EAGAIN:p=50:seed=7".parse()?;
//! assert_eq!(rule.to_string(), "submit:when=3..9+2:error=EAGAIN:p=50:seed=7");
//! # Ok::<(), gaudi_layers::fault::PlanError>(())
//! ```

use std::fmt;
use std::sync::Arc;

use gaudi_seam::KernelIo;

pub mod fault;
mod file;
mod file_error;
mod record;
mod span;
mod stack;
pub mod time;
pub mod trace;
pub mod validate;

pub use stack::Stack;

/// The node below a layer. `Debug` prints its [`Node`](gaudi_seam::Node).
struct Below<K: KernelIo + ?Sized = dyn KernelIo>(Arc<K>);

impl<K: KernelIo + ?Sized> fmt::Debug for Below<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.node().fmt(f)
    }
}
