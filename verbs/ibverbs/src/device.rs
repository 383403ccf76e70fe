//! [`IbvDevice`]: control operations.

#![expect(
    unsafe_code,
    reason = "each operation is a call into libibverbs with pointers of our own tables"
)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use gaudi_dmabuf::Hold;
use gaudi_seam::{Errno, Error, HostVa, Result};
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, MwType, NewMr, NewMw, NewQp, PdHandle, QpCap, QpHandle,
    QpRequest, QpState, QpTransition, QpType, SharedReceiveQueue, SrqHandle, SrqRequest,
};
use gaudi_verbs::{
    Access, AhHandle, AsyncElement, AsyncEvent, AsyncEventType, AtomicCap, DeviceAttr, Gid, GidEntry, Guid,
    LinkLayer, Lkey, MrAddr, MrHandle, MrState, Mtu, MwHandle, PortAttr, PortState, RegPath, Rkey,
};
use gaudi_verbs_sys::Symbols;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::inline::{ibv_alloc_mw, ibv_dealloc_mw};
use gaudi_verbs_sys::types::*;

use crate::context::Opened;
use crate::dmabuf::{self, Ways};
use crate::errors::{check, last};
use crate::gate::Gate;
use crate::gid;
use crate::list::{NicInfo, text};
use crate::objects::{Ah, Mr, Mw, Object, Origin, Pd};
use crate::qp::{attributes, route};
use crate::queue::{Datagrams, IbvCq, IbvQp, IbvSrq, MAX_SGE};
use crate::table::Table;

#[derive(Debug)]
struct Cq(Arc<IbvCq>);

#[derive(Debug)]
struct Srq {
    queue: Arc<IbvSrq>,
    _pd: Arc<Pd>,
}

#[derive(Debug)]
struct Qp {
    queue: Arc<IbvQp>,
    _pd: Arc<Pd>,
    _cqs: [Arc<Cq>; 2],
    _srq: Option<Arc<Srq>>,
}

/// An open NIC of libibverbs with one port.
pub struct IbvDevice {
    pds: Table<Pd>,
    cqs: Table<Cq>,
    srqs: Table<Srq>,
    qps: Table<Qp>,
    mrs: Arc<Table<Mr>>,
    mws: Arc<Table<Mw>>,
    ahs: Arc<Table<Ah>>,
    datagrams: Arc<Datagrams>,
    ways: OnceLock<Ways>,
    probing: Mutex<()>,
    opened: Arc<Opened>,
}

impl IbvDevice {
    pub(crate) fn new(opened: Arc<Opened>) -> Self {
        Self {
            pds: Table::default(),
            cqs: Table::default(),
            srqs: Table::default(),
            qps: Table::default(),
            mrs: Arc::default(),
            mws: Arc::default(),
            ahs: Arc::default(),
            datagrams: Arc::default(),
            ways: OnceLock::new(),
            probing: Mutex::default(),
            opened,
        }
    }

    /// Returns what is known without a query.
    pub fn info(&self) -> &NicInfo {
        &self.opened.nic
    }

    fn symbols(&self) -> &Symbols {
        self.opened.library.symbols()
    }

    /// Returns the registration paths. They are probed once: they do not change while the NIC is
    /// open.
    fn ways(&self) -> Result<&Ways> {
        if let Some(ways) = self.ways.get() {
            return Ok(ways);
        }
        let _one = gaudi_sys::lock(&self.probing);
        if self.ways.get().is_none() {
            let ways = Ways::probe(&self.opened)?;
            let _ = self.ways.set(ways); // cannot fail: `probing` is locked
        }
        self.ways
            .get()
            .ok_or_else(|| Error::from_errno("ibv_reg_dmabuf_mr", Errno::EAGAIN))
    }

    fn insert_mr(&self, mr: Mr, path: RegPath) -> NewMr {
        // SAFETY: the region was just made.
        let (lkey, rkey) = unsafe {
            let mr = mr.object.0.as_ref();
            (mr.lkey, mr.rkey)
        };
        NewMr {
            handle: MrHandle(self.mrs.insert(mr)),
            lkey: Lkey(lkey),
            rkey: Rkey(rkey),
            path,
        }
    }

