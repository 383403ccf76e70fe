//! [`SoftQp`] and [`SoftSrq`]: posting, the hot path.

use std::fmt;
use std::sync::Arc;

use gaudi_seam::Result;
use gaudi_seam::fault::{EventFields, NicEvent, Verdict};
use gaudi_verbs::provider::{QpType, QueuePair, SharedReceiveQueue};
use gaudi_verbs::{Payload, Qpn, RecvWr, SendOp, SendWr, WcStatus};

use crate::core::Shared;
use crate::error::{defect, invalid, queue_full};
use crate::fault::status_of;
use crate::qp::{Destination, RecvEntry, SendEntry, Sges, State};

/// The posting side of a queue pair.
pub(crate) struct SoftQp {
    pub(crate) shared: Arc<Shared>,
    pub(crate) qpn: u32,
}

impl QueuePair for SoftQp {
    fn qpn(&self) -> Qpn {
        Qpn(self.qpn)
    }

    fn post_send(&self, request: &SendWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_send";
        let mut core = self.shared.lock();
        let route = match request.ud {
            Some(to) => core.ahs.rows.get(&to.ah.0).copied().map(|route| (route, to)),
            None => None,
        };
        let qp = core.qps.find(OPERATION, self.qpn)?;
        if !matches!(qp.state, State::ReadyToSend | State::Error) {
            return Err(invalid(OPERATION, "the queue pair is not ready to send")
                .saw(format!("{:?}", qp.state), "ReadyToSend"));
        }
        let is_datagram = qp.qp_type == QpType::Ud;
        if is_datagram && !matches!(request.op, SendOp::Send | SendOp::SendImm(_)) {
            return Err(invalid(OPERATION, "a datagram queue pair only sends"));
        }
        let to = match route {
            Some(((pd, link), to)) if is_datagram && pd == qp.pd => Some(Destination {
                link,
                qpn: to.qpn.0,
                qkey: to.qkey,
            }),
            None if !is_datagram => None,
            _ => {
                return Err(invalid(
                    OPERATION,
                    "no address handle of this queue pair's domain",
                ));
            }
        };
        let (sges, bytes) = match request.payload {
            Payload::Sges(sges) => (sges, None),
            Payload::Inline(bytes) => ([].as_slice(), Some(bytes)),
        };
        let mut list = Sges::new(OPERATION, sges, qp.max_send_sge)?;
        if bytes.is_some_and(|bytes| bytes.len() > qp.max_inline) {
            return Err(invalid(OPERATION, "too many bytes inline").saw(request.payload.len(), qp.max_inline));
        }
        let faults = &self.shared.faults;
        let fields = EventFields {
            queue: self.qpn.into(),
            size: request.payload.len(),
            ..EventFields::default()
        };
        let fault = faults.meet(NicEvent::Post, &fields).decided;
        match fault.map(|hit| (hit, hit.rule.verdict)) {
            Some((hit, Verdict::Error(errno))) => return Err(faults.error(OPERATION, errno, hit)),
            Some((hit, Verdict::Full(_))) => {
                faults.happened(hit);
                return Err(queue_full(OPERATION));
            }
            _ => {}
        }
        if qp.requester.queue.len() >= qp.max_send_wr {
            return Err(queue_full(OPERATION));
        }
        let mut inline = None;
        if let Some(bytes) = bytes {
            list.total = bytes.len() as u64;
            inline = qp.requester.inline.put(bytes);
            if inline.is_none() {
                defect("the store of inline data is smaller than its queue");
                return Err(queue_full(OPERATION));
            }
        }
        let is_ready = qp.state == State::ReadyToSend;
        let fault = fault.filter(|_| is_ready);
        let status = fault.and_then(|hit| match hit.rule.verdict {
            Verdict::Status(status) => Some(status_of(status)),
            _ => None,
        });
        qp.requester.queue.push_back(SendEntry {
            wr_id: request.wr_id,
            op: request.op,
            sges: list,
            inline,
            to,
            signaled: request.signaled,
            solicited: request.solicited,
            fence: request.fence,
            done: 0,
            failed: status,
        });
        if qp.state == State::Error {
            if qp.flush_later.is_none() {
                qp.flush(WcStatus::WR_FLUSH_ERR);
            }
            return Ok(());
        }
        if let Some(hit) = fault {
            if status.is_some() || core.fail_qp(&self.shared, self.qpn) {
                faults.happened(hit);
            }
        }
        core.list(self.qpn);
        if is_datagram || status.is_some() {
            core.settle(&self.shared, self.qpn);
        }
        drop(core);
        self.shared.wake();
        Ok(())
    }

    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_recv";
        let mut core = self.shared.lock();
        let qp = core.qps.find(OPERATION, self.qpn)?;
        if qp.state == State::Reset {
            return Err(invalid(OPERATION, "the queue pair is in RESET").saw("RESET", "INIT or later"));
        }
        let sges = Sges::new(OPERATION, request.sges, qp.max_recv_sge)?;
        if qp.responder.queue.len() >= qp.max_recv_wr {
            return Err(queue_full(OPERATION));
        }
        qp.responder.queue.push_back(RecvEntry {
            wr_id: request.wr_id,
            sges,
        });
        if qp.state == State::Error && qp.flush_later.is_none() {
            qp.flush(WcStatus::WR_FLUSH_ERR);
        }
        Ok(())
    }
}

impl fmt::Debug for SoftQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftQp({:#x} of {})", self.qpn, self.shared.name)
    }
}

/// The posting side of a shared receive queue.
pub(crate) struct SoftSrq {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: u32,
}

impl SharedReceiveQueue for SoftSrq {
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_srq_recv";
        let mut core = self.shared.lock();
        let srq = core.srqs.find(OPERATION, self.handle)?;
        let sges = Sges::new(OPERATION, request.sges, srq.max_sge)?;
        if srq.queue.len() >= srq.max_wr {
            return Err(queue_full(OPERATION));
        }
        srq.queue.push_back(RecvEntry {
            wr_id: request.wr_id,
            sges,
        });
        Ok(())
    }
}

impl fmt::Debug for SoftSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftSrq({:#x} of {})", self.handle, self.shared.name)
    }
}
