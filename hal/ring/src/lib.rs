//! Rings in shared memory, through which processes pass records to a tracer outside.
//!
//! - **One memfd a session**, created and sealed by the tracer ([`Drain`]). It holds a ring for
//!   each thread. A process finds it by the environment variable [`VARIABLE`], maps it once, and
//!   closes it: no descriptor stays open.
//! - **A record is published by one store**: the word before its bytes. A ring accepts several
//!   writers, so a signal handler can write inside another write of its thread.
//! - **Writers do not allocate or lock** ([`Session`]). A full ring delays its writer for a bounded
//!   time, then records are dropped and counted.
//! - **The tracer trusts nothing in the memory**: it checks each word that it reads.

mod clock;
mod drain;
mod layout;
mod map;
mod session;

pub use drain::{Corrupt, Drain, Pull};
pub use layout::{DeviceRow, Filter, MAX_DEVICES, Sizes};
pub use session::{Author, Child, Local, Reserved, Session};

/// The environment variable that names the session's memory.
pub const VARIABLE: &str = "GAUDI_TRACE_RING";
