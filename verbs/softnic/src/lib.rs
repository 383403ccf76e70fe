//! A software NIC behind the provider trait of gaudi-verbs. It is named `softnic (software)` in all output: none of its figures is
//! of hardware.
//!
//! - *A cable is a stream socket* between two NICs in one process, in two, or on two hosts. A NIC has one port and any number of cables;
//!   each end sends its GID to the other, and a queue pair uses the cable to its peer's GID. Traffic to the own GID uses a loop.
//!   Many queue pairs share a cable, distinguished by number.
//! - *Payload moves between the socket and registered memory in one system call*, with no buffer in between; device memory is
//!   accessed only through the attachment to the registered dma-buf. Atomics are the processor's.
//! - *The architecture's semantics*: in order per queue pair, acknowledged, keys, domains, bounds and rights checked where rdma-core's own
//!   software NIC checks them, the same completion statuses and events. Where rdma_rxe itself differs, gaudi-verbs-conformance has the
//!   table. WRITE, READ, SEND, with immediate and with invalidate, atomics, inline data, memory windows of both types, shared receive
//!   queues with their limit, and datagrams, which are dropped silently if no receive is posted.
//! - *Two threads a cable, and the receiving one never writes to it*: answers go through the sender, so that two busy NICs cannot
//!   block each other. State that a peer can create is bounded.
//! - *Nothing that comes over a cable is trusted*: a frame that the protocol does not allow takes the cable down with a `Protocol` error;
//!   every queue pair on it then ends with `RETRY_EXC_ERR`, as if the peer were dead. No wait is unbounded.
//! - *Keys are random*: one key does not reveal another. A cable cannot claim the GID of another live
//!   cable; the first one to claim a GID keeps it, because cables do not authenticate their peers.
//!   Requests and answers outside the window of message numbers of their connection are dropped and
//!   counted, as late frames of an earlier connection are.
//! - *The error state ends access to memory*: reads that are not answered yet are refused, and flushed
//!   work completes after the last frame that used its buffers.
//! - *Faults by seed* ([`FaultRule`]): frames are lost, corrupted, duplicated, delayed and reordered, and connections recover: unanswered frames
//!   are sent again, duplicates are dropped, an atomic is performed once. Writes to device memory can be made to become visible late,
//!   as a bus may ([`SoftNicConfig::late_writes`]).
//!
//! Intended differences from hardware:
//! - Messages are split at 256 KiB, not at the MTU; datagrams have one packet of at most the MTU.
//! - A message without a posted receive is refused with "not ready" and sent again by the requester, `rnr_retry` times, after the
//!   responder's `min_rnr_timer` (at most 1 s): then `RNR_RETRY_EXC_ERR`. A peer whose queue pair is not connected yet is asked again
//!   for as long as `timeout × (retry_cnt + 1)`.
//! - A cable that goes down flushes receives too, so that no receiver waits for messages that cannot arrive.
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
