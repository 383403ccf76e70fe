//! [`SoftNic`]: opening, closing and the provider's control operations.

#![expect(
    unsafe_code,
    reason = "registering host memory passes the caller's promise on to the region"
)]

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, HostVa, Result};
use gaudi_sys::fork::Birth;
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, NewMr, NewQp, PdHandle, QpCap, QpHandle, QpRequest, QpState,
    QpTransition, QpType, QueuePair,
};
use gaudi_verbs::{
    Access, AtomicCap, DeviceAttr, DmaBufSupport, Gid, Guid, LinkLayer, Lkey, MrAddr, MrHandle, MrState, Mtu,
    Payload, PortAttr, PortState, Qpn, RecvWr, RegPath, Rkey, SendOp, SendWr, WcStatus,
};

use crate::cable::Cable;
use crate::core::Shared;
use crate::counters::Counters;
use crate::cq::SoftCq;
use crate::qp::{Patience, Qp, RecvEntry, Requester, Responder, SendEntry, Sges, State};
use crate::region::Region;
use crate::wire::MAX_MESSAGE;
use crate::{MAX_QP_WR, MAX_READS, MAX_SGE, rx, tx};

/// What [`DeviceAttr::provider`] says.
pub const PROVIDER: &str = "softnic (software)";

const MAX_QP: u32 = 1024;
const MAX_CQ: u32 = 1024;
const MAX_CQE: u32 = 1 << 16;
const MAX_MR: u32 = 1 << 17;
const MAX_PD: u32 = 1024;
/// More than a process can map on x86-64 or arm64.
const MAX_MR_SIZE: u64 = 1 << 47;
/// How long a closing NIC tries to say what it owes.
const LINGER: Duration = Duration::from_secs(1);

/// A fault that a NIC makes on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultRule {
    /// Flips one bit of one byte of payload on its way out: memory stays right, what arrives is wrong.
    FlipPayloadBit {
        /// Which byte of all payload that leaves this NIC, from 0; answers to reads count.
        byte: u64,
        /// Which bit of it, 0 to 7.
        bit: u8,
    },
}

/// How a NIC behaves.
#[derive(Debug, Clone, Copy)]
pub struct SoftNicConfig {
    /// How long the peer may take for one frame, 256 KiB of payload at most, once it has begun; then the cable counts as down. It is also
    /// the longest that destroying a queue pair or a region waits for the peer, in each direction.
    pub stall_timeout: Duration,
    /// A fault to make.
    pub fault: Option<FaultRule>,
}

impl Default for SoftNicConfig {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(30),
            fault: None,
        }
    }
}

/// A software NIC with one port. It closes, and its threads end, when the last [`Arc`] of it is dropped.
pub struct SoftNic {
    shared: Arc<Shared>,
    guid: Guid,
    birth: Birth,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SoftNic {
    /// Plugs one end of a connected stream socket into a new NIC. The NIC owns it from now on.
    pub fn open(name: &str, cable: impl Into<OwnedFd>, config: SoftNicConfig) -> Result<Arc<Self>> {
        const OPERATION: &str = "softnic open";
        let cable = Cable::new(cable.into(), config.stall_timeout)?;
        let random = RandomState::new().build_hasher().finish();
        // Queue pair numbers start anywhere, so that those of an earlier NIC mostly do not fit.
        let first = u32::try_from(random & 0xff_ffff).unwrap_or(0);
        let nic = Arc::new(Self {
            shared: Arc::new(Shared::new(name.to_owned(), cable, first)),
            // Locally administered: no vendor's.
            guid: Guid(random | 0x0200_0000_0000_0000),
            birth: Birth::here(),
            threads: Mutex::default(),
        });
        let spawn = |suffix: &str, body: Box<dyn FnOnce(&Shared) + Send>| {
            let shared = nic.shared.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("softnic-{suffix}"))
                .spawn(move || body(&shared));
            spawned.map_err(|error| Error::from_errno(OPERATION, gaudi_sys::fd::errno_of(error)))
        };
        let receiver = spawn("rx", Box::new(rx::run))?;
        let mut threads = nic.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(receiver);
        threads.push(spawn(
            "tx",
            Box::new(move |shared| tx::run(shared, config.fault)),
        )?);
        drop(threads);
        Ok(nic)
    }

