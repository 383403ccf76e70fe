//! Runs an unmodified program, also a static one, with devices that any device spec answers.
//!
//! - *The kernel passes some system calls of the program to this process* (seccomp_unotify(2)):
//!   opens and queries of the device's paths, and the driver's ioctls. Every other call runs at
//!   full speed.
//! - *The program gets a real descriptor* ([`gaudi_node`]), so dup, fork, exec, mmap, poll and
//!   close need no help.
//! - *Host memory is mirrored*: the model accesses a copy in this process, which is compared with
//!   the program's memory before and after each submission and wait.
//! - *No file is left behind*: all are in memory. The program is killed with this process;
//!   processes that it started stay, and their calls fail with `ENOSYS`.
//!
//! docs/src/how-to/without-a-card.md lists what differs from a driver.

mod error;
mod files;
mod filter;
mod host;
mod nodes;
mod notify;
mod remote;
mod spawn;
mod supervisor;
mod tree;

pub use error::Error;
pub use supervisor::Supervisor;