    /// Returns the index of the GID, as an address vector carries it.
    fn sgid_index(&self, operation: &'static str) -> Result<u8> {
        let row = gid::choose(&self.opened)?;
        u8::try_from(row.index).map_err(|_| {
            Error::from_errno(operation, Errno::EINVAL)
                .because("an address vector names only the first 256 GIDs of a port")
                .saw(row.index, "0 to 255")
        })
    }
}

/// rxe takes 7 as unlimited (`rxe_completer`, rxe_comp.c), which the specification allows only for
/// `rnr_retry`.
const RXE_RETRIES: u8 = 6;

/// Converts a limit, which the header has as `int`. A driver that reports a negative one has none.
fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Converts a number of reads, which a transition has as a byte. A larger limit is as good as 255.
fn depth(number: i32) -> u8 {
    u8::try_from(count(number)).unwrap_or(u8::MAX)
}

/// Returns the handle in the context of an event's object.
macro_rules! number_of {
    ($event:expr, $object:ident, $context:ident) => {{
        // SAFETY: the event's type determines the member.
        let object = unsafe { $event.element.$object };
        // SAFETY: the object lives until the event is acknowledged.
        let context = unsafe { (*object).$context };
        // A number of this crate, never an address: it fits.
        u32::try_from(context.addr()).unwrap_or(0)
    }};
}

fn element(event: &ibv_async_event) -> AsyncElement {
    match AsyncEventType(event.event_type) {
        AsyncEventType::CQ_ERR => AsyncElement::Cq(CqHandle(number_of!(event, cq, cq_context))),
        AsyncEventType::QP_FATAL
        | AsyncEventType::QP_REQ_ERR
        | AsyncEventType::QP_ACCESS_ERR
        | AsyncEventType::COMM_EST
        | AsyncEventType::SQ_DRAINED
        | AsyncEventType::PATH_MIG
        | AsyncEventType::PATH_MIG_ERR
        | AsyncEventType::QP_LAST_WQE_REACHED => {
            AsyncElement::Qp(QpHandle(number_of!(event, qp, qp_context)))
        }
        AsyncEventType::SRQ_ERR | AsyncEventType::SRQ_LIMIT_REACHED => {
            AsyncElement::Srq(SrqHandle(number_of!(event, srq, srq_context)))
        }
        AsyncEventType::PORT_ACTIVE
        | AsyncEventType::PORT_ERR
        | AsyncEventType::LID_CHANGE
        | AsyncEventType::PKEY_CHANGE
        | AsyncEventType::SM_CHANGE
        | AsyncEventType::CLIENT_REREGISTER
        | AsyncEventType::GID_CHANGE
        | AsyncEventType::DEVICE_SPEED_CHANGE => {
            // SAFETY: these events carry a port's number, which is below 256.
            let port = unsafe { event.element.port_num };
            AsyncElement::Port(u8::try_from(port).unwrap_or(0))
        }
        _ => AsyncElement::Device,
    }
}

