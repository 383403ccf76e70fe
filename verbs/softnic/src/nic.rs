//! [`SoftNic`]: opening, closing and the provider's control operations.

#![expect(
    unsafe_code,
    reason = "registering host memory passes the caller's promise on to the region"
)]

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, ErrorKind, HostVa, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, MwType, NewMr, NewMw, NewQp, PdHandle, QpHandle, QpRequest,
    QpState, QpTransition, SharedReceiveQueue, SrqHandle, SrqRequest,
};
use gaudi_verbs::{
    Access, AhHandle, AsyncEvent, AtomicCap, DeviceAttr, DmaBufSupport, Gid, GidEntry, GidKind, Guid,
    LinkLayer, Lkey, MrAddr, MrHandle, MrState, Mtu, MwHandle, PortAttr, PortState, RegPath, Rkey,
};

use crate::cable::Cable;
use crate::core::{Shared, Srq};
use crate::counters::Counters;
use crate::cq::SoftCq;
use crate::pending::Pending;
use crate::post::SoftSrq;
use crate::region::Region;
use crate::wire::MAX_MESSAGE;
use crate::{MAX_QP_WR, MAX_READS, MAX_SGE, rx, tx};

/// What [`DeviceAttr::provider`] says.
pub const PROVIDER: &str = "softnic (software)";

pub(crate) const MAX_QP: u32 = 1024;
const MAX_CQ: u32 = 1024;
const MAX_CQE: u32 = 1 << 16;
const MAX_MR: u32 = 1 << 17;
const MAX_PD: u32 = 1024;
const MAX_SRQ: u32 = 1024;
const MAX_MW: u32 = 1 << 16;
const MAX_AH: u32 = 1 << 15;
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
    /// Cuts the cable after so many frames.
    CutCable {
        /// Frames that still leave, on each cable.
        frame: u64,
    },
    /// Loses, damages, doubles, delays and reorders frames of all kinds, as a network may: connections must not show it. Damaged
    /// frames are dropped by who receives them, as frames with a wrong checksum are.
    Storm {
        /// What decides.
        seed: u64,
        /// How many frames of a thousand meet one of these.
        permille: u16,
    },
}

/// How a NIC behaves.
#[derive(Debug, Clone, Copy)]
pub struct SoftNicConfig {
    /// How long the peer may take for one frame, 256 KiB of payload at most, once it has begun;
    /// then the cable counts as down. It is also the longest that moving a queue pair to the error
    /// state, and destroying a queue pair or a region, waits for the peer, in each direction.
    pub stall_timeout: Duration,
    /// A fault to make.
    pub fault: Option<FaultRule>,
    /// Peers' writes to dma-bufs become visible late and in any order, by this seed, unless a read on the same queue pair pushes them
    /// out: as writes on a bus may. `None` is at once.
    pub late_writes: Option<u64>,
}

impl Default for SoftNicConfig {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(30),
            fault: None,
            late_writes: None,
        }
    }
}

/// A software NIC with one port and any number of cables. It closes, and its threads end, when the last [`Arc`] of it is dropped.
pub struct SoftNic {
    pub(crate) shared: Arc<Shared>,
    guid: Guid,
    owner: OwnerProcess,
    config: SoftNicConfig,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a thread of a cable does.
type Body = Box<dyn FnOnce(&Shared, &Cable) + Send>;

impl SoftNic {
    /// Plugs one end of a connected stream socket into a new NIC. The NIC owns it from now on.
    pub fn open(name: &str, cable: impl Into<OwnedFd>, config: SoftNicConfig) -> Result<Arc<Self>> {
        let nic = Self::unplugged(name, config)?;
        nic.plug(cable)?;
        Ok(nic)
    }

    /// A NIC without a cable: it reaches itself, and others as soon as [`plug`](Self::plug) is called.
    pub fn unplugged(name: &str, config: SoftNicConfig) -> Result<Arc<Self>> {
        let random = RandomState::new().build_hasher().finish();
        // Queue pair numbers start anywhere, so that those of an earlier NIC mostly do not fit.
        let first = u32::try_from(random & 0xff_ffff).unwrap_or(0);
        // Locally administered: no vendor's.
        let guid = Guid(random | 0x0200_0000_0000_0000);
        let pending = config.late_writes.map(Pending::new);
        let shared = Shared::new(name.to_owned(), gid_of(guid), pending, first)?;
        Ok(Arc::new(Self {
            shared: Arc::new(shared),
            guid,
            owner: OwnerProcess::current(),
            config,
            threads: Mutex::default(),
        }))
    }

