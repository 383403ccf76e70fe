//! libhl-thunk.so: the vendor's C library for programs that are written for it.
//!
//! - *The switch is at the ioctl*: a function fills the driver's struct, and `device.rs` passes it
//!   to the kernel or to a virtual node. A raw descriptor has no state: dup(2) and fork(2) work.
//! - *Failures by the vendor's conventions*: `-errno`, `-1` or `0`, always with errno set.
//! - *What is checked*: NULL is `EINVAL`, an address that only the kernel follows is `EFAULT`. A
//!   dangling pointer that this library follows (`in`, `out`, a status) is `EFAULT` in a process
//!   with virtual nodes; otherwise it faults, because a check would be one more system call.
//! - *A panic is `EIO`*: no unwinding crosses the C boundary (`guard.rs`).
//! - *Differences from the vendor's library*: docs/src/reference/hl-thunk.md.

#[macro_use]
mod guard;
mod command_buffer;
mod debug;
mod device;
mod discovery;
mod env;
mod events;
mod gaudi3;
mod info;
mod memory;
mod open;
mod pointer;
mod profiler;
mod shim_table;
mod signal;
#[cfg(test)]
mod stub;
mod submit;
#[cfg(test)]
mod tests;
mod types;
mod wait;

pub use command_buffer::*;
pub use debug::*;
pub use events::*;
pub use gaudi3::*;
pub use info::*;
pub use memory::*;
pub use open::*;
pub use profiler::*;
pub use shim_table::HlthunkFunctionsPointers;
pub use signal::*;
pub use submit::*;
pub use types::*;
pub use wait::*;
