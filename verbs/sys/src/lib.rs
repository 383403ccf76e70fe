//! libibverbs as data: structs, constants and a symbol table that is opened at run time.
//!
//! - *No link-time dependency*: [`Library::open`] loads `libibverbs.so.1` when it is called. A
//!   program that uses this crate starts on a machine without RDMA and names the package.
//! - *Written as data, checked by a C compiler*: tests/abi compares every row with Debian's headers
//!   (44, 56 and 65), so that a build needs neither libclang nor the headers.
//! - *Functions of later versions may be absent*: such functions are `None` in an older library;
//!   each row names the symbol version that has it.
//! - *Static inline functions of the header are functions here* ([`inline`]): they call through the
//!   table of operations inside `ibv_context`, as the header's do.
//! - Names are rdma-core's, to the letter.

#![allow(
    non_camel_case_types,
    reason = "names are those of infiniband/verbs.h, so that what is known there need not be learnt again"
)]

#[macro_use]
mod macros;

pub mod consts;
pub mod inline;
mod library;
pub mod mlx5;
pub mod types;
pub mod uverbs;

pub use library::{Library, LoadError, Symbols};
pub use mlx5::Mlx5;
