//! Behaviour of the hl-thunk C ABI that programs rely on, as named conformance cases.
//!
//! - *The library is loaded with dlopen(3)*, like its clients load it: symbols, calling convention
//!   and layouts are part of the test.
//! - *One list, two backends*: the mock, if `GAUDI_DEVICE` selects one, otherwise the kernel
//!   driver. `differences.rs` lists what one of them can never do.
//! - *Cases check hl-thunk's conventions*: -1 and errno, -errno with errno set, 0 and errno for
//!   64-bit results. The expected errors are those of the driver's functions, which
//!   `gaudi-conformance` checks at the seam; here they must pass through the library.
//! - *Cases share one open device*, because the driver resets the chip at every close. A case that
//!   leaks memory, work or descriptors fails.
//!
//! `cargo test -p gaudi-hlthunk-conformance` runs them on the mock, `cargo xtask lab test -p
//! gaudi-hlthunk-conformance` on the driver of each kernel. The case
//! `process.kill-inside-every-call-leaves-nothing` runs only if its name is an argument.

mod answer;
pub mod bench;
mod card;
mod case;
pub mod cases;
mod child;
mod differences;
pub mod library;
pub mod random;
mod runner;
pub mod types;

pub use bench::{Backend, Bench};
pub use case::Case;
pub use child::serve as serve_child;
pub use library::Library;
pub use runner::{Outcome, run};
