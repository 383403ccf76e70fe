//! The seam between verbs and NICs: what a provider implements.
//!
//! The software NIC implements it, and libibverbs with the raw uverbs ioctls. Control operations are on [`Device`] and name
//! objects by plain numbers, as uverbs does; the two objects of the hot path, [`CompletionQueue`] and [`QueuePair`], are handed out
//! once, so that posting and polling look nothing up.
//!
//! A provider may rely on the safe layer for this: sizes are in the device's limits, posted elements and inline bytes in the queue's, access flags and page offsets follow the rules,
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
use gaudi_seam::{Error, HostVa, Result};

use crate::access::Access;
use crate::device::{DeviceAttr, Gid, GidEntry, GidKind, Mtu, PortAttr};
use crate::event::AsyncEvent;
use crate::handle::{AhHandle, MrHandle, MwHandle};
pub use crate::handle::{CqHandle, PdHandle, QpHandle, SrqHandle};
use crate::wc::WorkCompletion;
use crate::wr::{Lkey, MrAddr, Psn, QpAddress, Qpn, RecvWr, Rkey, SendWr};

/// Whether a region still reaches its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MrState {
    /// It does.
    Live,
    /// Something happened that may have taken the memory: a reset of the device, an access error of a queue pair that used it.
    Suspect,
    /// The memory is gone: its exporter took it back, or a [`RegionGroup`](crate::RegionGroup) deregistered it. Every use of its keys
    /// fails. It can only be closed.
    Revoked,
}

impl MrState {
    pub(crate) fn of(value: u8) -> Self {
        match value {
            0 => Self::Live,
            1 => Self::Suspect,
            _ => Self::Revoked,
        }
    }
}

/// Which way a registration went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegPath {
    /// Host memory, by its address.
    Host,
    /// `ibv_reg_dmabuf_mr` of the NIC's library.
    DmaBuf,
    /// `ibv_reg_mr_ex` with a dma-buf.
    DmaBufEx,
    /// `mlx5dv_reg_dmabuf_mr` with data direct: past the root complex.
    DataDirect,
    /// The kernel's ioctl, where the NIC's library has no such operation.
    RawUverbs,
    /// A software NIC, through a mapping of the dma-buf.
    Software,
}

impl RegPath {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "ibv_reg_mr_iova",
            Self::DmaBuf => "ibv_reg_dmabuf_mr",
            Self::DmaBufEx => "ibv_reg_mr_ex",
            Self::DataDirect => "mlx5dv_reg_dmabuf_mr (data direct)",
            Self::RawUverbs => "uverbs ioctl REG_DMABUF_MR",
            Self::Software => "software",
        }
    }
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
    /// Which way the registration went.
    pub path: RegPath,
}

/// A window of a dma-buf to register.
#[derive(Debug, Clone, Copy)]
pub struct DmaBufMr<'a> {
    /// Its domain.
    pub pd: PdHandle,
    /// The memory.
    pub window: &'a Window,
    /// What addresses of the region count from; agrees with the window's offset modulo 4096.
    pub iova: MrAddr,
    /// What it allows.
    pub access: Access,
}

/// A memory window as the provider made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMw {
    /// To deallocate it.
    pub handle: MwHandle,
    /// Its key before the first bind; a bind of type 2 changes the lowest eight bits, one of type 1 makes a new one.
    pub rkey: Rkey,
}

/// `enum ibv_mw_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MwType {
    /// Belongs to a protection domain; a bind moves it. Here it is bound by a work request, like type 2, which the software NIC and
    /// rdma_rxe take. rdma-core has a call of its own for it, `ibv_bind_mw`, which is not offered: a driver may refuse the request.
    Type1,
    /// Bound by a work request, invalidated by one; belongs to a queue pair once bound.
    Type2,
}

/// `enum ibv_qp_type`, as far as it is offered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable datagram: any peer, one packet a message.
    Ud,
}

/// `enum ibv_qp_state`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QpState(pub u32);