impl Device for IbvDevice {
    fn query_device(&self) -> Result<DeviceAttr> {
        let attr = self.opened.attr()?;
        Ok(DeviceAttr {
            name: self.opened.nic.name.clone(),
            provider: "libibverbs".to_owned(),
            guid: Guid(attr.node_guid.get()),
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge).min(MAX_SGE as u32),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_mr: count(attr.max_mr),
            max_mr_size: attr.max_mr_size,
            max_pd: count(attr.max_pd),
            max_qp_rd_atom: depth(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: depth(attr.max_qp_init_rd_atom),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr),
            max_mw: count(attr.max_mw),
            max_ah: count(attr.max_ah),
            atomic_cap: AtomicCap(attr.atomic_cap),
            page_size_cap: attr.page_size_cap,
            fw_ver: text(&attr.fw_ver),
            dmabuf: self.ways()?.support(),
        })
    }

    fn query_port(&self) -> Result<PortAttr> {
        let attr = self.opened.port_attr(self.opened.port)?;
        let row = gid::choose(&self.opened)?;
        Ok(PortAttr {
            // Both are small enumerations. A value that does not fit is shown as unknown.
            state: PortState(u8::try_from(attr.state).unwrap_or(u8::MAX)),
            active_mtu: Mtu(u8::try_from(attr.active_mtu).unwrap_or(u8::MAX)),
            max_msg_sz: attr.max_msg_sz,
            port_num: self.opened.port,
            link_layer: LinkLayer(attr.link_layer),
            gid: row.gid,
            gid_index: row.index,
            lid: attr.lid,
        })
    }

    fn query_gids(&self) -> Result<Vec<GidEntry>> {
        gid::query(&self.opened)
    }

    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.opened.fds().1)
    }

    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        const OPERATION: &str = "ibv_get_async_event";
        let mut event = ibv_async_event::zeroed();
        // SAFETY: the context is live; its descriptor does not block.
        if unsafe { (self.symbols().ibv_get_async_event)(self.opened.context(), &raw mut event) } != 0 {
            let error = last(OPERATION);
            return match error.errno() {
                Some(Errno::EAGAIN) => Ok(None),
                _ => Err(error),
            };
        }
        let element = element(&event);
        // SAFETY: the event came from the library and is acknowledged once.
        unsafe { (self.symbols().ibv_ack_async_event)(&raw mut event) };
        if let AsyncElement::Cq(cq) = element {
            // Fails if the queue is destroyed, and no caller polls it then.
            let _ = self.cqs.with(OPERATION, cq.0, |cq| cq.0.set_overrun());
        }
        Ok(Some(AsyncEvent {
            event_type: AsyncEventType(event.event_type),
            element,
        }))
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        // SAFETY: the context is live.
        let pd = unsafe { (self.symbols().ibv_alloc_pd)(self.opened.context()) };
        let pd = Pd(Object::new("ibv_alloc_pd", pd)?);
        Ok(PdHandle(self.pds.insert(pd)))
    }

    fn dealloc_pd(&self, pd: PdHandle) -> Result<()> {
        self.pds.destroy("ibv_dealloc_pd", pd.0, |pd| self.free_pd(pd))
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
        let pd = self.pds.get(OPERATION, pd.0)?;
        let symbols = self.symbols();
        let size = |value| usize::try_from(value).map_err(|_| Error::from_errno(OPERATION, Errno::EINVAL));
        let start = std::ptr::with_exposed_provenance_mut(size(address.get())?);
        let length = size(len)?;
        // The older functions refuse optional flags.
        let bits = (access - Access::RELAXED_ORDERING).bits() as i32;
        let mr = match (symbols.ibv_reg_mr_iova2, symbols.ibv_reg_mr_iova) {
            // SAFETY: the domain is live; the memory is the caller's promise.
            (Some(register), _) => unsafe { register(pd.0.as_ptr(), start, length, iova.0, access.bits()) },
            // SAFETY: as above.
            (None, Some(register)) => unsafe { register(pd.0.as_ptr(), start, length, iova.0, bits) },
            (None, None) if iova == address.into() => {
                // SAFETY: as above.
                unsafe { (symbols.ibv_reg_mr)(pd.0.as_ptr(), start, length, bits) }
            }
            (None, None) => {
                return Err(Error::unsupported(
                    OPERATION,
                    "this libibverbs is older than IBVERBS_1.7: addresses count from the memory's own",
                ));
            }
        };
        let mr = Mr {
            object: Object::new(OPERATION, mr).map_err(explain_host)?,
            origin: Origin::Library,
            _attachment: None,
            _pd: pd,
        };
        Ok(self.insert_mr(mr, RegPath::Host))
    }

    fn reg_dmabuf_mr(&self, request: &DmaBufMr<'_>) -> Result<NewMr> {
        const OPERATION: &str = "ibv_reg_dmabuf_mr";
        let pd = self.pds.get(OPERATION, request.pd.0)?;
        let importer = format!("{}: region at {}", self.opened.nic.name, request.iova);
        let attachment = request.window.attach_as(Hold::Region, importer)?;
        let (object, origin, path) = self.ways()?.register(&self.opened, &pd, request)?;
        let mr = Mr {
            object,
            origin,
            _attachment: Some(attachment),
            _pd: pd,
        };
        Ok(self.insert_mr(mr, path))
    }

    fn dereg_mr(&self, mr: MrHandle) -> Result<()> {
        self.mrs.destroy("ibv_dereg_mr", mr.0, |mr| self.free_mr(mr))
    }

    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>> {
        self.mrs.with("memory region state", mr.0, |_| None)
    }

    fn alloc_mw(&self, pd: PdHandle, mw_type: MwType) -> Result<NewMw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let pd = self.pds.get(OPERATION, pd.0)?;
        let mw_type = match mw_type {
            MwType::Type1 => IBV_MW_TYPE_1,
            MwType::Type2 => IBV_MW_TYPE_2,
        };
        // SAFETY: the domain is live.
        let object = Object::new(OPERATION, unsafe { ibv_alloc_mw(pd.0.as_ptr(), mw_type) })?;
        // SAFETY: the window was just made.
        let rkey = unsafe { object.0.as_ref() }.rkey;
        let handle = self.mws.insert(Mw {
            object,
            posting: Mutex::default(),
            _pd: pd,
        });
        Ok(NewMw {
            handle: MwHandle(handle),
            rkey: Rkey(rkey),
        })
    }

    fn dealloc_mw(&self, mw: MwHandle) -> Result<()> {
        self.mws.destroy("ibv_dealloc_mw", mw.0, |mw| free_mw(mw))
    }

    fn create_ah(&self, pd: PdHandle, gid: &Gid, lid: u16) -> Result<AhHandle> {
        const OPERATION: &str = "ibv_create_ah";
        let pd = self.pds.get(OPERATION, pd.0)?;
        let mut attr = route(self.opened.port, gid, lid, self.sgid_index(OPERATION)?);
        // SAFETY: the domain is live and the struct is ours.
        let ah = unsafe { (self.symbols().ibv_create_ah)(pd.0.as_ptr(), &raw mut attr) };
        let object = Object::new(OPERATION, ah)?;
        Ok(AhHandle(self.ahs.insert(Ah { object, _pd: pd })))
    }

    fn destroy_ah(&self, ah: AhHandle) -> Result<()> {
        self.ahs.destroy("ibv_destroy_ah", ah.0, |ah| self.free_ah(ah))
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        const OPERATION: &str = "ibv_create_srq";
        let pd = self.pds.get(OPERATION, request.pd.0)?;
        let number = self.srqs.number();
        let mut init = ibv_srq_init_attr {
            srq_context: std::ptr::without_provenance_mut(number as usize),
            attr: ibv_srq_attr {
                max_wr: request.max_wr,
                max_sge: request.max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is live and the struct is ours.
        let srq = unsafe { (self.symbols().ibv_create_srq)(pd.0.as_ptr(), &raw mut init) };
        let queue = Arc::new(IbvSrq {
            srq: Object::new(OPERATION, srq)?,
            gate: Gate::default(),
            opened: self.opened.clone(),
        });
        let row = Srq {
            queue: queue.clone(),
            _pd: pd,
        };
        self.srqs.put(number, Arc::new(row));
        Ok((SrqHandle(number), queue))
    }

    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<()> {
        const OPERATION: &str = "ibv_modify_srq";
        let srq = self.srqs.get(OPERATION, srq.0)?;
        let mut attr = ibv_srq_attr {
            srq_limit: limit,
            ..ibv_srq_attr::zeroed()
        };
        // SAFETY: the queue is live while we hold its row.
        check(OPERATION, unsafe {
            (self.symbols().ibv_modify_srq)(srq.queue.srq.as_ptr(), &raw mut attr, IBV_SRQ_LIMIT)
        })
    }

    fn destroy_srq(&self, srq: SrqHandle) -> Result<()> {
        self.srqs
            .destroy("ibv_destroy_srq", srq.0, |srq| srq.queue.destroy())
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        const OPERATION: &str = "ibv_create_cq";
        let depth = i32::try_from(depth).map_err(|_| Error::from_errno(OPERATION, Errno::EINVAL))?;
        let number = self.cqs.number();
        let queue = IbvCq::create(self.opened.clone(), self.datagrams.clone(), depth, number)?;
        let queue = Arc::new(queue);
        self.cqs.put(number, Arc::new(Cq(queue.clone())));
        Ok((CqHandle(number), queue))
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<()> {
        self.cqs.destroy("ibv_destroy_cq", cq.0, |cq| cq.0.destroy())
    }

    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
        const OPERATION: &str = "ibv_create_qp";
        let pd = self.pds.get(OPERATION, request.pd.0)?;
        let cqs = [
            self.cqs.get(OPERATION, request.send_cq.0)?,
            self.cqs.get(OPERATION, request.recv_cq.0)?,
        ];
        let srq = request
            .srq
            .map(|srq| self.srqs.get(OPERATION, srq.0))
            .transpose()?;
        let qp_type = match request.qp_type {
            QpType::Rc => IBV_QPT_RC,
            QpType::Ud => IBV_QPT_UD,
            other => {
                return Err(Error::unsupported(
                    OPERATION,
                    format!("no queue pairs of {other:?}"),
                ));
            }
        };
        let number = self.qps.number();
        let cap = request.cap;
        let mut init = ibv_qp_init_attr {
            qp_context: std::ptr::without_provenance_mut(number as usize),
            send_cq: cqs[0].0.as_ptr(),
            recv_cq: cqs[1].0.as_ptr(),
            srq: srq.as_ref().map_or(null_mut(), |srq| srq.queue.srq.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
                max_inline_data: cap.max_inline_data,
            },
            qp_type,
            sq_sig_all: request.sq_sig_all.into(),
        };
        // SAFETY: domain and queues are live while we hold their rows, and the struct is ours.
        let qp = unsafe { (self.symbols().ibv_create_qp)(pd.0.as_ptr(), &raw mut init) };
        let qp = Object::new(OPERATION, qp)?;
        let queue = Arc::new(IbvQp {
            // SAFETY: the queue pair was just made.
            number: unsafe { qp.0.as_ref() }.qp_num,
            qp,
            sends: Gate::default(),
            receives: Gate::default(),
            ahs: self.ahs.clone(),
            mws: self.mws.clone(),
            mrs: self.mrs.clone(),
            opened: self.opened.clone(),
        });
        if request.qp_type == QpType::Ud {
            self.datagrams.add(queue.number);
        }
        let row = Qp {
            queue: queue.clone(),
            _pd: pd,
            _cqs: cqs,
            _srq: srq,
        };
        self.qps.put(number, Arc::new(row));
        Ok(NewQp {
            handle: QpHandle(number),
            queue,
            cap: QpCap {
                max_send_wr: init.cap.max_send_wr,
                max_recv_wr: init.cap.max_recv_wr,
                max_send_sge: init.cap.max_send_sge,
                max_recv_sge: init.cap.max_recv_sge,
                max_inline_data: init.cap.max_inline_data,
            },
        })
    }

    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        let qp = self.qps.get(OPERATION, qp.0)?;
        let (mut attr, mask) = attributes(transition, self.opened.port, || self.sgid_index(OPERATION))?;
        if self.opened.nic.is_rxe() {
            attr.retry_cnt = attr.retry_cnt.min(RXE_RETRIES);
        }
        // SAFETY: the queue pair is live while we hold its row, and the struct is ours.
        check(OPERATION, unsafe {
            (self.symbols().ibv_modify_qp)(qp.queue.qp.as_ptr(), &raw mut attr, mask)
        })
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        const OPERATION: &str = "ibv_query_qp";
        let qp = self.qps.get(OPERATION, qp.0)?;
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the queue pair is live while we hold its row, and the structs are ours.
        check(OPERATION, unsafe {
            (self.symbols().ibv_query_qp)(qp.queue.qp.as_ptr(), &raw mut attr, IBV_QP_STATE, &raw mut init)
        })?;
        Ok(QpState(attr.qp_state))
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        self.qps.destroy("ibv_destroy_qp", qp.0, |qp| {
            qp.queue.destroy()?;
            self.datagrams.remove(qp.queue.number);
            Ok(())
        })
    }
}

