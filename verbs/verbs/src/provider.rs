//! The seam between verbs and NICs: the traits that a provider implements.
//!
//! Control operations are methods of [`Device`] and name objects by numbers, as uverbs does.
//! Posting and polling use [`CompletionQueue`] and [`QueuePair`] objects, which need no lookup.
//!
//! The caller guarantees: sizes are within the device's limits; posted elements and inline bytes
//! are within the queue's; access flags and page offsets follow the rules; handles are the
//! provider's own and live; children are destroyed before parents; no call comes from a fork child.
//! The provider checks what the hot path and the peer bring: keys, domains, bounds, rights, queue
//! room.

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
use gaudi_sys::poll::readable;

use crate::access::Access;
use crate::device::{DeviceAttr, Gid, GidEntry, GidKind, Mtu, PortAttr};
use crate::event::AsyncEvent;
use crate::handle::{AhHandle, MrHandle, MwHandle};
pub use crate::handle::{CqHandle, PdHandle, QpHandle, SrqHandle};
use crate::open_enum::open_enum;
use crate::wc::WorkCompletion;
use crate::wr::{Lkey, MrAddr, Psn, QpAddress, Qpn, RecvWr, Rkey, SendWr};

/// Whether a region still reaches its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MrState {
    /// It reaches its memory.
    Live,
    /// An event may have removed the memory: a device reset, or an access error of a queue pair.
    Suspect,
    /// The exporter revoked the memory, or a [`RegionGroup`](crate::RegionGroup) deregistered the
    /// region. Every use of its keys fails. It can only be closed.
    Revoked,
}

/// How a region was registered.
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
    /// All paths. Messages between peers carry the index, so new paths go to the end.
    pub const ALL: [Self; 6] = [
        Self::Host,
        Self::DmaBuf,
        Self::DmaBufEx,
        Self::DataDirect,
        Self::RawUverbs,
        Self::Software,
    ];

    /// Returns the name for tables.
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

/// A new region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMr {
    /// Handle to deregister it.
    pub handle: MrHandle,
    /// Key for work requests of this end.
    pub lkey: Lkey,
    /// Key for the peer.
    pub rkey: Rkey,
    /// How it was registered.
    pub path: RegPath,
}

/// A window of a dma-buf to register.
#[derive(Debug, Clone, Copy)]
pub struct DmaBufMr<'a> {
    /// Protection domain.
    pub pd: PdHandle,
    /// Memory to register.
    pub window: &'a Window,
    /// Address of the first byte for keys. Equals the window's offset modulo 4096.
    pub iova: MrAddr,
    /// Rights.
    pub access: Access,
}

/// A new memory window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMw {
    /// Handle to deallocate it.
    pub handle: MwHandle,
    /// Key before the first bind. A bind of type 2 changes its lowest eight bits; one of type 1
    /// makes a new key.
    pub rkey: Rkey,
}

/// `enum ibv_mw_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MwType {
    /// Belongs to a protection domain, and a bind moves it. It is bound by a work request like type
    /// 2, which the software NIC and rdma_rxe accept. Other drivers may refuse it: rdma-core's own
    /// call, `ibv_bind_mw`, is not offered.
    Type1,
    /// Bound and invalidated by work requests. Belongs to a queue pair once bound.
    Type2,
}

/// The supported types of `enum ibv_qp_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable datagram: any peer, one packet per message.
    Ud,
}

open_enum! {
    /// `enum ibv_qp_state`, open.
    #[derive(Debug)]
    QpState(u32) {
        0 RESET "`IBV_QPS_RESET`.",
        1 INIT "`IBV_QPS_INIT`.",
        2 RTR "`IBV_QPS_RTR`.",
        3 RTS "`IBV_QPS_RTS`.",
        4 SQD "`IBV_QPS_SQD`.",
        5 SQE "`IBV_QPS_SQE`.",
        6 ERR "`IBV_QPS_ERR`.",
    }
}

/// A shared receive queue to create (`struct ibv_srq_init_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqRequest {
    /// Protection domain.
    pub pd: PdHandle,
    /// Least number of receives.
    pub max_wr: u32,
    /// Elements per receive.
    pub max_sge: u32,
}

/// Capacity of a queue pair (`struct ibv_qp_cap`). A provider may grant more than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpCap {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Elements per send.
    pub max_send_sge: u32,
    /// Elements per receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data per send.
    pub max_inline_data: u32,
}

/// A new queue pair.
#[derive(Debug)]
pub struct NewQp {
    /// Handle to modify and destroy it.
    pub handle: QpHandle,
    /// Object to post to.
    pub queue: Arc<dyn QueuePair>,
    /// Its capacity.
    pub cap: QpCap,
}

