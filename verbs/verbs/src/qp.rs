//! [`Qp`]: a reliable connection, and posting to it.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{Error, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::cq::Cq;
use crate::invalid;
use crate::provider::{QpCap, QpHandle, QpRequest, QpState, QpTransition, QpType, QueuePair};
use crate::wr::{Payload, Psn, QpAddress, Qpn, RecvWr, RemoteAddr, SendOp, SendWr, Sge};

/// What a queue pair is made of. `QpInit::new` has modest room; change what does not fit.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
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
    /// Whether every send completes visibly, signaled or not.
    pub sq_sig_all: bool,
}

impl<'a> QpInit<'a> {
    /// 64 sends, 64 receives, 4 elements each, all completing in `cq`.
    pub fn new(cq: &'a Cq) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 0,
            sq_sig_all: false,
        }
    }
}

/// An RC queue pair: in order, acknowledged, one peer.
///
/// Any error of a work request puts it into the error state: what is queued is flushed with `WR_FLUSH_ERR`, and it must be made anew.
pub struct Qp {
    handle: QpHandle,
    live: bool,
    queue: Arc<dyn QueuePair>,
    cap: QpCap,
    psn: Psn,
    pd: Pd,
    _send_cq: Cq,
    _recv_cq: Cq,
}

impl Pd {
    /// `ibv_create_qp`: an RC queue pair in the state RESET.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        const OPERATION: &str = "ibv_create_qp";
        let context = self.context();
        for cq in [init.send_cq, init.recv_cq] {
            if !cq.context().is_same(context) {
                return Err(invalid(
                    OPERATION,
                    "the completion queue belongs to another context",
                ));
            }
        }
        let attr = context.attr();
        for (what, asked, limit) in [
            (
                "a send queue cannot have so much room",
                init.max_send_wr,
                attr.max_qp_wr,
            ),
            (
                "a receive queue cannot have so much room",
                init.max_recv_wr,
                attr.max_qp_wr,
            ),
            (
                "a send cannot have so many elements",
                init.max_send_sge,
                attr.max_sge,
            ),
            (
                "a receive cannot have so many elements",
                init.max_recv_sge,
                attr.max_sge,
            ),
        ] {
            context.check_limit(OPERATION, what, asked.into(), limit.into())?;
        }
        let request = QpRequest {
            qp_type: QpType::Rc,
            pd: self.handle(),
            send_cq: init.send_cq.handle(),
            recv_cq: init.recv_cq.handle(),
            srq: None,
            cap: QpCap {
                max_send_wr: init.max_send_wr,
                max_recv_wr: init.max_recv_wr,
                max_send_sge: init.max_send_sge,
                max_recv_sge: init.max_recv_sge,
                max_inline_data: init.max_inline_data,
            },
            sq_sig_all: init.sq_sig_all,
        };
        let new = context.device(OPERATION)?.create_qp(&request)?;
        // Where counting starts is random, so that packets of an earlier connection do not fit this one.
        let psn = RandomState::new().build_hasher().finish() & 0xff_ffff;
        Ok(Qp {
            handle: new.handle,
            live: true,
            queue: new.queue,
            cap: new.cap,
            psn: Psn(u32::try_from(psn).unwrap_or(0)),
            pd: self.clone(),
            _send_cq: init.send_cq.clone(),
            _recv_cq: init.recv_cq.clone(),
        })
    }
}

impl Qp {
    /// Its number on the wire.
    pub fn qpn(&self) -> Qpn {
        self.queue.qpn()
    }

    /// What it has: at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// `ibv_query_qp`: its state, as the NIC says.
    pub fn state(&self) -> Result<QpState> {
        self.pd.context().device("ibv_query_qp")?.query_qp(self.handle)
    }

    /// Its domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// What the other end must know: see [`exchange`](crate::exchange).
    pub fn address(&self) -> Result<QpAddress> {
        let port = self.pd.context().query_port()?;
        Ok(QpAddress {
            qpn: self.qpn(),
            psn: self.psn,
            gid: port.gid,
            mtu: port.active_mtu,
        })
    }

    /// `ibv_modify_qp`: one transition.
    pub fn modify(&mut self, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        if let QpTransition::Init { access } = transition {
            access.check_remote(OPERATION)?;
        }
        self.pd
            .context()
            .device(OPERATION)?
            .modify_qp(self.handle, transition)
    }

    /// INIT, RTR and RTS in one go, with `access` for the peer.
    ///
    /// The peer has 8 times 2 s to answer anything at all, and 6 times 100 ms to post a receive that a message waits for.
    pub fn connect(&mut self, remote: &QpAddress, access: Access) -> Result<()> {
        let reads = self.pd.context().attr().max_qp_rd_atom;
        let path_mtu = self.pd.context().query_port()?.active_mtu.min(remote.mtu);
        self.modify(&QpTransition::Init { access })?;
        self.modify(&QpTransition::ReadyToReceive {
            remote: *remote,
            path_mtu,
            max_dest_rd_atomic: reads,
            min_rnr_timer: Duration::from_millis(100),
        })?;
        self.modify(&QpTransition::ReadyToSend {
            sq_psn: self.psn,
            max_rd_atomic: reads,
            timeout: Duration::from_secs(2),
            retry_cnt: 7,
            rnr_retry: 6,
        })
    }