impl QpState {
    /// `IBV_QPS_RESET`.
    pub const RESET: Self = Self(0);
    /// `IBV_QPS_INIT`.
    pub const INIT: Self = Self(1);
    /// `IBV_QPS_RTR`.
    pub const RTR: Self = Self(2);
    /// `IBV_QPS_RTS`.
    pub const RTS: Self = Self(3);
    /// `IBV_QPS_SQD`.
    pub const SQD: Self = Self(4);
    /// `IBV_QPS_SQE`.
    pub const SQE: Self = Self(5);
    /// `IBV_QPS_ERR`.
    pub const ERR: Self = Self(6);
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "RESET",
            1 => "INIT",
            2 => "RTR",
            3 => "RTS",
            4 => "SQD",
            5 => "SQE",
            6 => "ERR",
            other => return write!(f, "Unknown({other:#x})"),
        };
        f.write_str(name)
    }
}

/// A shared receive queue to make (`struct ibv_srq_init_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqRequest {
    /// Its domain.
    pub pd: PdHandle,
    /// Room; the queue has at least this.
    pub max_wr: u32,
    /// Elements a receive.
    pub max_sge: u32,
}

/// What a queue pair has, once made: a provider may give more than was asked for (`struct ibv_qp_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpCap {
    /// Room of the send queue.
    pub max_send_wr: u32,
    /// Room of the receive queue.
    pub max_recv_wr: u32,
    /// Elements a send.
    pub max_send_sge: u32,
    /// Elements a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send can carry without a region.
    pub max_inline_data: u32,
}

/// A queue pair as the provider made it.
#[derive(Debug)]
pub struct NewQp {
    /// To change and destroy it.
    pub handle: QpHandle,
    /// To post to.
    pub queue: Arc<dyn QueuePair>,
    /// What it has.
    pub cap: QpCap,
}

/// A queue pair to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpRequest {
    /// Reliable connection or datagram.
    pub qp_type: QpType,
    /// Its domain.
    pub pd: PdHandle,
    /// Where its send queue completes.
    pub send_cq: CqHandle,
    /// Where its receive queue completes.
    pub recv_cq: CqHandle,
    /// Where its receives come from; it has no receive queue of its own then.
    pub srq: Option<SrqHandle>,
    /// What it must have at least.
    pub cap: QpCap,
    /// Whether every send completes visibly.
    pub sq_sig_all: bool,
}

/// `ibv_modify_qp`, by the states that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpTransition {
    /// RESET → INIT of a reliable connection.
    Init {
        /// What the peer may do through this queue pair (`qp_access_flags`).
        access: Access,
    },
    /// RESET → INIT of a datagram queue pair.
    UdInit {
        /// What a datagram must carry to be received here.
        qkey: u32,
    },
    /// INIT → RTR of a reliable connection.
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
    /// INIT → RTR of a datagram queue pair.
    UdReadyToReceive,
    /// RTR → RTS of a datagram queue pair.
    UdReadyToSend {
        /// Where our send queue starts to count.
        sq_psn: Psn,
    },
    /// RTR → RTS of a reliable connection.
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
    /// Any but RESET → ERR: what is queued is flushed.
    Error,
    /// Any → RESET: what is queued is dropped without completions.
    Reset,
}

