//! What programs ask of a device driver, as records: their model, the `.gcap` file and the decoder.
//!
//! - **A record holds bytes, not meaning.** A tracer copies the argument of an ioctl at entry and
//!   at exit, with the memory that its pointers led to. It knows no operation, so a tracer need
//!   not change when the driver gets a new one.
#![forbid(unsafe_code)]

mod bytes;
pub mod decode;
pub mod follow;
mod foreign;
pub mod gcap;
pub mod index;
pub mod names;
pub mod record;
pub mod text;
pub mod value;
mod walk;

pub use walk::Limits;
