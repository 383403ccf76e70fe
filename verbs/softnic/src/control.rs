//! Creates, modifies, queries and destroys queue pairs.

use std::sync::Arc;

use gaudi_seam::{Error, Result};
use gaudi_verbs::provider::{CqHandle, NewQp, QpCap, QpHandle, QpRequest, QpState, QpTransition, QpType};
use gaudi_verbs::{Access, WcStatus};

use crate::error::{full, invalid, missing};
use crate::nic::{MAX_QP, SoftNic};
use crate::post::SoftQp;
use crate::qp::{Qp, Requester, Responder, Retry, State};
use crate::wire::MAX_DATAGRAM;
use crate::{MAX_INLINE, MAX_READS, MAX_SGE};

impl SoftNic {
    pub(crate) fn new_qp(&self, request: &QpRequest) -> Result<NewQp> {
        const OPERATION: &str = "ibv_create_qp";
        if !matches!(request.qp_type, QpType::Rc | QpType::Ud) {
            return Err(Error::unsupported(
                OPERATION,
                "a softnic has reliable connections and datagrams only",
            ));
        }
        if request.cap.max_inline_data > MAX_INLINE {
            return Err(invalid(OPERATION, "the NIC cannot send that many bytes inline")
                .saw(request.cap.max_inline_data, format!("0 to {MAX_INLINE}")));
        }
        let mut core = self.shared.lock();
        let cq = |handle: CqHandle| {
            core.cqs
                .get(&handle.0)
                .cloned()
                .ok_or_else(|| missing(OPERATION, "completion queue"))
        };
        let (send_cq, recv_cq) = (cq(request.send_cq)?, cq(request.recv_cq)?);
        if !core.pds.contains(&request.pd.0) {
            return Err(missing(OPERATION, "protection domain"));
        }
        if core.qps.len() >= MAX_QP as usize {
            return Err(full(OPERATION, "queue pairs", MAX_QP));
        }
        if request.srq.is_some_and(|srq| !core.srqs.contains_key(&srq.0)) {
            return Err(missing(OPERATION, "shared receive queue"));
        }
        let qpn = core.fresh(0xff_ffff, |core, qpn| core.qps.contains_key(&qpn));
        let (sends, receives) = (request.cap.max_send_wr as usize, request.cap.max_recv_wr as usize);
        let qp = Qp {
            qpn,
            qp_type: request.qp_type,
            pd: request.pd.0,
            srq: request.srq.map(|srq| srq.0),
            max_inline: request.cap.max_inline_data as usize,
            qkey: 0,
            link: 0,
            mtu: MAX_DATAGRAM,
            send_cq,
            recv_cq,
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: request.cap.max_send_sge.min(MAX_SGE),
            max_recv_sge: request.cap.max_recv_sge.min(MAX_SGE),
            sig_all: request.sq_sig_all,
            state: State::Reset,
            access: Access::empty(),
            remote: 0,
            requester: Requester::new(sends, request.cap.max_inline_data as usize),
            responder: Responder::new(receives, usize::from(MAX_READS)),
            listed: false,
            flush_later: None,
            lost: None,
        };
        core.qps.insert(qpn, qp);
        // Each queue pair is listed at most once, so posting never makes a list grow.
        let count = core.qps.len();
        for link in &mut core.links {
            let room = count.saturating_sub(link.ready.len());
            link.ready.reserve(room);
        }
        let queue = SoftQp {
            shared: self.shared.clone(),
            qpn,
        };
        Ok(NewQp {
            handle: QpHandle(qpn),
            queue: Arc::new(queue),
            cap: QpCap {
                max_send_sge: request.cap.max_send_sge.min(MAX_SGE),
                max_recv_sge: request.cap.max_recv_sge.min(MAX_SGE),
                ..request.cap
            },
        })
    }

