//! [`SoftNic`]: opens and closes a NIC, and implements the provider's control operations.

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
use crate::error::{full, invalid, missing};
use crate::fault::FaultRule;
use crate::link::Link;
use crate::pending::Pending;
use crate::post::SoftSrq;
use crate::region::Region;
use crate::wire::MAX_MESSAGE;
use crate::{MAX_QP_WR, MAX_READS, MAX_SGE, rx, tx};

/// Value of [`DeviceAttr::provider`].
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
/// How long a closing NIC tries to send its answers.
const LINGER: Duration = Duration::from_secs(1);

/// Configuration of a NIC.
#[derive(Debug, Clone, Copy)]
pub struct SoftNicConfig {
    /// How long the peer may take for one frame of at most 256 KiB. A cable that is slower goes
    /// down. It is also the longest time that moving a queue pair to the error state, and
    /// destroying a queue pair or a region, waits for the peer, in each direction.
    pub stall_timeout: Duration,
    /// Fault to inject.
    pub fault: Option<FaultRule>,
    /// Seed by which peers' writes to dma-bufs become visible late and in any order, like writes on
    /// a bus, unless a read on the same queue pair pushes them out. `None` makes them visible at
    /// once.
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

/// A software NIC with one port and any number of cables. It closes, and its threads end, when the
/// last [`Arc`] of it is dropped.
///
/// Each end of a cable sends its GID to the other. A queue pair uses the cable to its peer's GID,
/// and a loop for the NIC's own. The first live cable that claims a GID keeps it, because cables do
/// not authenticate their peers. A frame that the protocol does not allow takes its cable down with
/// a `Protocol` error, and every queue pair on it ends with `RETRY_EXC_ERR`. Late frames of an
/// earlier connection are dropped and counted.
///
/// Intended differences from hardware:
/// - Messages are split at 256 KiB, not at the MTU. A datagram has one packet of at most the MTU.
/// - A message without a posted receive is refused with "not ready". The requester sends it again
///   `rnr_retry` times, after the responder's `min_rnr_timer` (at most 1 s), and then fails with
///   `RNR_RETRY_EXC_ERR`. A peer whose queue pair is not connected yet is asked again for
///   `timeout × (retry_cnt + 1)`.
/// - A cable that goes down also flushes receives, so that no receiver waits for messages that
///   cannot arrive.
/// - A dma-buf whose `DMA_BUF_IOCTL_SYNC` fails makes its work request fail with `LOC_PROT_ERR`, or
///   the peer's with `REM_OP_ERR`.
/// - A completion queue that overflows loses completions, raises `CQ_ERR`, puts the queue pair into
///   the error state, and fails to poll once it is empty.
/// - A local operation (bind, invalidation) completes after the peer has acknowledged its place in
///   the order.
/// - The error state ends access to memory: unanswered reads are refused, and flushed work
///   completes after the last frame that used its buffers.
pub struct SoftNic {
    pub(crate) shared: Arc<Shared>,
    guid: Guid,
    owner: OwnerProcess,
    config: SoftNicConfig,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Body of a cable's thread.
type Body = Box<dyn FnOnce(&Shared, &Cable) + Send>;

impl SoftNic {
    /// Opens a NIC with one cable: one end of a connected stream socket.
    ///
    /// # Errors
    /// `InvalidInput` if `cable` is not a stream socket; the errno of eventfd(2) or clone(2).
    pub fn open(name: &str, cable: impl Into<OwnedFd>, config: SoftNicConfig) -> Result<Arc<Self>> {
        let nic = Self::unplugged(name, config)?;
        nic.plug(cable)?;
        Ok(nic)
    }