    /// Two NICs joined by a cable, in one process.
    pub fn pair(config: SoftNicConfig) -> Result<(Arc<Self>, Arc<Self>)> {
        let (a, b) = UnixStream::pair()
            .map_err(|error| Error::from_errno("softnic pair", gaudi_sys::fd::errno_of(error)))?;
        Ok((
            Self::open("softnic0", a, config)?,
            Self::open("softnic1", b, config)?,
        ))
    }

    /// What it has moved so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }

    /// Why the cable is down; `None` while it is not.
    pub fn cable_error(&self) -> Option<Error> {
        self.shared.lock().down.clone()
    }

    fn gid(&self) -> Gid {
        let mut gid = [0; 16];
        gid[0] = 0xfe;
        gid[1] = 0x80;
        gid[8..].copy_from_slice(&self.guid.0.to_be_bytes());
        Gid(gid)
    }

    fn register(
        &self,
        operation: &'static str,
        pd: PdHandle,
        region: Region,
        path: RegPath,
    ) -> Result<NewMr> {
        let mut core = self.shared.lock();
        if !core.pds.contains(&pd.0) {
            return Err(invalid(operation, "no such protection domain"));
        }
        if core.regions.len() >= MAX_MR as usize {
            return Err(Error::from_errno(operation, Errno::ENOMEM)
                .because("the NIC has no room for more regions")
                .saw(core.regions.len(), format!("below {MAX_MR}")));
        }
        let key = core.regions.insert(region);
        Ok(NewMr {
            handle: MrHandle(key),
            lkey: Lkey(key),
            rkey: Rkey(key),
            path,
        })
    }
}

fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::from_errno(operation, Errno::EINVAL).because(cause)
}

