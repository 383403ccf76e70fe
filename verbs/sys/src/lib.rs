//! libibverbs as data: structs, constants and a symbol table that is opened at run time.
//!
//! - *No link-time dependency*: [`Library::open`] looks for `libibverbs.so.1` when it is called. A program that uses this crate starts
//!   on a machine without RDMA and says what to install.
//! - *Written as data, judged by the C compiler*: [`layouts`], [`constants`] and [`symbols`] are compared with Debian's headers (44, 56
//!   and 65) by a compiled check, so that neither libclang nor the headers are needed to build.
//! - *What a later version brought may be absent*: such functions are `None` in an older library; each row says which symbol version
//!   brought it.
//! - *Static inline functions of the header are functions here* ([`inline`]): they go through the tables of operations inside
//!   `ibv_context` and `verbs_context`, as the header's do.
//! - Names are rdma-core's, to the letter.

#![allow(
    non_camel_case_types,
    reason = "names are those of infiniband/verbs.h, so that what is known there need not be learnt again"
)]

#[macro_use]
mod layout;

pub mod consts;
pub mod inline;
mod library;
pub mod providers;
pub mod types;
pub mod uverbs;

pub use layout::{CType, Constant, Field, Layout, Operation, Since};
pub use library::{Library, LoadError, Symbols};
pub use providers::{Efa, Mlx5};

/// Every struct of [`types`] that a header defines.
pub fn layouts() -> Vec<Layout> {
    let mut all = types::layouts();
    all.extend(types::more_layouts());
    all.extend(providers::layouts());
    all.extend(uverbs::layouts());
    all
}

/// Every constant of [`consts`].
pub fn constants() -> Vec<Constant> {
    let mut all = consts::CONSTANTS.to_vec();
    all.extend_from_slice(types::CONSTANTS);
    all.extend_from_slice(uverbs::CONSTANTS);
    all.extend_from_slice(providers::CONSTANTS);
    all
}

/// Every function pointer in a struct that is called, with its type in C.
pub fn operations() -> Vec<Operation> {
    types::OPERATIONS.to_vec()
}

/// Every function that is looked up, with its prototype in C.
pub fn symbols() -> Vec<layout::Symbol> {
    let mut all = library::SYMBOLS.to_vec();
    all.extend_from_slice(providers::MLX5_SYMBOLS);
    all.extend_from_slice(providers::EFA_SYMBOLS);
    all
}
