//! Small safe wrappers over `nix`: file descriptors, memfd, dma-buf ioctls, descriptor passing and
//! raw mappings.
//!
//! - *Errors are `Errno`*: a layer above knows the operation and adds it; here nothing is guessed.
//! - *Fds are owned inside and borrowed across*: no raw number leaves this crate.
//! - *A mapping is a pointer and a length, never a slice*: another process or a device may write to
//!   it at any time.
//! - *A substitute for a kernel object is named as one*: see [`standin`].

mod aio;
pub mod arena;
pub mod cancel;
pub mod clock;
mod deadline;
pub mod dmabuf;
pub mod event;
pub mod fd;
pub mod fork;
pub mod heap;
mod ioctl;
pub mod limits;
pub mod mapping;
pub mod maps;
pub mod memfd;
pub mod parse;
mod per_process;
pub mod pidfd;
pub mod pin;
pub mod poll;
pub mod process_memory;
pub mod random;
pub mod shared;
pub mod socket;
pub mod standin;
pub mod sync;
pub mod sync_file;
pub mod unnamed;

pub use deadline::Deadline;
pub use event::Event;
pub use mapping::RawMapping;
pub use memfd::Memfd;
pub use nix::errno::Errno;
pub use per_process::PerProcess;
pub use sync::{IgnorePoison, lock};

/// The result of a system call: the value, or the errno.
pub type SysResult<T> = Result<T, Errno>;

/// Repeats a system call that a signal interrupts.
///
/// # Errors
/// Any but `EINTR` of the call.
pub fn uninterrupted<T>(mut call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}

/// Bytes in the smallest page that the driver exports or maps (x86-64 and arm64 with 4 KiB pages).
pub const PAGE: u64 = 4096;