    /// Plugs one more cable in: one end of a connected stream socket. Each end tells the other its GID over it; a queue pair that
    /// connects to a GID takes the cable that leads there. A NIC with one cable sends everything over it that is not for itself.
    pub fn plug(&self, cable: impl Into<OwnedFd>) -> Result<()> {
        self.plug_cable(Cable::new(cable.into(), self.config.stall_timeout)?, None)
    }

    fn plug_cable(&self, cable: Cable, peer: Option<Gid>) -> Result<()> {
        const OPERATION: &str = "softnic open";
        let fault = self.config.fault;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        let cable = Arc::new(cable);
        let link = self.shared.plug(&cable, peer);
        let mut spawn = |suffix: &str, body: Body| {
            let (shared, cable) = (self.shared.clone(), cable.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("softnic-{suffix}{link}"))
                .spawn(move || body(&shared, &cable));
            let thread =
                spawned.map_err(|error| Error::from_errno(OPERATION, gaudi_sys::fd::errno_of(error)));
            thread.map(|thread| threads.push(thread))
        };
        let spawned =
            spawn("rx", Box::new(move |shared, cable| rx::run(shared, link, cable))).and_then(|()| {
                spawn(
                    "tx",
                    Box::new(move |shared, cable| tx::run(shared, link, cable, fault)),
                )
            });
        if let Err(error) = &spawned {
            let mut core = self.shared.lock();
            core.links[link].tx_ended = true;
            self.shared.cable_down(&mut core, link, error.clone());
        }
        spawned
    }

