//! The control operations of a [`SoftNic`].

#![expect(
    unsafe_code,
    reason = "registering host memory passes the caller's promise on to the region"
)]

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use gaudi_seam::fault::{NicEvent, Verdict};
use gaudi_seam::{Errno, Error, HostVa, Result};
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, MwType, NewMr, NewMw, NewQp, PdHandle, QpCap, QpHandle,
    QpRequest, QpState, QpTransition, QpType, SharedReceiveQueue, SrqHandle, SrqRequest,
};
use gaudi_verbs::{
    Access, AhHandle, AsyncEvent, AtomicCap, DeviceAttr, DmaBufSupport, Gid, LinkLayer, Lkey, MrAddr,
    MrHandle, MrState, Mtu, MwHandle, PortAttr, PortState, RegPath, Rkey, WcStatus,
};

use crate::core::{Core, Srq};
use crate::cq::SoftCq;
use crate::error::{full, invalid, missing};
use crate::link::Link;
use crate::nic::{PROVIDER, SoftNic};
use crate::post::{SoftQp, SoftSrq};
use crate::qp::{Qp, Requester, Responder, Retry, State};
use crate::region::Region;
use crate::wire::{MAX_DATAGRAM, MAX_MESSAGE};
use crate::{MAX_AH, MAX_CQ, MAX_INLINE, MAX_PD, MAX_QP, MAX_QP_WR, MAX_READS, MAX_SGE, MAX_SRQ};

/// The operation that changes a queue pair's state.
const MODIFY_QP: &str = "ibv_modify_qp";
const MAX_CQE: u32 = 1 << 16;
const MAX_MR: u32 = 1 << 17;
const MAX_MW: u32 = 1 << 16;
/// More than a process can map on x86-64 or arm64.
const MAX_MR_SIZE: u64 = 1 << 47;

impl SoftNic {
    fn register(
        &self,
        operation: &'static str,
        pd: PdHandle,
        region: Region,
        path: RegPath,
    ) -> Result<NewMr> {
        let mut core = self.shared.lock();
        core.pds.find(operation, pd.0)?;
        if core.regions.len() >= MAX_MR as usize {
            return Err(full(operation, "regions", MAX_MR));
        }
        let key = core.regions.insert(region)?;
        Ok(NewMr {
            handle: MrHandle(key),
            lkey: Lkey(key),
            rkey: Rkey(key),
            path,
        })
    }

    /// Changes the state of a queue pair.
    fn transition(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = MODIFY_QP;
        let qpn = qp.0;
        let link = match transition {
            QpTransition::ReadyToReceive { remote, .. } => Some(self.route(OPERATION, &remote.gid)?),
            _ => None,
        };
        let mut core = self.shared.lock();
        let down = core.qps.rows.get(&qpn).and_then(|qp| {
            let link = core.links.get(link.unwrap_or(qp.link))?;
            link.down.clone()
        });
        let qp = core.qps.find(OPERATION, qpn)?;
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
                    let unknown = invalid(OPERATION, "the path's MTU is unknown");
                    return Err(unknown.saw(path_mtu, "256 to 4096 bytes"));
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
                let mut core = Core::quiesce(core, &self.shared, qpn);
                if let Some(qp) = core.qps.known(qpn) {
                    qp.reset();
                }
                core.regions.windows.unbind_qp(qpn);
            }
            (_, state, _) => {
                let refused = invalid(OPERATION, "the queue pair's state does not allow this transition");
                let seen = format!("{state:?} and {transition:?}");
                return Err(refused.saw(seen, "RESET, INIT, RTR, RTS in this order"));
            }
        }
        Ok(())
    }
}