/// A queue pair to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpRequest {
    /// Reliable connection or datagram.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdHandle,
    /// Completion queue of its sends.
    pub send_cq: CqHandle,
    /// Completion queue of its receives.
    pub recv_cq: CqHandle,
    /// Shared receive queue, instead of a receive queue of its own.
    pub srq: Option<SrqHandle>,
    /// Least capacity.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub sq_sig_all: bool,
}

/// A state transition of `ibv_modify_qp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpTransition {
    /// RESET → INIT of a reliable connection.
    Init {
        /// Rights of the peer through this queue pair (`qp_access_flags`).
        access: Access,
    },
    /// RESET → INIT of a datagram queue pair.
    UdInit {
        /// Key that a received datagram must carry.
        qkey: u32,
    },
    /// INIT → RTR of a reliable connection.
    ReadyToReceive {
        /// Address of the peer's queue pair.
        remote: QpAddress,
        /// MTU of the path.
        path_mtu: Mtu,
        /// Reads and atomics that this end answers at a time.
        max_dest_rd_atomic: u8,
        /// Wait that the peer must keep before it retries if no receive is posted.
        min_rnr_timer: Duration,
    },
    /// INIT → RTR of a datagram queue pair.
    UdReadyToReceive,
    /// RTR → RTS of a datagram queue pair.
    UdReadyToSend {
        /// First packet sequence number of the send queue.
        sq_psn: Psn,
    },
    /// RTR → RTS of a reliable connection.
    ReadyToSend {
        /// First packet sequence number of the send queue.
        sq_psn: Psn,
        /// Reads and atomics that this end requests at a time.
        max_rd_atomic: u8,
        /// Timeout of an answer.
        timeout: Duration,
        /// Retries after a timeout.
        retry_cnt: u8,
        /// Retries if the peer has no receive posted; 7 is unlimited.
        rnr_retry: u8,
    },
    /// Any state but RESET → ERR: queued work is flushed.
    Error,
    /// Any → RESET: queued work is dropped without completions.
    Reset,
}

fn lacks<T>(operation: &'static str, what: &str) -> Result<T> {
    Err(Error::unsupported(
        operation,
        format!("this provider has no {what}"),
    ))
}

