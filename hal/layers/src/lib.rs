//! Wrappers over seam 1: a trace of every operation, faults by plan, and misuse named before the driver meets it.
//!
//! - *A layer is a [`KernelIo`](gaudi_seam::KernelIo) that owns another*: any layers stand over any backend in any order, and over one
//!   another; the leftmost of a device spec is the innermost. With no layer asked for, nothing is in the path.
//! - *Nobody forks the model to break it*: a fault is a rule — matcher × verdict × schedule — that prints as one line; the same line works
//!   in a test, a file and the command line. See [`fault`].
//! - *A trace is data*: JSON Lines with the kernel's names, written and read by the same types. See [`trace`].
//! - *The driver stays the judge of misuse*: its errno is never replaced, it is explained. See [`validate`].
//! - *Time is injected*, so that a delay of an hour is tested in no time. See [`time`].
//! - *Layers never touch memory*: what a command buffer or a mapping holds is not looked at, and the promise of
//!   [`mem_map_host`](gaudi_seam::KernelIo::mem_map_host) is handed on as it is.
//!
//! ```
//! use gaudi_layers::fault::Rule;
//!
//! let rule: Rule = "submit:when=3..9+2:error=EAGAIN:p=50:seed=7".parse()?;
//! assert_eq!(rule.to_string(), "submit:when=3..9+2:error=EAGAIN:p=50:seed=7");
//! # Ok::<(), gaudi_layers::fault::PlanError>(())
//! ```

pub mod fault;
mod stack;
pub mod time;
pub mod trace;
pub mod validate;

pub use stack::Stack;
