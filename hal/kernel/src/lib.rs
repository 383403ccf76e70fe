//! [`KernelIo`](gaudi_seam::KernelIo) on the real habanalabs driver: discovery, opening, and every operation
//! on a file descriptor.
//!
//! - *Three interfaces*, [`Era`](gaudi_seam::Era): `/dev/hlN` (Linux 6.1 to 6.6), `/dev/accel` with the same numbers
//!   (the vendor's driver before DRM), and `/dev/accel` with DRM's (Linux 6.7 on). Which one an open file speaks
//!   is asked of the file once (`probe.rs`); what it then lacks is refused by name, with the header that has it.
//! - *All `unsafe` is in four files*, `system.rs`, `ioctl.rs`, `jobs.rs` and `probe.rs`: one block an ioctl, each with the reason why
//!   its addresses are good.
//! - *The system calls are a trait*, [`Syscalls`]: the tests record which number and which bytes are passed
//!   and feed answers back. Nothing else of the crate is replaced in a test. The real ones are known when the program is built and cost no
//!   indirect call.
//! - *Looking never opens a compute node*: that would give another user EBUSY and cost a reset at close.
//!   [`Driver::list`] and the search by bus or module id use control nodes and sysfs.
//! - *An errno is never all that is said*: its causes come from [`gaudi_uapi::errno`], and where the device's
//!   own status can tell which cause it was, it is asked.
//!
//! Not served here, and answered by name: the NIC and the debug operations of the Gaudi3 header, whose structs carry addresses of this
//! process that nobody checks.

mod absent;
mod dialect;
mod discover;
mod error;
mod ioctl;
mod jobs;
mod open;
mod probe;
mod sysfs;
mod system;
mod wait;

pub use discover::{Identity, Listed};
pub use ioctl::Kernel;
pub use open::Driver;
pub use system::{Syscalls, System};
