//! Requests and answers of seam 1, encoded as and decoded from the driver's ioctl arguments.
//!
//! - *Each request is one row* ([`Wire`]): its ioctl, its argument struct, the condition that
//!   distinguishes it from the ioctl's other requests, and both conversions. The argument structs
//!   have the same layout in every era; `gaudi-uapi` maps ioctls to request numbers.
//! - *[`decode`] calls a [`Visitor`]* with the request's own type, so requests can borrow their
//!   lists and operations are enumerated in one place only.
//! - *[`serve`] is the driver's ioctl entry point over a [`KernelIo`](gaudi_seam::KernelIo)*: it
//!   does what `drm_ioctl` and the driver do between copy_from_user and copy_to_user.
//! - *Every argument is untrusted*: no argument causes a panic, and a length in an argument never
//!   sets the size of an allocation.

mod answer;
pub mod argument;
mod decode;
mod errno;
mod information;
mod memory;
mod perform;
mod rows;
mod serve;
mod submit;
mod wire;

pub use decode::decode;
pub use errno::errno_of;
pub use memory::{OwnMemory, UserMemory};
pub use perform::Perform;
pub use rows::{interrupt, timestamp};
pub use serve::serve;
pub use submit::jobs;
pub use wire::{Visitor, Wire, address, address_mut};
