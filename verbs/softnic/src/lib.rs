//! A software NIC behind the provider trait of gaudi-verbs. It is named `softnic (software)` wherever it shows: none of its figures is
//! one of hardware.
//!
//! - *A cable is a stream socket* between two NICs in one process, in two, or on two hosts. A NIC has one port and any number of cables;
//!   each end tells the other its GID, and a queue pair takes the cable that leads to its peer's. What is for the own GID goes over a
//!   loop. Many queue pairs share a cable, told apart by number.
//! - *Payload moves between the socket and registered memory in one system call*, with no buffer in between; device memory is reached
//!   through the attachment to the dma-buf that was registered, and in no other way. Atomics are the processor's own.
//! - *The architecture's semantics*: in order per queue pair, acknowledged, keys, domains, bounds and rights checked where rdma-core's own
//!   software NIC checks them, the same completion statuses and events. Where rdma_rxe itself differs, gaudi-verbs-conformance has the
//!   table. WRITE, READ, SEND, with immediate and with invalidate, atomics, inline data, memory windows of both types, shared receive
//!   queues with their limit, and datagrams, which are dropped without a word where they find no receive.
//! - *Two threads a cable, and the receiving one never writes to it*: answers go through the sender, so that two busy NICs cannot
//!   block each other. What a peer can make us remember is bounded.
//! - *Nothing that comes over a cable is trusted*: a frame that the protocol does not allow takes the cable down with a `Protocol` error;
//!   every queue pair on it then ends with `RETRY_EXC_ERR`, as if the peer were gone. Nothing waits for ever.
//! - *Keys are random*: one key does not lead to another. A cable cannot claim the GID of another live
//!   cable; the first one to claim a GID has it, because cables do not authenticate their peers.
//!   Requests and answers outside the window of message numbers of their connection are dropped and
//!   counted, as late frames of an earlier connection are.
//! - *The error state ends access to memory*: reads that are not answered yet are refused, and flushed
//!   work completes after the last frame that used its buffers.
//! - *Faults by seed* ([`FaultRule`]): frames are lost, damaged, doubled, delayed and reordered, and connections do not show it: what is
//!   not answered in time is sent again, what comes twice is dropped, an atomic is done once. Writes to device memory can be made to
//!   become visible late, as a bus may ([`SoftNicConfig::late_writes`]).
//!
//! What differs from hardware, and is meant to:
//! - Messages are cut at 256 KiB, not at the MTU; datagrams have one packet of at most the MTU.
//! - A message that finds no receive is refused with "not ready" and sent again by the requester, `rnr_retry` times, after the
//!   responder's `min_rnr_timer` (at most 1 s): then `RNR_RETRY_EXC_ERR`. A peer whose queue pair is not connected yet is asked again
//!   for as long as `timeout × (retry_cnt + 1)`.
//! - A cable that goes down flushes receives too, so that nobody waits for messages that cannot come.
//! - A real dma-buf whose `DMA_BUF_IOCTL_SYNC` fails before sending takes the cable down; before receiving it is a local or remote
//!   operation error.
//! - A completion queue that overflows loses completions, raises `CQ_ERR`, puts the queue pair into error, and fails to poll once it is
//!   empty.
//! - A local operation (bind, invalidation) completes after the peer has acknowledged its place in the order.

mod answer;
mod cable;
mod control;
mod core;
mod counters;
mod cq;
mod events;
mod fault;
mod keys;
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
