//! `libgaudi_trace.so`: a library for `LD_PRELOAD` that records the ioctls that a program makes
//! through libc, and the descriptors and mappings that they refer to, in the rings of
//! [`gaudi_ring`].
//!
//! - **Each function calls the next one of its name** and returns its result and errno.
//! - **Nothing here allocates, locks or panics** after the constructor: the program calls these
//!   functions in signal handlers and between fork(2) and execve(2). With `--data`, a thread that
//!   compares memory holds a lock, for which another waits a bounded time (`data.rs`).
//! - **Memory of the program is read by the kernel** (process_vm_readv(2)), except above
//!   the current frame in the thread's own stack: a wrong pointer must be the program's EFAULT and
//!   not our fault.

mod author;
pub mod calls;
mod constructor;
mod data;
mod files;
mod ioctl;
mod memory;
mod next;
mod out;
mod stack;
pub mod vfork;