    /// Opens a NIC without a cable. It reaches itself, and others after [`plug`](Self::plug).
    ///
    /// # Errors
    /// The errno of eventfd(2).
    pub fn unplugged(name: &str, config: SoftNicConfig) -> Result<Arc<Self>> {
        let random = RandomState::new().build_hasher().finish();
        // Queue pair numbers start anywhere, so that those of an earlier NIC mostly do not match.
        let first = (random & 0xff_ffff) as u32;
        // Locally administered: of no vendor.
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

    /// Adds a cable: one end of a connected stream socket. Each end sends its GID over it, and a
    /// queue pair that connects to a GID uses the cable that leads there. A NIC with one cable
    /// sends everything over it that is not for itself.
    ///
    /// # Errors
    /// `InvalidInput` if `cable` is not a stream socket; the errno of clone(2).
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

    /// Returns the cable that leads to a port. The loop to this NIC is created on first use.
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
                .saw(gid, "the GID of a cable's other end"));
        }
        let cable = Cable::looped(self.config.stall_timeout)?;
        self.plug_cable(cable, Some(self.shared.gid))?;
        // Two threads may create two loops at once. Both work.
        let link = self.shared.route(self.shared.lock(), gid).1;
        link.ok_or_else(|| Error::new(ErrorKind::Disconnected, operation).because("the loop went down"))
    }

    /// Opens two NICs joined by a cable, in one process.
    ///
    /// # Errors
    /// The errno of socketpair(2), eventfd(2) or clone(2).
    pub fn pair(config: SoftNicConfig) -> Result<(Arc<Self>, Arc<Self>)> {
        let (a, b) = UnixStream::pair()
            .map_err(|error| Error::from_errno("softnic pair", gaudi_sys::fd::errno_of(error)))?;
        Ok((
            Self::open("softnic0", a, config)?,
            Self::open("softnic1", b, config)?,
        ))
    }

    /// Returns what it has moved so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }

    /// Returns why a cable is down, or `None` while all are up.
    pub fn cable_error(&self) -> Option<Error> {
        let core = self.shared.lock();
        core.links.iter().find_map(|link| link.down.clone())
    }

    /// Returns the GID of its port, which peers route by.
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
            return Err(missing(operation, "protection domain"));
        }
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
}

fn gid_of(guid: Guid) -> Gid {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[8..].copy_from_slice(&guid.0.to_be_bytes());
    Gid(gid)
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
            Err(missing("ibv_dealloc_pd", "protection domain"))
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
        if self.shared.lock().regions.contains(mr.0) {
            Ok(Some(MrState::Live))
        } else {
            Err(missing("memory region state", "memory region"))
        }
    }

    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let mut core = self.shared.lock();
        if !core.pds.contains(&pd.0) {
            return Err(missing(OPERATION, "protection domain"));
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
            Err(missing("ibv_dealloc_mw", "memory window"))
        }
    }

    fn create_ah(&self, pd: PdHandle, gid: &Gid, _lid: u16) -> Result<AhHandle> {
        const OPERATION: &str = "ibv_create_ah";
        let link = self.route(OPERATION, gid)?;
        let mut core = self.shared.lock();
        if !core.pds.contains(&pd.0) {
            return Err(missing(OPERATION, "protection domain"));
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
            None => Err(missing("ibv_destroy_ah", "address handle")),
        }
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        const OPERATION: &str = "ibv_create_srq";
        let mut core = self.shared.lock();
        if !core.pds.contains(&request.pd.0) {
            return Err(missing(OPERATION, "protection domain"));
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
            .ok_or_else(|| missing(OPERATION, "shared receive queue"))?;
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
        if core.qps.values().any(|qp| qp.srq == Some(srq.0)) {
            return Err(
                Error::from_errno(OPERATION, Errno::EBUSY).because("queue pairs take receives from it")
            );
        }
        match core.srqs.remove(&srq.0) {
            Some(_) => Ok(()),
            None => Err(missing(OPERATION, "shared receive queue")),
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
            None => Err(missing("ibv_destroy_cq", "completion queue")),
        }
    }

    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
        self.new_qp(request)
    }

    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        self.transition_qp(qp, transition)
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        self.qp_state(qp)
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        self.remove_qp(qp)
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.owner.is_foreign() {
            // The threads run in the parent, which still uses the sockets: only close descriptors.
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
        core.links.iter().for_each(Link::shut);
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
