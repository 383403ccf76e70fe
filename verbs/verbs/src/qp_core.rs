//! [`QpCore`]: what both kinds of queue pair share.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use gaudi_seam::Result;

use crate::context::{Context, Pd};
use crate::cq::Cq;
use crate::handle::QpHandle;
use crate::holders::Hold;
use crate::invalid;
use crate::object::Object;
use crate::provider::{QpCap, QpRequest, QpTransition, QpType, QueuePair};
use crate::srq::{Srq, SrqObject};
use crate::wr::{Payload, Psn, RecvWr, SendOp, SendWr, check_elements};

/// Parameters of a new queue pair.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Completion queue of sends.
    pub send_cq: &'a Cq,
    /// Completion queue of receives.
    pub recv_cq: &'a Cq,
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
    /// Whether every send generates a completion, signaled or not.
    pub sq_sig_all: bool,
    /// Shared receive queue, instead of a receive queue of its own.
    pub srq: Option<&'a Srq>,
}

impl<'a> QpInit<'a> {
    /// Returns parameters for 64 sends and 64 receives of 4 elements, which complete in `cq`.
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
            srq: None,
        }
    }
}

/// The common part of both kinds of queue pair.
pub(crate) struct QpCore {
    pub(crate) object: Object<QpHandle, Pd>,
    pub(crate) queue: Arc<dyn QueuePair>,
    pub(crate) cap: QpCap,
    /// First packet sequence number of the send queue.
    pub(crate) psn: Psn,
    /// Boxed, so that a queue pair stays small enough to return in an error.
    parents: Box<Parents>,
}

/// Further parents of a queue pair, held so that they outlive it.
struct Parents {
    _holds: Vec<Hold>,
    _send_cq: Cq,
    _recv_cq: Cq,
    srq: Option<Arc<SrqObject>>,
}

/// Returns a random packet sequence number, so that packets of an earlier connection do not match.
fn psn_other_than(last: Option<Psn>) -> Psn {
    loop {
        let random = RandomState::new().build_hasher().finish() & 0xff_ffff;
        let psn = Psn(random as u32);
        if last != Some(psn) {
            return psn;
        }
    }
}

impl QpCore {
    pub(crate) fn create(pd: &Pd, init: &QpInit<'_>, qp_type: QpType) -> Result<Self> {
        const OPERATION: &str = "ibv_create_qp";
        let context = pd.context();
        let foreign = |parent: &Context| !parent.is_same(context);
        if foreign(init.send_cq.context()) || foreign(init.recv_cq.context()) {
            let cause = "the completion queue belongs to another context";
            return Err(invalid(OPERATION, cause));
        }
        let srq = init.srq.map(Srq::shared);
        if srq.is_some_and(|srq| foreign(srq.parent.context())) {
            let cause = "the shared receive queue belongs to another context";
            return Err(invalid(OPERATION, cause));
        }
        let check =
            |what, asked: u32, limit: u32| context.check_limit(OPERATION, what, asked.into(), limit.into());
        let (max_wr, max_sge) = (context.attr().max_qp_wr, context.attr().max_sge);
        check("a send queue cannot have so much room", init.max_send_wr, max_wr)?;
        check("a send cannot have so many elements", init.max_send_sge, max_sge)?;
        let (mut max_recv_wr, mut max_recv_sge) = (0, 0);
        if srq.is_none() {
            (max_recv_wr, max_recv_sge) = (init.max_recv_wr, init.max_recv_sge);
            check("a receive queue cannot have so much room", max_recv_wr, max_wr)?;
            check("a receive cannot have so many elements", max_recv_sge, max_sge)?;
        }
        let request = QpRequest {
            qp_type,
            pd: pd.handle(),
            send_cq: init.send_cq.handle(),
            recv_cq: init.recv_cq.handle(),
            srq: srq.map(|srq| srq.handle),
            cap: QpCap {
                max_send_wr: init.max_send_wr,
                max_recv_wr,
                max_send_sge: init.max_send_sge,
                max_recv_sge,
                max_inline_data: init.max_inline_data,
            },
            sq_sig_all: init.sq_sig_all,
        };
        let new = context.device(OPERATION)?.create_qp(&request)?;
        context.enter_qp(new.handle, pd.handle());
        let name = format!("Qp({}, {qp_type:?})", new.queue.qpn());
        let half = |which: &str| format!("the {which} queue of {name}");
        // A completion queue for both halves is held twice.
        let mut holds = vec![
            init.send_cq.hold(half("send")),
            init.recv_cq.hold(half("receive")),
        ];
        holds.extend(srq.map(|srq| srq.hold(name.clone())));
        Ok(Self {
            object: Object::new(new.handle, pd.clone(), name, ()),
            queue: new.queue,
            cap: new.cap,
            psn: psn_other_than(None),
            parents: Box::new(Parents {
                _holds: holds,
                _send_cq: init.send_cq.clone(),
                _recv_cq: init.recv_cq.clone(),
                srq: srq.cloned(),
            }),
        })
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.object.parent
    }

    pub(crate) fn modify(&mut self, transition: &QpTransition) -> Result<()> {
        let device = self.pd().context().device("ibv_modify_qp")?;
        device.modify_qp(self.object.handle, transition)?;
        if *transition == QpTransition::Reset {
            self.psn = psn_other_than(Some(self.psn));
        }
        Ok(())
    }

    /// Checks what every provider refuses, some of them only after they have taken the request.
    #[inline]
    fn check(&self, request: &SendWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_send";
        self.pd().context().check_process(OPERATION)?;
        if let Payload::Sges(sges) = request.payload {
            check_elements(OPERATION, sges.len(), self.cap.max_send_sge, "max_send_sge")?;
        }
        if let Payload::Inline(bytes) = request.payload {
            let limit = self.cap.max_inline_data;
            if bytes.len() > limit as usize {
                return Err(
                    invalid(OPERATION, "more bytes than the queue pair can take inline")
                        .saw(bytes.len(), format!("at most {limit} (max_inline_data)")),
                );
            }
        }
        if let SendOp::FetchAdd { to, .. } | SendOp::CompareSwap { to, .. } = request.op {
            let len = request.payload.len();
            if to.addr.0 % 8 != 0 || len != 8 {
                let cause = "an atomic needs 8 aligned bytes there and 8 bytes here";
                let wanted = "8 bytes for an address that 8 divides";
                return Err(invalid(OPERATION, cause).saw(format!("{len} bytes for {}", to.addr), wanted));
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn post(&self, request: &SendWr<'_>) -> Result<()> {
        self.check(request)?;
        self.queue.post_send(request)
    }

    #[inline]
    pub(crate) fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_recv";
        self.pd().context().check_process(OPERATION)?;
        if self.parents.srq.is_some() {
            return Err(invalid(OPERATION, "the queue pair has a shared receive queue"));
        }
        check_elements(
            OPERATION,
            request.sges.len(),
            self.cap.max_recv_sge,
            "max_recv_sge",
        )?;
        self.queue.post_recv(request)
    }
}

impl fmt::Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.queue.qpn(), self.pd().context().name())
    }
}
