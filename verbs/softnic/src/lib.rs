//! A software NIC behind the provider trait of gaudi-verbs. All output names it
//! `softnic (software)`: none of its figures are those of hardware.
//!
//! - A cable is a stream socket between two NICs, in one process or on two hosts. Two threads serve
//!   it; the receiving one never writes, so that two busy NICs cannot block each other. Or it is in
//!   memory, and a [`Fabric`] steps it: without threads, in an order that a seed chooses.
//! - Payload moves between socket and registered memory in one system call, without a copy.
//! - Statuses and events are those of the architecture. gaudi-verbs-conformance lists where
//!   rdma_rxe differs, [`SoftNic`] where this NIC differs from hardware.
//! - No frame is trusted: one that the protocol does not allow takes its cable down. State that a
//!   peer can create is bounded, keys are random, and no wait is unbounded.

mod answer;
mod cable;
mod clock;
mod control;
mod core;
mod counters;
mod cq;
mod error;
mod events;
mod fabric;
mod fault;
mod keys;
mod link;
mod nic;
mod objects;
mod pending;
mod post;
mod qp;
mod region;
mod rx;
mod tx;
mod window;
mod wire;

pub use counters::{Count, Counters, Traffic};
pub use fabric::{Fabric, FabricStep};
pub use fault::{NicFaults, lossy_network};
pub use gaudi_seam::fault::{Plan, PlanError, Rule, RuleCount};
pub use nic::{PROVIDER, SoftNic, SoftNicConfig};
pub use wire::MAX_CHUNK as MAX_FRAME_BYTES;

/// Limits of objects.
pub(crate) const MAX_QP: u32 = 1024;
pub(crate) const MAX_CQ: u32 = 1024;
pub(crate) const MAX_PD: u32 = 1024;
pub(crate) const MAX_SRQ: u32 = 1024;
pub(crate) const MAX_AH: u32 = 1 << 15;
/// Elements per work request.
pub(crate) const MAX_SGE: u32 = 16;
/// Bytes of inline data per send.
pub(crate) const MAX_INLINE: u32 = 512;
/// Work requests per queue.
pub(crate) const MAX_QP_WR: u32 = 4096;
/// Reads and atomics that a queue pair answers at a time.
pub(crate) const MAX_READS: u8 = 16;
