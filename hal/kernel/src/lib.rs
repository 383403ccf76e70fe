//! [`KernelIo`](gaudi_seam::KernelIo) on the real habanalabs driver: discovery, opening, and every
//! operation on a file descriptor.
//!
//! - *Three interfaces*, [`Era`](gaudi_seam::Era): `/dev/hlN` (Linux 6.1 to 6.6), `/dev/accel` with
//!   the same numbers (the vendor's driver before DRM), `/dev/accel` with DRM's (Linux 6.7 on).
//!   `probe.rs` asks an open file; what its driver lacks is `Unsupported`, by the header's name.
//! - *[`Syscalls`] is the boundary to the system*: tests record the numbers and bytes. Its real
//!   implementation is known at compile time and costs no indirect call.
//! - *Discovery opens no compute node*: an open would give another user EBUSY and cost a reset at
//!   close.
//! - *Errors carry the causes of their errno*; the device's status decides between them where it
//!   can.
//!
//! The NIC and the debug operations of the Gaudi3 header are `Unsupported`: their structs carry
//! addresses.

mod dialect;
mod kernel;
mod machine;
mod missing;
mod node;
mod open;
mod probe;
mod submit;
mod system;
mod wait;

pub use kernel::Kernel;
pub use open::Driver;
pub use system::{Syscalls, System};
