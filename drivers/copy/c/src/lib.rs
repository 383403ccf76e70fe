//! libgaudi_copy.so.0: Gaudi memory for programs in C.
//!
//! - *One table makes the library and its header*: `abi.rs` declares each structure and function
//!   with its text, and `header.rs` prints them as `gaudi_copy.h` and as the version script.
//! - *A function returns 0 or `-errno`*; `gaudi_copy_error` has the cause in words.
//! - *A handle is a number*, so a closed or foreign one fails with `EBADF`.
//! - *A structure starts with its size*: a program and a library of two releases work together.
//! - *A panic becomes `EIO`, and a fork child gets `ENODEV`* before it takes a lock (`guard.rs`).

#[macro_use]
mod abi;
mod domain;
mod events;
mod guard;
mod handles;
mod header;
mod keys;
mod layouts;
mod pointer;

pub use domain::*;
pub use events::*;
pub use guard::gaudi_copy_error;
pub use header::{assertions, header, version_script};
pub use keys::*;
pub use layouts::*;