impl Device for SoftNic {
    fn query_device(&self) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            name: self.shared.name.clone(),
            provider: PROVIDER.to_owned(),
            guid: self.guid,
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_cq: MAX_CQ,
            max_cqe: MAX_CQE,
            max_mr: MAX_MR,
            max_mr_size: MAX_MR_SIZE,
            max_pd: MAX_PD,
            max_qp_rd_atom: MAX_READS,
            max_qp_init_rd_atom: MAX_READS,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_QP_WR,
            max_mw: MAX_MW,
            max_ah: MAX_AH,
            // Atomics are instructions of the processor.
            atomic_cap: AtomicCap::GLOB,
            page_size_cap: u64::MAX << 12,
            fw_ver: String::new(),
            dmabuf: DmaBufSupport::Yes,
        })
    }

    fn query_port(&self) -> Result<PortAttr> {
        // The port is down once it has cables and all are dead.
        let core = self.shared.lock();
        let is_own_loop = |link: &&Link| link.peer == Some(self.shared.gid);
        let mut cables = core.links.iter().filter(|link| !is_own_loop(link)).peekable();
        let down = cables.peek().is_some() && cables.all(|link| link.down.is_some());
        drop(core);
        Ok(PortAttr {
            state: if down { PortState::DOWN } else { PortState::ACTIVE },
            active_mtu: Mtu::MTU_4096,
            max_msg_sz: MAX_MESSAGE,
            port_num: 1,
            link_layer: LinkLayer::UNSPECIFIED,
            gid: self.shared.gid,
            gid_index: 0,
            lid: 0,
        })
    }

    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.events.fd())
    }

    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.shared.events.take())
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        let mut core = self.shared.lock();
        Ok(PdHandle(core.pds.insert("ibv_alloc_pd", |_| Ok(()))?))
    }

    fn dealloc_pd(&self, pd: PdHandle) -> Result<()> {
        self.shared.lock().pds.take("ibv_dealloc_pd", pd.0)
    }

    unsafe fn reg_mr(
        &self,
        pd: PdHandle,
        address: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
    ) -> Result<NewMr> {
        const OPERATION: &str = "ibv_reg_mr_iova";
        // SAFETY: the caller keeps the range mapped and unborrowed until `dereg_mr` has returned,
        // which drops the region first.
        let region = unsafe { Region::host(pd.0, address, len, iova.0, access) };
        let region = region.ok_or_else(|| invalid(OPERATION, "the address is null"))?;
        self.register(OPERATION, pd, region, RegPath::Host)
    }

    fn reg_dmabuf_mr(&self, request: &DmaBufMr<'_>) -> Result<NewMr> {
        let DmaBufMr {
            pd,
            window,
            iova,
            access,
        } = *request;
        let attachment = window.attach_cpu(format!("{PROVIDER} {}: region at {iova}", self.shared.name))?;
        let region = Region::dmabuf(pd.0, attachment, iova.0, access);
        self.register("ibv_reg_dmabuf_mr", pd, region, RegPath::Software)
    }

    fn dereg_mr(&self, mr: MrHandle) -> Result<()> {
        let mut core = self.shared.lock();
        if core.regions.windows.use_region(mr.0) {
            // IBA 10.6.7.2.6 and rxe_dereg_mr.
            return Err(invalid("ibv_dereg_mr", "memory windows are bound to the region"));
        }
        core.flush_pending(None);
        while core
            .regions
            .kill(mr.0)
            .ok_or_else(|| missing("ibv_dereg_mr", "memory region"))?
        {
            core = self.shared.wait_idle(core);
        }
        let region = core.regions.remove(mr.0);
        drop(core);
        // Outside the lock: releasing an attachment may be slow.
        drop(region);
        Ok(())
    }

    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>> {
        let state = self.shared.lock().regions.state(mr.0);
        let state = state.ok_or_else(|| missing("memory region state", "memory region"))?;
        Ok(Some(state))
    }

    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let mut core = self.shared.lock();
        core.pds.find(OPERATION, pd.0)?;
        if core.regions.windows.len() >= MAX_MW as usize {
            return Err(full(OPERATION, "memory windows", MAX_MW));
        }
        let key = core.regions.window_key()?;
        core.regions.windows.insert(key, pd.0, mw_type);
        Ok(NewMw {
            handle: MwHandle(key >> 8),
            rkey: Rkey(key),
        })
    }

    fn dealloc_mw(&self, mw: MwHandle) -> Result<()> {
        if !self.shared.lock().regions.windows.remove(mw.0) {
            return Err(missing("ibv_dealloc_mw", "memory window"));
        }
        Ok(())
    }

    fn create_ah(&self, pd: PdHandle, gid: &Gid, _lid: u16) -> Result<AhHandle> {
        const OPERATION: &str = "ibv_create_ah";
        let link = self.route(OPERATION, gid)?;
        let mut core = self.shared.lock();
        core.pds.find(OPERATION, pd.0)?;
        Ok(AhHandle(core.ahs.insert(OPERATION, |_| Ok((pd.0, link)))?))
    }

    fn destroy_ah(&self, ah: AhHandle) -> Result<()> {
        self.shared.lock().ahs.take("ibv_destroy_ah", ah.0).map(drop)
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        const OPERATION: &str = "ibv_create_srq";
        let mut core = self.shared.lock();
        core.pds.find(OPERATION, request.pd.0)?;
        let room = request.max_wr as usize;
        let srq = Srq {
            max_wr: room,
            max_sge: request.max_sge.min(MAX_SGE),
            queue: VecDeque::with_capacity(room),
            limit: 0,
        };
        let handle = core.srqs.insert(OPERATION, |_| Ok(srq))?;
        let shared = self.shared.clone();
        Ok((SrqHandle(handle), Arc::new(SoftSrq { shared, handle })))
    }

    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<()> {
        const OPERATION: &str = "ibv_modify_srq";
        let mut core = self.shared.lock();
        let srq = core.srqs.find(OPERATION, srq.0)?;
        if limit as usize > srq.max_wr {
            return Err(invalid(OPERATION, "the limit exceeds the queue's room")
                .saw(limit, format!("0 to {}", srq.max_wr)));
        }
        srq.limit = limit;
        Ok(())
    }

    fn destroy_srq(&self, srq: SrqHandle) -> Result<()> {
        const OPERATION: &str = "ibv_destroy_srq";
        let mut core = self.shared.lock();
        if core.qps.rows.values().any(|qp| qp.srq == Some(srq.0)) {
            let busy = Error::from_errno(OPERATION, Errno::EBUSY);
            return Err(busy.because("queue pairs take receives from it"));
        }
        core.srqs.take(OPERATION, srq.0).map(drop)
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        const OPERATION: &str = "ibv_create_cq";
        let mut core = self.shared.lock();
        let create = |handle| SoftCq::new(handle, depth as usize, &self.shared.faults, self.stepper());
        let handle = core.cqs.insert(OPERATION, create)?;
        let cq = core.cqs.find(OPERATION, handle)?.clone();
        Ok((CqHandle(handle), cq))
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<()> {
        self.shared.lock().cqs.take("ibv_destroy_cq", cq.0).map(drop)
    }

    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
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
        let send_cq = core.cqs.find(OPERATION, request.send_cq.0)?.clone();
        let recv_cq = core.cqs.find(OPERATION, request.recv_cq.0)?.clone();
        core.pds.find(OPERATION, request.pd.0)?;
        if let Some(srq) = request.srq {
            core.srqs.find(OPERATION, srq.0)?;
        }
        let cap = QpCap {
            max_send_sge: request.cap.max_send_sge.min(MAX_SGE),
            max_recv_sge: request.cap.max_recv_sge.min(MAX_SGE),
            ..request.cap
        };
        let (sends, receives) = (cap.max_send_wr as usize, cap.max_recv_wr as usize);
        let create = |qpn| Qp {
            qpn,
            qp_type: request.qp_type,
            pd: request.pd.0,
            srq: request.srq.map(|srq| srq.0),
            max_inline: cap.max_inline_data as usize,
            qkey: 0,
            link: 0,
            mtu: MAX_DATAGRAM,
            send_cq,
            recv_cq,
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            sig_all: request.sq_sig_all,
            state: State::Reset,
            access: Access::empty(),
            remote: 0,
            requester: Requester::new(sends, cap.max_inline_data as usize),
            responder: Responder::new(receives),
            listed: false,
            flush_later: None,
            lost: None,
        };
        let qpn = core.qps.insert(OPERATION, |qpn| Ok(create(qpn)))?;
        // Each queue pair is listed at most once, so posting never makes a list grow.
        let count = core.qps.rows.len();
        for link in &mut core.links {
            let room = count.saturating_sub(link.ready.len());
            link.ready.reserve(room);
        }
        let shared = self.shared.clone();
        Ok(NewQp {
            handle: QpHandle(qpn),
            queue: Arc::new(SoftQp { shared, qpn }),
            cap,
        })
    }

    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        let faults = &self.shared.faults;
        if !self.shared.lock().qps.rows.contains_key(&qp.0) {
            return Err(missing(MODIFY_QP, "queue pair"));
        }
        let met = faults.meet_qp(NicEvent::State, qp.0);
        match met.decided.map(|hit| (hit, hit.rule.verdict)) {
            Some((hit, Verdict::Error(errno))) => Err(faults.error(MODIFY_QP, errno, hit)),
            Some((hit, Verdict::QpError)) => {
                self.transition(qp, transition)?;
                if self.shared.lock().fail_qp(&self.shared, qp.0) {
                    faults.happened(hit);
                }
                Ok(())
            }
            _ => self.transition(qp, transition),
        }
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        let state = self.shared.lock().qps.find("ibv_query_qp", qp.0)?.state;
        Ok(match state {
            State::Reset => QpState::RESET,
            State::Init => QpState::INIT,
            State::ReadyToReceive => QpState::RTR,
            State::ReadyToSend => QpState::RTS,
            State::Error => QpState::ERR,
        })
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        let qpn = qp.0;
        let mut core = Core::quiesce(self.shared.lock(), &self.shared, qpn);
        core.flush_pending(Some(qpn));
        core.qps.take("ibv_destroy_qp", qpn)?;
        core.regions.windows.unbind_qp(qpn);
        drop(core);
        self.shared.wake();
        Ok(())
    }
}
