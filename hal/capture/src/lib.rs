//! Records of a program's requests to a device driver: the record model, the `.gcap` file and the
//! decoder.
//!
//! - **A record holds bytes, not meaning.** A tracer copies the argument of an ioctl at entry and
//!   at exit, and the memory that its pointers refer to. It does not interpret operations, so it
//!   need not change when the driver gets a new one.
#![forbid(unsafe_code)]

mod bytes;
pub mod decode;
pub mod follow;
mod foreign;
pub mod gcap;
pub mod index;
pub mod names;
pub mod pointers;
pub mod record;
pub mod text;
pub mod value;
mod walk;
mod write;

pub use bytes::{Encoded, encode, raw};
pub use walk::Limits;
pub use write::WriteCommand;
