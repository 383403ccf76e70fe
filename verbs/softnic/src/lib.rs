//! A software NIC behind the provider trait of gaudi-verbs. It is named `softnic (software)` wherever it shows: none of its figures is
//! one of hardware.
//!
//! - *A port is one end of a stream socket*, the cable: between two NICs in one process, in two, or on two hosts. Many queue pairs
//!   share it, told apart by number.
//! - *Payload moves between the socket and registered memory in one system call*, with no buffer in between; device memory is reached
//!   through the attachment to the dma-buf that was registered, and in no other way.
//! - *Reliable-connected semantics*: in order per queue pair, acknowledged, keys, domains, bounds and rights checked where rdma-core's
//!   own software NIC checks them, the same completion statuses. WRITE, WRITE with immediate, READ, SEND, SEND with immediate.
//! - *Two threads a NIC, and the receiving one never writes to the cable*: answers go through the sender, so that two busy NICs cannot
//!   block each other. What a peer can make us remember is bounded.
//! - *Nothing that comes over the cable is trusted*: a frame that the protocol does not allow takes the cable down with a
//!   `Protocol` error; every queue pair then ends with `RETRY_EXC_ERR`, as if the peer were gone. Nothing waits for ever.
//!
//! What differs from hardware, and is meant to:
//! - Messages are cut at 256 KiB, not at the MTU, and the cable neither loses nor reorders, so nothing is sent again but what the
//!   receiver was not ready for.
//! - A message that finds no receive is refused with "not ready" and sent again by the requester, `rnr_retry` times, after the
//!   responder's `min_rnr_timer` (at most 1 s): then `RNR_RETRY_EXC_ERR`. A peer whose queue pair is not connected yet is asked again
//!   for as long as `timeout × (retry_cnt + 1)`.
//! - A cable that goes down flushes receives too, so that nobody waits for messages that cannot come.
//! - A real dma-buf whose `DMA_BUF_IOCTL_SYNC` fails before sending takes the cable down; before receiving it is a local or remote
//!   operation error.
//! - A completion queue that overflows loses completions, puts the queue pair into error, and fails to poll once it is empty.
//! - No atomics, no loopback to the own port.

mod answer;
mod cable;
mod core;
mod counters;
mod cq;
mod events;
mod fault;
mod nic;
mod pending;
mod post;
mod qp;
mod region;
mod rx;
mod tx;
mod window;
mod wire;

pub use counters::{Count, Counters, Traffic};
pub use nic::{FaultRule, PROVIDER, SoftNic, SoftNicConfig};

/// Elements a work request.
pub(crate) const MAX_SGE: u32 = 16;
/// Bytes that a send can carry without a region.
pub(crate) const MAX_INLINE: u32 = 512;
/// Work requests a queue.
pub(crate) const MAX_QP_WR: u32 = 4096;
/// Reads that a queue pair answers at a time.
pub(crate) const MAX_READS: u8 = 16;
