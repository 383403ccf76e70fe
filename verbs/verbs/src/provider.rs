//! The seam between verbs and NICs: what a provider implements.
//!
//! The software NIC implements it, and so will libibverbs and the raw uverbs ioctls. Control operations are on [`Device`] and name
//! objects by plain numbers, as uverbs does; the two objects of the hot path, [`CompletionQueue`] and [`QueuePair`], are handed out
//! once, so that posting and polling look nothing up.
//!
//! A provider may rely on the safe layer for this: sizes are in the device's limits, access flags and page offsets follow the rules,
//! handles are its own and live, children are destroyed before parents, no call comes from a fork child. It must itself check what
//! the hot path and the peer bring: keys, domains, bounds, rights, queue room.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use gaudi_dmabuf::Window;
use gaudi_seam::{HostVa, Result};

use crate::access::Access;
use crate::device::{DeviceAttr, Mtu, PortAttr};
use crate::mr::MrState;
use crate::wc::WorkCompletion;
use crate::wr::{Lkey, MrAddr, Psn, QpAddress, Qpn, RecvWr, Rkey, SendWr};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    };
}

handle! {
    /// A protection domain of one device.
    PdHandle
}
handle! {
    /// A memory region of one device.
    MrHandle
}
handle! {
    /// A completion queue of one device.
    CqHandle
}
handle! {
    /// A queue pair of one device; not its number on the wire.
    QpHandle
}

/// A region as the provider made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMr {
    /// To deregister it.
    pub handle: MrHandle,
    /// For its own work requests.
    pub lkey: Lkey,
    /// For the peer.
    pub rkey: Rkey,
}

/// A queue pair to make. Its type is RC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpRequest {
    /// Its domain.
    pub pd: PdHandle,
    /// Where its send queue completes.
    pub send_cq: CqHandle,
    /// Where its receive queue completes.
    pub recv_cq: CqHandle,
    /// Room of the send queue; the queue has at least this.
    pub max_send_wr: u32,
    /// Room of the receive queue; the queue has at least this.
    pub max_recv_wr: u32,
    /// Elements a send.
    pub max_send_sge: u32,
    /// Elements a receive.
    pub max_recv_sge: u32,
    /// Whether every send completes visibly.
    pub sq_sig_all: bool,
}

/// `ibv_modify_qp`, by the states that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpTransition {
    /// RESET → INIT.
    Init {
        /// What the peer may do through this queue pair (`qp_access_flags`).
        access: Access,
    },
    /// INIT → RTR.
    ReadyToReceive {
        /// The other end.
        remote: QpAddress,
        /// Bytes a packet.
        path_mtu: Mtu,
        /// Reads that we answer at a time.
        max_dest_rd_atomic: u8,
        /// How long the peer is to wait before it asks again when we had no receive posted.
        min_rnr_timer: Duration,
    },
    /// RTR → RTS.
    ReadyToSend {
        /// Where our send queue starts to count.
        sq_psn: Psn,
        /// Reads that we ask for at a time.
        max_rd_atomic: u8,
        /// How long to wait for an answer.
        timeout: Duration,
        /// How often to ask again.
        retry_cnt: u8,
        /// How often to ask again when the peer had no receive posted; 7 is for ever.
        rnr_retry: u8,
    },
    /// Any → ERR: what is queued is flushed.
    Error,
}

/// One open NIC with one port (`struct ibv_context`).
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// What it is and can.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Its port now.
    fn query_port(&self) -> Result<PortAttr>;

    /// `ibv_alloc_pd`.
    fn alloc_pd(&self) -> Result<PdHandle>;

    /// `ibv_dealloc_pd`.
    fn dealloc_pd(&self, pd: PdHandle) -> Result<()>;

    /// `ibv_reg_mr_iova`: a range of this process.
    ///
    /// # Safety
    /// From this call until [`dereg_mr`](Self::dereg_mr) of it has returned `Ok`:
    /// - the range stays mapped in this process: readable, and writable where `access` allows the NIC to write;
    /// - no Rust reference to it is made or used while work that touches it may run.
    unsafe fn reg_mr(
        &self,
        pd: PdHandle,
        address: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
    ) -> Result<NewMr>;

    /// `ibv_reg_dmabuf_mr`: a window of a dma-buf; the provider attaches to it by name and holds it until the region is gone.
    fn reg_dmabuf_mr(&self, pd: PdHandle, window: &Window, iova: MrAddr, access: Access) -> Result<NewMr>;

    /// `ibv_dereg_mr`: returns once nothing touches the memory any more; its keys are dead then.
    fn dereg_mr(&self, mr: MrHandle) -> Result<()>;

    /// Whether the region still reaches its memory.
    fn mr_state(&self, mr: MrHandle) -> Result<MrState>;

    /// `ibv_create_cq`, with a completion channel of its own.
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)>;

    /// `ibv_destroy_cq`.
    fn destroy_cq(&self, cq: CqHandle) -> Result<()>;

    /// `ibv_create_qp`.
    fn create_qp(&self, request: &QpRequest) -> Result<(QpHandle, Arc<dyn QueuePair>)>;

    /// `ibv_modify_qp`. A transition that the state does not allow is `EINVAL`.
    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()>;

    /// `ibv_destroy_qp`: returns once nothing of it touches memory any more. Outstanding work is dropped without completions.
    fn destroy_qp(&self, qp: QpHandle) -> Result<()>;
}

/// A completion queue (`struct ibv_cq` with its `ibv_comp_channel`).
pub trait CompletionQueue: fmt::Debug + Send + Sync {
    /// Moves up to `into.len()` completions out; never blocks, never allocates on success.
    ///
    /// Fails where the queue has overflowed, after what it still held was polled: completions are lost for good.
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize>;

    /// `ibv_req_notify_cq`: the next completion that is added makes [`event_fd`](Self::event_fd) readable, once.
    fn req_notify(&self, solicited_only: bool) -> Result<()>;

    /// The pollable side of the completion channel.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Takes the pending event, so that the descriptor is no longer readable. Never blocks; fine without an event.
    fn ack_event(&self) -> Result<()>;
}

/// A queue pair (`struct ibv_qp`), for posting. The safe layer calls each method from one thread at a time.
pub trait QueuePair: fmt::Debug + Send + Sync {
    /// Its number on the wire.
    fn qpn(&self) -> Qpn;

    /// `ibv_post_send`: `WouldBlock` with `ENOMEM` where the queue is full; never allocates on success.
    fn post_send(&self, request: &SendWr<'_>) -> Result<()>;

    /// `ibv_post_recv`: `WouldBlock` with `ENOMEM` where the queue is full; never allocates on success.
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()>;
}
