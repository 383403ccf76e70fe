//! libhl-thunk.so: a replacement of the vendor's C library.
//!
//! - *Dispatch happens at the ioctl*: a function fills the driver's struct, and `device.rs` passes
//!   it to the kernel or to a virtual node. A kernel descriptor has no state here, so dup(2) and
//!   fork(2) work.
//! - *Failures follow the vendor's conventions*: `-errno`, `-1` or `0`, and errno is always set.
//! - *Pointer checks*: NULL fails with `EINVAL`; an invalid address that only the kernel accesses
//!   fails with `EFAULT`. An invalid pointer that this library dereferences (`in`, `out`, a status)
//!   fails with `EFAULT` in a process with virtual nodes. Otherwise it faults, because a check
//!   would cost a system call.
//! - *A panic becomes `EIO`* and does not unwind into C (`guard.rs`).
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