/// Deallocates a window that was taken out of its table.
fn free_mw(mw: &Mw) -> Result<()> {
    // SAFETY: the window was taken out of its table, so it is live and no other thread uses it.
    check("ibv_dealloc_mw", unsafe { ibv_dealloc_mw(mw.object.as_ptr()) })
}

/// Frees objects that were taken out of their tables: each is live, and no other thread uses it.
impl IbvDevice {
    fn free_pd(&self, pd: &Pd) -> Result<()> {
        // SAFETY: as described above.
        check("ibv_dealloc_pd", unsafe {
            (self.symbols().ibv_dealloc_pd)(pd.0.as_ptr())
        })
    }

    fn free_mr(&self, mr: &Mr) -> Result<()> {
        match mr.origin {
            // SAFETY: as described above, and the region is the library's.
            Origin::Library => check("ibv_dereg_mr", unsafe {
                (self.symbols().ibv_dereg_mr)(mr.object.as_ptr())
            }),
            Origin::Kernel { driver_id } => dmabuf::destroy_kernel(&self.opened, driver_id, &mr.object),
        }
    }

    fn free_ah(&self, ah: &Ah) -> Result<()> {
        // SAFETY: as described above. A thread that posts with it holds the table's lock.
        check("ibv_destroy_ah", unsafe {
            (self.symbols().ibv_destroy_ah)(ah.object.as_ptr())
        })
    }
}