fn full(operation: &'static str, what: &str, limit: u32) -> Error {
    Error::from_errno(operation, Errno::ENOMEM)
        .because(format!("the NIC has no room for more {what}"))
        .saw(limit, format!("below {limit}"))
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
            max_srq: 0,
            max_srq_wr: 0,
            max_mw: 0,
            max_ah: 0,
            atomic_cap: AtomicCap::NONE,
            page_size_cap: u64::MAX << 12,
            fw_ver: String::new(),
            dmabuf: DmaBufSupport::Yes,
        })
    }

    fn query_port(&self) -> Result<PortAttr> {
        let down = self.shared.lock().down.is_some();
        Ok(PortAttr {
            state: if down { PortState::DOWN } else { PortState::ACTIVE },
            active_mtu: Mtu::MTU_4096,
            max_msg_sz: MAX_MESSAGE,
            port_num: 1,
            link_layer: LinkLayer::UNSPECIFIED,
            gid: self.gid(),
            gid_index: 0,
            lid: 0,
        })
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        let mut core = self.shared.lock();
        if core.pds.len() >= MAX_PD as usize {
            return Err(full("ibv_alloc_pd", "protection domains", MAX_PD));
        }
        let handle = core.fresh(u32::MAX, |core, handle| core.pds.contains(&handle));
        core.pds.insert(handle);
        Ok(PdHandle(handle))
    }

    fn dealloc_pd(&self, pd: PdHandle) -> Result<()> {
        if self.shared.lock().pds.remove(&pd.0) {
            Ok(())
        } else {
            Err(invalid("ibv_dealloc_pd", "no such protection domain"))
        }
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
        // SAFETY: the caller keeps the range mapped and unborrowed until `dereg_mr` has returned, which drops the region first.
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
        while core
            .regions
            .kill(mr.0)
            .ok_or_else(|| invalid("ibv_dereg_mr", "no such memory region"))?
        {
            core = self.shared.wait(&self.shared.idle, core);
        }
        let region = core.regions.remove(mr.0);
        drop(core);
        // Outside the lock: giving up an attachment may be slow.
        drop(region);
        Ok(())
    }

    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>> {
        if self.shared.lock().regions.contains(mr.0) {
            Ok(Some(MrState::Live))
        } else {
            Err(invalid("memory region state", "no such memory region"))
        }
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        let cq = Arc::new(SoftCq::new(depth as usize)?);
        let mut core = self.shared.lock();
        if core.cqs.len() >= MAX_CQ as usize {
            return Err(full("ibv_create_cq", "completion queues", MAX_CQ));
        }
        let handle = core.fresh(u32::MAX, |core, handle| core.cqs.contains_key(&handle));
        core.cqs.insert(handle, cq.clone());
        Ok((CqHandle(handle), cq))
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<()> {
        match self.shared.lock().cqs.remove(&cq.0) {
            Some(_) => Ok(()),
            None => Err(invalid("ibv_destroy_cq", "no such completion queue")),
        }
    }

    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
        const OPERATION: &str = "ibv_create_qp";
        if request.qp_type != QpType::Rc {
            return Err(Error::unsupported(
                OPERATION,
                "a softnic has reliable connections only",
            ));
        }
        if request.cap.max_inline_data > 0 {
            return Err(Error::unsupported(OPERATION, "a softnic has no inline data"));
        }
        let mut core = self.shared.lock();
        let cq = |handle: CqHandle| {
            core.cqs
                .get(&handle.0)
                .cloned()
                .ok_or_else(|| invalid(OPERATION, "no such completion queue"))
        };
        let (send_cq, recv_cq) = (cq(request.send_cq)?, cq(request.recv_cq)?);
        if !core.pds.contains(&request.pd.0) {
            return Err(invalid(OPERATION, "no such protection domain"));
        }
        if core.qps.len() >= MAX_QP as usize {
            return Err(full(OPERATION, "queue pairs", MAX_QP));
        }
        let qpn = core.fresh(0xff_ffff, |core, qpn| core.qps.contains_key(&qpn));
        let (sends, receives) = (request.cap.max_send_wr as usize, request.cap.max_recv_wr as usize);
        let qp = Qp {
            qpn,
            pd: request.pd.0,
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
            requester: Requester::new(sends),
            responder: Responder::new(receives, usize::from(MAX_READS)),
            listed: false,
            flush_later: None,
            lost: false,
        };
        core.qps.insert(qpn, qp);
        // Each is listed at most once: posting never makes the list grow.
        let room = core.qps.len().saturating_sub(core.ready.len());
        core.ready.reserve(room);
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

    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        let own_gid = self.gid();
        let mut core = self.shared.lock();
        let down = core.down.clone();
        let qpn = qp.0;
        let qp = core
            .qps
            .get_mut(&qpn)
            .ok_or_else(|| invalid(OPERATION, "no such queue pair"))?;
        match (qp.state, transition) {
            (State::Reset, QpTransition::Init { access }) => {
                qp.access = *access;
                qp.state = State::Init;
            }
            (
                State::Init,
                QpTransition::ReadyToReceive {
                    remote,
                    min_rnr_timer,
                    ..
                },
            ) => {
                if let Some(error) = down {
                    return Err(error);
                }
                if remote.gid == own_gid {
                    return Err(Error::unsupported(
                        OPERATION,
                        "a softnic has no loopback: the peer must be at the other end of the cable",
                    ));
                }
                qp.remote = remote.qpn.0;
                qp.responder.expected = u64::from(remote.psn.0);
                qp.responder.rnr_timer = *min_rnr_timer;
                qp.state = State::ReadyToReceive;
            }
            (
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
                let tries = u32::from(*retry_cnt).saturating_add(1);
                qp.requester.base = u64::from(sq_psn.0);
                qp.requester.max_reads = (*max_rd_atomic).clamp(1, MAX_READS);
                qp.requester.patience = Patience {
                    answer: timeout.saturating_mul(tries),
                    rnr_retry: (*rnr_retry < 7).then_some(*rnr_retry),
                };
                qp.state = State::ReadyToSend;
            }
            (_, QpTransition::Error) => core.enter_error(qpn, WcStatus::WR_FLUSH_ERR),
            (state, _) => {
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

    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        let core = self.shared.lock();
        let qp = core
            .qps
            .get(&qp.0)
            .ok_or_else(|| invalid("ibv_query_qp", "no such queue pair"))?;
        Ok(match qp.state {
            State::Reset => QpState::RESET,
            State::Init => QpState::INIT,
            State::ReadyToReceive => QpState::RTR,
            State::ReadyToSend => QpState::RTS,
            State::Error => QpState::ERR,
        })
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        let qpn = qp.0;
        let mut core = self.shared.lock();
        // First, nothing new begins; then what is on its way ends.
        core.silence(qpn);
        while core.tx_qpn == Some(qpn) || core.rx_qpn == Some(qpn) {
            core = self.shared.wait(&self.shared.idle, core);
        }
        // Once more: the frame that was on its way may have left something to say.
        core.silence(qpn);
        core.qps
            .remove(&qpn)
            .ok_or_else(|| invalid("ibv_destroy_qp", "no such queue pair"))?;
        core.ready.retain(|listed| *listed != qpn);
        drop(core);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.birth.is_elsewhere() {
            // The threads run in the parent, and the socket is still its: only our descriptor may close.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        let mut core = self.shared.lock();
        core.closing = true;
        self.shared.work.notify_all();
        let deadline = Instant::now() + LINGER;
        while !core.tx_ended && Instant::now() < deadline {
            core = self.shared.wait_for(&self.shared.idle, core, LINGER);
        }
        drop(core);
        self.shared.cable.shut();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!(
                    nic = self.shared.name,
                    "softnic (software): a thread of the NIC panicked"
                );
            }
        }
    }
}