    /// Into the error state: everything queued completes with `WR_FLUSH_ERR`.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(&QpTransition::Error)
    }

    /// Begins a work request for the send queue; `wr_id` comes back in its completion.
    pub fn post_send(&mut self, wr_id: u64) -> SendPost<'_> {
        SendPost {
            qp: self,
            wr_id,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }

    /// Begins a work request for the receive queue; `wr_id` comes back in its completion.
    pub fn post_recv(&mut self, wr_id: u64) -> RecvPost<'_> {
        RecvPost { qp: self, wr_id }
    }

    /// `ibv_destroy_qp`: what is outstanding is dropped without completions; nothing of it touches memory afterwards.
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        match self.destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn destroy(&mut self) -> Result<()> {
        self.pd
            .context()
            .device("ibv_destroy_qp")?
            .destroy_qp(self.handle)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.live {
            let freed = self.destroy();
            self.pd.context().report(freed);
        }
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({} of {})", self.qpn(), self.pd.context().name())
    }
}

/// A send being built: options first, then the operation.
#[derive(Debug)]
#[must_use = "nothing is posted until an operation is chosen and `post` is called"]
pub struct SendPost<'q> {
    qp: &'q mut Qp,
    wr_id: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

impl<'q> SendPost<'q> {
    /// Whether success completes visibly (`IBV_SEND_SIGNALED`); failure always does. On unless turned off.
    ///
    /// The queue has room again only when a later signaled request of it has completed and was polled.
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.signaled = signaled;
        self
    }

    /// Whether the peer's completion wakes who waits for solicited ones only (`IBV_SEND_SOLICITED`).
    pub fn solicited(mut self, solicited: bool) -> Self {
        self.solicited = solicited;
        self
    }

    /// Whether to wait for the reads posted before (`IBV_SEND_FENCE`). Without it a write may pass them: it can send what a read was
    /// to replace, or change what a read was to fetch.
    pub fn fence(mut self, fence: bool) -> Self {
        self.fence = fence;
        self
    }

    /// Local bytes into the peer's region.
    pub fn write<'s>(self, local: &'s [Sge], to: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Write(to), local)
    }

    /// Local bytes into the peer's region, and a number into its next receive's completion.
    pub fn write_imm<'s>(self, local: &'s [Sge], to: RemoteAddr, imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::WriteImm(to, imm), local)
    }

    /// The peer's bytes into local memory, which needs `LOCAL_WRITE`.
    pub fn read<'s>(self, local: &'s [Sge], from: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Read(from), local)
    }

    /// Local bytes into the peer's next receive.
    pub fn send<'s>(self, local: &'s [Sge]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, local)
    }

    /// Local bytes into the peer's next receive, and a number into its completion.
    pub fn send_imm<'s>(self, local: &'s [Sge], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), local)
    }

    fn ready<'s>(self, op: SendOp, sges: &'s [Sge]) -> SendReady<'q, 's> {
        let request = SendWr {
            wr_id: self.wr_id,
            op,
            payload: Payload::Sges(sges),
            ud: None,
            signaled: self.signaled,
            solicited: self.solicited,
            fence: self.fence,
        };
        SendReady { qp: self.qp, request }
    }
}

/// A send that can be posted.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct SendReady<'q, 's> {
    qp: &'q mut Qp,
    request: SendWr<'s>,
}

impl SendReady<'_, '_> {
    /// As [`SendPost::signaled`].
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.request.signaled = signaled;
        self
    }

    /// `ibv_post_send`: `WouldBlock` (`ENOMEM`) where the queue is full. What fails later tells the completion.
    pub fn post(self) -> Result<()> {
        self.qp.pd.context().check_process("ibv_post_send")?;
        self.qp.queue.post_send(&self.request)
    }
}

/// A receive being built.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct RecvPost<'q> {
    qp: &'q mut Qp,
    wr_id: u64,
}

impl RecvPost<'_> {
    /// `ibv_post_recv` of local memory, which needs `LOCAL_WRITE`. No element at all is right for writes with immediate.
    /// `WouldBlock` (`ENOMEM`) where the queue is full.
    pub fn post(self, into: &[Sge]) -> Result<()> {
        self.qp.pd.context().check_process("ibv_post_recv")?;
        self.qp.queue.post_recv(&RecvWr {
            wr_id: self.wr_id,
            sges: into,
        })
    }
}