/// Adds the usual cause to a refusal of host memory.
fn explain_host(error: Error) -> Error {
    match error.errno() {
        Some(Errno::ENOMEM) => error
            .because("memory of the region cannot be locked")
            .helped_by("raise the limit of locked memory (ulimit -l)"),
        Some(Errno::EFAULT) => {
            error.because("the range is not mapped, or not writable where the NIC may write")
        }
        _ => error,
    }
}

impl Drop for IbvDevice {
    /// Frees remaining objects in an order that every driver accepts. Windows are first: rxe waits
    /// 50 s for a queue pair that a window is bound to (`__rxe_cleanup`, rxe_pool.c).
    fn drop(&mut self) {
        if self.opened.is_foreign() {
            return;
        }
        let mut left: Vec<Result<()>> = self.mws.drain().iter().map(|mw| free_mw(mw)).collect();
        left.extend(self.qps.drain().iter().map(|qp| qp.queue.destroy()));
        left.extend(self.ahs.drain().iter().map(|ah| self.free_ah(ah)));
        left.extend(self.mrs.drain().iter().map(|mr| self.free_mr(mr)));
        left.extend(self.srqs.drain().iter().map(|srq| srq.queue.destroy()));
        left.extend(self.cqs.drain().iter().map(|cq| cq.0.destroy()));
        left.extend(self.pds.drain().iter().map(|pd| self.free_pd(pd)));
        let count = left.len();
        for error in left.into_iter().filter_map(Result::err) {
            tracing::error!(%error, nic = self.opened.nic.name, "an object is not freed before its NIC closes");
        }
        if count > 0 {
            let nic = &self.opened.nic.name;
            tracing::debug!(count, nic, "objects were left when the NIC closed");
        }
    }
}

impl fmt::Debug for IbvDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "IbvDevice({:?}, {} domains, {} regions, {} queue pairs)",
            self.opened,
            self.pds.len(),
            self.mrs.len(),
            self.qps.len()
        )
    }
}
