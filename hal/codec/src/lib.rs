//! Requests and answers of seam 1 as the bytes of the driver's ioctls, in both directions.
//!
//! - *A request is one row* ([`Wire`]): its ioctl, its argument struct, how to tell it from the
//!   ioctl's other requests, and both directions. The argument structs have the same layout in
//!   every era; `gaudi-uapi` converts the ioctl from and to the request number.
//! - *[`decode`] calls a [`Visitor`]* with the request's own type, so requests keep their borrowed
//!   lists and no second enumeration of operations exists.
//! - *[`serve`] is the driver's ioctl entry over a [`KernelIo`](gaudi_seam::KernelIo)*: what
//!   `drm_ioctl` and the driver do between their copies from and to the user.
//! - *Every argument is foreign input*: no argument panics, and no length in it decides how much
//!   memory is allocated.

mod answer;
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