    pub(crate) fn transition_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        let qpn = qp.0;
        let link = match transition {
            QpTransition::ReadyToReceive { remote, .. } => Some(self.route(OPERATION, &remote.gid)?),
            _ => None,
        };
        let mut core = self.shared.lock();
        let down = core.qps.get(&qpn).and_then(|qp| {
            let link = core.links.get(link.unwrap_or(qp.link))?;
            link.down.clone()
        });
        let qp = core
            .qps
            .get_mut(&qpn)
            .ok_or_else(|| missing(OPERATION, "queue pair"))?;
        match (qp.qp_type, qp.state, transition) {
            (QpType::Rc, State::Reset | State::Init, QpTransition::Init { access }) => {
                qp.access = *access;
                qp.state = State::Init;
            }
            (QpType::Ud, State::Reset | State::Init, QpTransition::UdInit { qkey }) => {
                qp.qkey = *qkey;
                qp.state = State::Init;
            }
            (QpType::Ud, State::Init, QpTransition::UdReadyToReceive) => qp.state = State::ReadyToReceive,
            (QpType::Ud, State::ReadyToReceive, QpTransition::UdReadyToSend { .. }) => {
                qp.state = State::ReadyToSend;
            }
            (
                QpType::Rc,
                State::Init,
                QpTransition::ReadyToReceive {
                    remote,
                    path_mtu,
                    max_dest_rd_atomic,
                    min_rnr_timer,
                },
            ) => {
                if let Some(error) = down {
                    return Err(error);
                }
                let Some(mtu) = path_mtu.bytes() else {
                    return Err(
                        invalid(OPERATION, "the path's MTU is unknown").saw(path_mtu, "256 to 4096 bytes")
                    );
                };
                // Routed above, for this very transition.
                qp.link = link.unwrap_or(qp.link);
                qp.mtu = mtu;
                qp.remote = remote.qpn.0;
                qp.responder.first = u64::from(remote.psn.0);
                qp.responder.expected = qp.responder.first;
                qp.responder.rnr_timer = *min_rnr_timer;
                qp.responder.max_reads = (*max_dest_rd_atomic).min(MAX_READS);
                qp.state = State::ReadyToReceive;
            }
            (
                QpType::Rc,
                State::ReadyToReceive,
                QpTransition::ReadyToSend {
                    sq_psn,
                    max_rd_atomic,
                    timeout,
                    retry_cnt,
                    rnr_retry,
                },
            ) => {
                if let Some(error) = down {
                    return Err(error);
                }
                let requester = &mut qp.requester;
                requester.base = u64::from(sq_psn.0);
                requester.sent_until = requester.base;
                requester.max_reads = (*max_rd_atomic).clamp(1, MAX_READS);
                requester.retries = *retry_cnt;
                requester.gap = None;
                requester.retry = Retry {
                    timeout: *timeout,
                    count: *retry_cnt,
                    rnr_count: (*rnr_retry < 7).then_some(*rnr_retry),
                };
                qp.state = State::ReadyToSend;
            }
            (_, state, QpTransition::Error) if state != State::Reset => {
                core.enter_error(&self.shared, qpn, WcStatus::WR_FLUSH_ERR);
                // After this returns, no answer is read from the caller's memory.
                while core.is_sending(qpn) {
                    core = self.shared.wait_idle(core);
                }
            }
            (_, _, QpTransition::Reset) => {
                core.silence(qpn);
                while core.is_moving(qpn) {
                    core = self.shared.wait_idle(core);
                }
                core.silence(qpn);
                for link in &mut core.links {
                    link.ready.retain(|listed| *listed != qpn);
                }
                if let Some(qp) = core.qps.known(qpn) {
                    qp.reset();
                }
                core.regions.windows.unbind_qp(qpn);
            }
            (_, state, _) => {
                return Err(
                    invalid(OPERATION, "the queue pair's state does not allow this transition").saw(
                        format!("{state:?} and {transition:?}"),
                        "RESET, INIT, RTR, RTS in this order",
                    ),
                );
            }
        }
        Ok(())
    }

    pub(crate) fn qp_state(&self, qp: QpHandle) -> Result<QpState> {
        let core = self.shared.lock();
        let qp = core
            .qps
            .get(&qp.0)
            .ok_or_else(|| missing("ibv_query_qp", "queue pair"))?;
        Ok(match qp.state {
            State::Reset => QpState::RESET,
            State::Init => QpState::INIT,
            State::ReadyToReceive => QpState::RTR,
            State::ReadyToSend => QpState::RTS,
            State::Error => QpState::ERR,
        })
    }

    pub(crate) fn remove_qp(&self, qp: QpHandle) -> Result<()> {
        let qpn = qp.0;
        let mut core = self.shared.lock();
        // Nothing new starts, then the frames that are moving end.
        core.silence(qpn);
        while core.is_moving(qpn) {
            core = self.shared.wait_idle(core);
        }
        // Again: the last frame may have left an answer.
        core.silence(qpn);
        core.flush_pending(Some(qpn));
        core.qps
            .remove(&qpn)
            .ok_or_else(|| missing("ibv_destroy_qp", "queue pair"))?;
        core.regions.windows.unbind_qp(qpn);
        for link in &mut core.links {
            link.ready.retain(|listed| *listed != qpn);
        }
        drop(core);
        self.shared.wake();
        Ok(())
    }
}
