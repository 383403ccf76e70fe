//! libuct_gaudi.so.0: the plugin that gives packaged, unmodified UCX a memory domain `gaudi_copy`
//! and a transport `gaudi`.
//!
//! - *No UCX at build time*: the structures of UCX's private interface are declared here, one table
//!   for each release (`release.rs`). The plugin has no `DT_NEEDED` entry for UCX; it finds the
//!   libraries that the process has loaded.
//! - *Also Open MPI's accelerator component*, under another name: it must know the same memory.
//! - *An unknown release registers nothing* and logs one error, because a wrong layout would crash.
//! - *Queries open the control node only*. The compute node opens at the first allocation or copy.
//! - *A panic becomes `UCS_ERR_IO_ERROR`* and does not unwind into C (`status.rs`).

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the accesses of one block have one reason: UCX's contract of a structure or a call"
)]

mod abi;
mod accelerator;
#[cfg(test)]
mod boundary;
mod cards;
mod component;
mod config;
mod copy;
mod counters;
mod domain;
mod events;
mod handles;
mod library;
mod list;
mod load;
mod log;
mod memory;
mod opal;
mod perftest;
mod release;
mod status;
#[cfg(test)]
mod stub;
mod topology;
mod transport;