/// One open NIC with one port (`struct ibv_context`).
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// What it is and can.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Its port now.
    fn query_port(&self) -> Result<PortAttr>;

    /// `ibv_query_gid_table`: every address of the port. The one that connections use is [`PortAttr::gid`].
    fn query_gids(&self) -> Result<Vec<GidEntry>> {
        let port = self.query_port()?;
        Ok(vec![GidEntry {
            index: port.gid_index,
            gid: port.gid,
            kind: GidKind::Unknown,
            netdev: None,
        }])
    }

    /// `ibv_context.async_fd`: readable while [`get_async_event`](Self::get_async_event) has something; `None` where the NIC has no events.
    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// `ibv_get_async_event` and `ibv_ack_async_event` in one: takes one event, acknowledged. Never blocks; `None` where there is none.
    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(None)
    }

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

    /// `ibv_reg_dmabuf_mr` by the best way that the NIC has: data direct, plain, or past the library. The provider attaches to the
    /// dma-buf by name and holds it until the region is gone.
    fn reg_dmabuf_mr(&self, request: &DmaBufMr<'_>) -> Result<NewMr>;

    /// `ibv_dereg_mr`: returns once nothing touches the memory any more; its keys are dead then.
    fn dereg_mr(&self, mr: MrHandle) -> Result<()>;

    /// Whether the region still reaches its memory, where the provider can know; `None` where nothing tells it (libibverbs).
    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>>;

    /// `ibv_alloc_mw`.
    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        let _ = (pd, mw_type);
        Err(Error::unsupported(
            "ibv_alloc_mw",
            "this provider has no memory windows",
        ))
    }

    /// `ibv_dealloc_mw`: also of a bound one.
    fn dealloc_mw(&self, mw: MwHandle) -> Result<()> {
        let _ = mw;
        Err(Error::unsupported(
            "ibv_dealloc_mw",
            "this provider has no memory windows",
        ))
    }

    /// `ibv_create_ah`: how to reach `gid` from this port; by its `lid` on InfiniBand, 0 elsewhere.
    fn create_ah(&self, pd: PdHandle, gid: &Gid, lid: u16) -> Result<AhHandle> {
        let _ = (pd, gid, lid);
        Err(Error::unsupported(
            "ibv_create_ah",
            "this provider has no datagrams",
        ))
    }

    /// `ibv_destroy_ah`.
    fn destroy_ah(&self, ah: AhHandle) -> Result<()> {
        let _ = ah;
        Err(Error::unsupported(
            "ibv_destroy_ah",
            "this provider has no datagrams",
        ))
    }

    /// `ibv_create_srq`.
    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        let _ = request;
        Err(Error::unsupported(
            "ibv_create_srq",
            "this provider has no shared receive queues",
        ))
    }

    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`: one event when fewer than `limit` receives are left; 0 is none.
    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<()> {
        let _ = (srq, limit);
        Err(Error::unsupported(
            "ibv_modify_srq",
            "this provider has no shared receive queues",
        ))
    }

    /// `ibv_destroy_srq`.
    fn destroy_srq(&self, srq: SrqHandle) -> Result<()> {
        let _ = srq;
        Err(Error::unsupported(
            "ibv_destroy_srq",
            "this provider has no shared receive queues",
        ))
    }

    /// `ibv_create_cq`, with a completion channel of its own.
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)>;

    /// `ibv_destroy_cq`.
    fn destroy_cq(&self, cq: CqHandle) -> Result<()>;

    /// `ibv_create_qp`.
    fn create_qp(&self, request: &QpRequest) -> Result<NewQp>;

    /// `ibv_modify_qp`. A transition that the state does not allow is `EINVAL`.
    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()>;

    /// `ibv_query_qp`: the state, by what the NIC says.
    fn query_qp(&self, qp: QpHandle) -> Result<QpState>;

    /// `ibv_destroy_qp`: returns once nothing of it touches memory any more. Outstanding work is dropped without completions.
    fn destroy_qp(&self, qp: QpHandle) -> Result<()>;
}

/// A completion queue (`struct ibv_cq` with its `ibv_comp_channel`).
pub trait CompletionQueue: fmt::Debug + Send + Sync {
    /// Moves up to `into.len()` completions out; never blocks, never allocates on success.
    ///
    /// Fails where the provider knows that the queue has overflowed, after what it still held was polled: completions are lost for good.
    /// The software NIC knows it at once. libibverbs says it by an event alone: its provider knows it once somebody took `CQ_ERR` by
    /// [`Device::get_async_event`], and until then an overflown queue looks like one in which nothing completes.
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

/// A shared receive queue (`struct ibv_srq`), for posting. The safe layer calls it from one thread at a time.
pub trait SharedReceiveQueue: fmt::Debug + Send + Sync {
    /// `ibv_post_srq_recv`: `WouldBlock` with `ENOMEM` where the queue is full; never allocates on success.
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()>;
}