impl fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PROVIDER} {} ({})", self.shared.name, self.guid)
    }
}

/// A queue pair as it is posted to.
struct SoftQp {
    shared: Arc<Shared>,
    qpn: u32,
}

impl QueuePair for SoftQp {
    fn qpn(&self) -> Qpn {
        Qpn(self.qpn)
    }

    fn post_send(&self, request: &SendWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_send";
        let mut core = self.shared.lock();
        let qp = core
            .qps
            .get_mut(&self.qpn)
            .ok_or_else(|| invalid(OPERATION, "the queue pair is destroyed"))?;
        if !matches!(qp.state, State::ReadyToSend | State::Error) {
            return Err(invalid(OPERATION, "the queue pair is not ready to send")
                .saw(format!("{:?}", qp.state), "ReadyToSend"));
        }
        let Payload::Sges(sges) = request.payload else {
            return Err(Error::unsupported(OPERATION, "a softnic has no inline data"));
        };
        if !matches!(
            request.op,
            SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::Read(_) | SendOp::Send | SendOp::SendImm(_)
        ) {
            return Err(Error::unsupported(
                OPERATION,
                "a softnic cannot do this operation",
            ));
        }
        let sges = Sges::new(sges, qp.max_send_sge)
            .ok_or_else(|| invalid(OPERATION, "too many elements").saw(sges.len(), qp.max_send_sge))?;
        if qp.requester.queue.len() >= qp.max_send_wr {
            return Err(Error::would_block(OPERATION).with_errno(Errno::ENOMEM));
        }
        qp.requester.queue.push_back(SendEntry {
            wr_id: request.wr_id,
            op: request.op,
            sges,
            signaled: request.signaled,
            solicited: request.solicited,
            fence: request.fence,
            done: 0,
            failed: None,
        });
        if qp.state == State::Error {
            if qp.flush_later.is_none() {
                qp.flush(WcStatus::WR_FLUSH_ERR);
            }
            return Ok(());
        }
        core.list(self.qpn);
        drop(core);
        self.shared.work.notify_one();
        Ok(())
    }

    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_recv";
        let mut core = self.shared.lock();
        let qp = core
            .qps
            .get_mut(&self.qpn)
            .ok_or_else(|| invalid(OPERATION, "the queue pair is destroyed"))?;
        if qp.state == State::Reset {
            return Err(invalid(OPERATION, "the queue pair is in RESET").saw("RESET", "INIT or later"));
        }
        let sges = Sges::new(request.sges, qp.max_recv_sge).ok_or_else(|| {
            invalid(OPERATION, "too many elements").saw(request.sges.len(), qp.max_recv_sge)
        })?;
        if qp.responder.queue.len() >= qp.max_recv_wr {
            return Err(Error::would_block(OPERATION).with_errno(Errno::ENOMEM));
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