/// An open NIC with one port (`struct ibv_context`).
///
/// Every method returns the errno of the operation that it names as its error. `EINVAL` is also the
/// error for a handle that names no object, `ENOMEM` for a device that is full, and `Unsupported`
/// for an operation that the provider does not have.
#[expect(
    clippy::missing_errors_doc,
    reason = "one contract for all methods, in the trait's documentation"
)]
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// `ibv_query_device`: returns the attributes of the device.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// `ibv_query_port`: returns the current attributes of the port.
    fn query_port(&self) -> Result<PortAttr>;

    /// `ibv_query_gid_table`: returns every address of the port. Connections use [`PortAttr::gid`].
    fn query_gids(&self) -> Result<Vec<GidEntry>> {
        let port = self.query_port()?;
        Ok(vec![GidEntry {
            index: port.gid_index,
            gid: port.gid,
            kind: GidKind::Unknown,
            netdev: None,
        }])
    }

    /// `ibv_context.async_fd`: returns a descriptor that is readable while events are queued, or
    /// `None` if the NIC has no events.
    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// `ibv_get_async_event` and `ibv_ack_async_event`: takes and acknowledges an event. Never
    /// blocks.
    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(None)
    }

    /// `ibv_alloc_pd`.
    fn alloc_pd(&self) -> Result<PdHandle>;

    /// `ibv_dealloc_pd`.
    fn dealloc_pd(&self, pd: PdHandle) -> Result<()>;

    /// `ibv_reg_mr_iova`: registers a range of this process.
    ///
    /// # Safety
    /// From this call until [`dereg_mr`](Self::dereg_mr) of it has returned `Ok`:
    /// - the range stays mapped in this process: readable, and writable if `access` allows the NIC
    ///   to write;
    /// - no Rust reference to it is created or used while work that accesses it may run.
    unsafe fn reg_mr(
        &self,
        pd: PdHandle,
        address: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
    ) -> Result<NewMr>;

    /// `ibv_reg_dmabuf_mr` by the best path that the NIC has: data direct, the library, or the
    /// kernel's ioctl. The provider attaches to the dma-buf by name until the region is
    /// deregistered.
    fn reg_dmabuf_mr(&self, request: &DmaBufMr<'_>) -> Result<NewMr>;

    /// `ibv_dereg_mr`: returns once nothing accesses the memory. Its keys are invalid then.
    fn dereg_mr(&self, mr: MrHandle) -> Result<()>;

    /// Returns whether the region still reaches its memory, or `None` if the provider cannot know
    /// (libibverbs).
    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>>;

    /// `ibv_alloc_mw`.
    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        let _ = (pd, mw_type); // names for the documentation
        lacks("ibv_alloc_mw", "memory windows")
    }

    /// `ibv_dealloc_mw`, also for a bound window.
    fn dealloc_mw(&self, mw: MwHandle) -> Result<()> {
        let _ = mw; // names for the documentation
        lacks("ibv_dealloc_mw", "memory windows")
    }

    /// `ibv_create_ah`: creates a route to `gid` from this port. `lid` is its local identifier on
    /// InfiniBand, and 0 elsewhere.
    fn create_ah(&self, pd: PdHandle, gid: &Gid, lid: u16) -> Result<AhHandle> {
        let _ = (pd, gid, lid); // names for the documentation
        lacks("ibv_create_ah", "datagrams")
    }

    /// `ibv_destroy_ah`.
    fn destroy_ah(&self, ah: AhHandle) -> Result<()> {
        let _ = ah; // names for the documentation
        lacks("ibv_destroy_ah", "datagrams")
    }

    /// `ibv_create_srq`.
    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        let _ = request; // names for the documentation
        lacks("ibv_create_srq", "shared receive queues")
    }

    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`: raises one event once fewer than `limit` receives are
    /// left. 0 disarms it.
    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<()> {
        let _ = (srq, limit); // names for the documentation
        lacks("ibv_modify_srq", "shared receive queues")
    }

    /// `ibv_destroy_srq`.
    fn destroy_srq(&self, srq: SrqHandle) -> Result<()> {
        let _ = srq; // names for the documentation
        lacks("ibv_destroy_srq", "shared receive queues")
    }

    /// `ibv_create_cq`, with a completion channel of its own.
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)>;

    /// `ibv_destroy_cq`.
    fn destroy_cq(&self, cq: CqHandle) -> Result<()>;

    /// `ibv_create_qp`.
    fn create_qp(&self, request: &QpRequest) -> Result<NewQp>;

    /// `ibv_modify_qp`. `EINVAL` if the state does not allow the transition.
    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()>;

    /// `ibv_query_qp`: returns the state that the NIC reports.
    fn query_qp(&self, qp: QpHandle) -> Result<QpState>;

    /// `ibv_destroy_qp`: returns once nothing of it accesses memory. Outstanding work is dropped
    /// without completions.
    fn destroy_qp(&self, qp: QpHandle) -> Result<()>;
}

/// A completion queue (`struct ibv_cq` with its `ibv_comp_channel`).
pub trait CompletionQueue: fmt::Debug + Send + Sync {
    /// `ibv_poll_cq`: takes up to `into.len()` completions. Never blocks, never allocates on
    /// success.
    ///
    /// # Errors
    /// `Io` (`EOVERFLOW`) if the queue has overflowed and the completions that it kept are polled.
    /// The software NIC detects that at once. libibverbs reports it only by the event `CQ_ERR`:
    /// until a caller takes that by [`Device::get_async_event`], the queue looks like one in which
    /// nothing completes.
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize>;

    /// `ibv_req_notify_cq`: makes the next completion signal [`event_fd`](Self::event_fd), once.
    ///
    /// # Errors
    /// The errno of `ibv_req_notify_cq`.
    fn req_notify(&self, solicited_only: bool) -> Result<()>;

    /// Returns the descriptor of the completion channel.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Waits for an event. Returns false if none is pending after this time. A provider without
    /// threads does its work in this call.
    ///
    /// # Errors
    /// The errno of poll(2); `TimedOut` after this time of a clock that is not the machine's.
    fn wait_event(&self, timeout: Duration) -> Result<bool> {
        event_within(self.event_fd(), timeout)
    }

    /// Takes the pending event, if any, so that the descriptor is no longer readable. Never blocks.
    ///
    /// # Errors
    /// The errno of `ibv_get_cq_event`.
    fn ack_event(&self) -> Result<()>;
}

/// Waits until a completion channel is readable. Returns whether it is.
///
/// # Errors
/// The errno of poll(2).
pub fn event_within(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool> {
    let [signaled] =
        readable([fd], timeout).map_err(|errno| Error::from_errno("completion queue wait", errno))?;
    Ok(signaled)
}

/// The posting side of a queue pair (`struct ibv_qp`). Each method is called by one thread at a
/// time.
pub trait QueuePair: fmt::Debug + Send + Sync {
    /// Returns its number on the wire.
    fn qpn(&self) -> Qpn;

    /// `ibv_post_send`. Never allocates on success.
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full.
    fn post_send(&self, request: &SendWr<'_>) -> Result<()>;

    /// `ibv_post_recv`. Never allocates on success.
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full.
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()>;
}

/// The posting side of a shared receive queue (`struct ibv_srq`). Called by one thread at a time.
pub trait SharedReceiveQueue: fmt::Debug + Send + Sync {
    /// `ibv_post_srq_recv`. Never allocates on success.
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full.
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()>;
}