    /// The cable that leads to a port. That to itself is made when it is first asked for.
    pub(crate) fn route(&self, operation: &'static str, gid: &Gid) -> Result<usize> {
        let (core, link) = self.shared.route(self.shared.lock(), gid);
        if let Some(link) = link {
            return match core.links[link].down.clone() {
                None => Ok(link),
                Some(error) => Err(error),
            };
        }
        drop(core);
        if *gid != self.shared.gid {
            return Err(Error::from_errno(operation, Errno::ENETUNREACH)
                .with_kind(ErrorKind::Disconnected)
                .because("no cable of this NIC leads to the peer's port")
                .saw(gid, "a GID that a cable's other end has"));
        }
        let cable = Cable::looped(self.config.stall_timeout)?;
        self.plug_cable(cable, Some(self.shared.gid))?;
        // Two that came at once made two; both work.
        let link = self.shared.route(self.shared.lock(), gid).1;
        link.ok_or_else(|| Error::new(ErrorKind::Disconnected, operation))
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

    /// Why a cable is down; `None` while all are up.
    pub fn cable_error(&self) -> Option<Error> {
        let core = self.shared.lock();
        core.links.iter().find_map(|link| link.down.clone())
    }

    /// Its address: what a peer routes by.
    pub fn gid(&self) -> Gid {
        self.shared.gid
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
        let key = core.regions.insert(region)?;
        Ok(NewMr {
            handle: MrHandle(key),
            lkey: Lkey(key),
            rkey: Rkey(key),
            path,
        })
    }
}

fn gid_of(guid: Guid) -> Gid {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[8..].copy_from_slice(&guid.0.to_be_bytes());
    Gid(gid)
}

pub(crate) fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::from_errno(operation, Errno::EINVAL).because(cause)
}

pub(crate) fn full(operation: &'static str, what: &str, limit: u32) -> Error {
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
            max_qp_init_rd_atom: MAX_READS,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_QP_WR,
            max_mw: MAX_MW,
            max_ah: MAX_AH,
            // Its atomics are the processor's.
            atomic_cap: AtomicCap::GLOB,
            page_size_cap: u64::MAX << 12,
            fw_ver: String::new(),
            dmabuf: DmaBufSupport::Yes,
        })
    }

    fn query_port(&self) -> Result<PortAttr> {
        // A port whose cables are all dead, and there was one.
        let core = self.shared.lock();
        let mut cables = core
            .links
            .iter()
            .filter(|link| link.peer != Some(self.shared.gid))
            .peekable();
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

    fn query_gids(&self) -> Result<Vec<GidEntry>> {
        Ok(vec![GidEntry {
            index: 0,
            gid: self.shared.gid,
            kind: GidKind::Unknown,
            netdev: None,
        }])
    }

    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.events.fd())
    }

    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.shared.events.take())
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
        if core.regions.windows.stand_on(mr.0) {
            // IBA 10.6.7.2.6, as rxe_dereg_mr answers.
            return Err(invalid("ibv_dereg_mr", "memory windows are bound to the region"));
        }
        core.flush_pending(None);
        while core
            .regions
            .kill(mr.0)
            .ok_or_else(|| invalid("ibv_dereg_mr", "no such memory region"))?
        {
            core = self.shared.wait_idle(core);
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

    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let mut core = self.shared.lock();
        if !core.pds.contains(&pd.0) {
            return Err(invalid(OPERATION, "no such protection domain"));
        }
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
        if self.shared.lock().regions.windows.remove(mw.0) {
            Ok(())
        } else {
            Err(invalid("ibv_dealloc_mw", "no such memory window"))
        }
    }

    fn create_ah(&self, pd: PdHandle, gid: &Gid, _lid: u16) -> Result<AhHandle> {
        const OPERATION: &str = "ibv_create_ah";
        let link = self.route(OPERATION, gid)?;
        let mut core = self.shared.lock();
        if !core.pds.contains(&pd.0) {
            return Err(invalid(OPERATION, "no such protection domain"));
        }
        if core.ahs.len() >= MAX_AH as usize {
            return Err(full(OPERATION, "address handles", MAX_AH));
        }
        let handle = core.fresh(u32::MAX, |core, handle| core.ahs.contains_key(&handle));
        core.ahs.insert(handle, (pd.0, link));
        Ok(AhHandle(handle))
    }

    fn destroy_ah(&self, ah: AhHandle) -> Result<()> {
        match self.shared.lock().ahs.remove(&ah.0) {
            Some(_) => Ok(()),
            None => Err(invalid("ibv_destroy_ah", "no such address handle")),
        }
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        const OPERATION: &str = "ibv_create_srq";
        let mut core = self.shared.lock();
        if !core.pds.contains(&request.pd.0) {
            return Err(invalid(OPERATION, "no such protection domain"));
        }
        if core.srqs.len() >= MAX_SRQ as usize {
            return Err(full(OPERATION, "shared receive queues", MAX_SRQ));
        }
        let handle = core.fresh(u32::MAX, |core, handle| core.srqs.contains_key(&handle));
        let room = request.max_wr as usize;
        let srq = Srq {
            max_wr: room,
            max_sge: request.max_sge.min(MAX_SGE),
            queue: std::collections::VecDeque::with_capacity(room),
            limit: 0,
        };
        core.srqs.insert(handle, srq);
        let queue = SoftSrq {
            shared: self.shared.clone(),
            handle,
        };
        Ok((SrqHandle(handle), Arc::new(queue)))
    }

    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<()> {
        const OPERATION: &str = "ibv_modify_srq";
        let mut core = self.shared.lock();
        let srq = core
            .srqs
            .get_mut(&srq.0)
            .ok_or_else(|| invalid(OPERATION, "no such shared receive queue"))?;
        if limit as usize > srq.max_wr {
            return Err(invalid(OPERATION, "the limit is more than the queue's room")
                .saw(limit, format!("0 to {}", srq.max_wr)));
        }
        srq.limit = limit;
        Ok(())
    }

    fn destroy_srq(&self, srq: SrqHandle) -> Result<()> {
        const OPERATION: &str = "ibv_destroy_srq";
        let mut core = self.shared.lock();
        if core.qps.values().any(|qp| qp.srq == Some(srq.0)) {
            return Err(Error::from_errno(OPERATION, Errno::EBUSY).because("queue pairs take from it"));
        }
        match core.srqs.remove(&srq.0) {
            Some(_) => Ok(()),
            None => Err(invalid(OPERATION, "no such shared receive queue")),
        }
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        let mut core = self.shared.lock();
        if core.cqs.len() >= MAX_CQ as usize {
            return Err(full("ibv_create_cq", "completion queues", MAX_CQ));
        }
        let handle = core.fresh(u32::MAX, |core, handle| core.cqs.contains_key(&handle));
        let cq = Arc::new(SoftCq::new(handle, depth as usize)?);
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
        self.make_qp(request)
    }

    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        self.change_qp(qp, transition)
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        self.state_of_qp(qp)
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        self.end_qp(qp)
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.owner.is_foreign() {
            // The threads run in the parent, and the sockets are still its: only our descriptors may close.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        let mut core = self.shared.lock();
        core.closing = true;
        core.flush_pending(None);
        drop(core);
        self.shared.wake_all();
        let mut core = self.shared.lock();
        let deadline = Instant::now() + LINGER;
        while core.links.iter().any(|link| !link.tx_ended) && Instant::now() < deadline {
            core = self.shared.wait_idle_for(core, LINGER);
        }
        core.shut_all();
        drop(core);
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
