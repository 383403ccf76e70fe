//! A provider that moves nothing: it records what the safe layer requests, and answers as set
//! to.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{Errno, Error, HostVa, Result};
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, MwType, NewMr, NewMw, NewQp, PdHandle, QpCap, QpHandle,
    QpRequest, QpState, QpTransition, QueuePair, SharedReceiveQueue, SrqHandle, SrqRequest,
};
use gaudi_verbs::{
    Access, AsyncEvent, AtomicCap, DeviceAttr, DmaBufSupport, Gid, Guid, LinkLayer, Lkey, MrAddr, MrHandle,
    MrState, Mtu, MwHandle, PortAttr, PortState, Qpn, RecvWr, RegPath, Rkey, SendOp, SendWr, WorkCompletion,
};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// What it has noted.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Each transition of each queue pair.
    pub(crate) transitions: Vec<QpTransition>,
    /// Each operation that was posted.
    pub(crate) sends: Vec<SendOp>,
    /// How many receives were posted, to queue pairs and shared queues.
    pub(crate) receives: usize,
}

/// The NIC.
#[derive(Debug)]
pub(crate) struct Fake {
    noted: Arc<Mutex<Noted>>,
    next: AtomicU32,
    /// Reads that it answers, and that it asks for, at a time.
    pub(crate) reads: (u8, u8),
    /// Held by a test while no deregistration may end.
    pub(crate) dereg: Mutex<()>,
    /// How many deregistrations have begun.
    pub(crate) begun: AtomicU32,
    /// What every deregistration fails with.
    pub(crate) refuse_dereg: Mutex<Option<Errno>>,
    /// Completions that arrive after a poll and before the request for an event.
    pub(crate) late: Arc<Mutex<Vec<WorkCompletion>>>,
    /// Events to report, last first.
    pub(crate) events: Mutex<Vec<AsyncEvent>>,
}

impl Fake {
    /// One that answers and asks for so many reads at a time.
    pub(crate) fn new(answers: u8, asks: u8) -> Arc<Self> {
        Arc::new(Self {
            noted: Arc::default(),
            next: AtomicU32::new(1),
            reads: (answers, asks),
            dereg: Mutex::default(),
            begun: AtomicU32::new(0),
            refuse_dereg: Mutex::default(),
            late: Arc::default(),
            events: Mutex::default(),
        })
    }

    /// What it has noted.
    pub(crate) fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn region(&self) -> NewMr {
        let number = self.number();
        NewMr {
            handle: MrHandle(number),
            lkey: Lkey(number << 8),
            rkey: Rkey(number << 8),
            path: RegPath::Software,
        }
    }
}

impl Device for Fake {
    fn query_device(&self) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            name: "fake0".to_owned(),
            provider: "a fake of the tests".to_owned(),
            guid: Guid(1),
            max_qp: 100,
            max_qp_wr: 100,
            max_sge: 8,
            max_cq: 100,
            max_cqe: 100,
            max_mr: 100,
            max_mr_size: 1 << 40,
            max_pd: 100,
            max_qp_rd_atom: self.reads.0,
            max_qp_init_rd_atom: self.reads.1,
            max_srq: 100,
            max_srq_wr: 100,
            max_mw: 100,
            max_ah: 100,
            atomic_cap: AtomicCap::HCA,
            page_size_cap: 4096,
            fw_ver: String::new(),
            dmabuf: DmaBufSupport::Yes,
        })
    }

    fn query_port(&self) -> Result<PortAttr> {
        Ok(PortAttr {
            state: PortState::ACTIVE,
            active_mtu: Mtu::MTU_1024,
            max_msg_sz: 1 << 30,
            port_num: 1,
            link_layer: LinkLayer::ETHERNET,
            gid: Gid([1; 16]),
            gid_index: 0,
            lid: 0,
        })
    }

    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.events.lock().unwrap_or_else(PoisonError::into_inner).pop())
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        Ok(PdHandle(self.number()))
    }

    fn dealloc_pd(&self, _: PdHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn reg_mr(&self, _: PdHandle, _: HostVa, _: u64, _: MrAddr, _: Access) -> Result<NewMr> {
        Ok(self.region())
    }

    fn reg_dmabuf_mr(&self, _: &DmaBufMr<'_>) -> Result<NewMr> {
        Ok(self.region())
    }

    fn dereg_mr(&self, _: MrHandle) -> Result<()> {
        self.begun.fetch_add(1, Ordering::Release);
        drop(self.dereg.lock().unwrap_or_else(PoisonError::into_inner));
        match *self.refuse_dereg.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(errno) => Err(Error::from_errno("ibv_dereg_mr", errno)),
            None => Ok(()),
        }
    }

    fn mr_state(&self, _: MrHandle) -> Result<Option<MrState>> {
        Ok(None)
    }

    fn alloc_mw(&self, _: PdHandle, _: MwType) -> Result<NewMw> {
        let number = self.number();
        Ok(NewMw {
            handle: MwHandle(number),
            rkey: Rkey(number << 8),
        })
    }

    fn dealloc_mw(&self, _: MwHandle) -> Result<()> {
        Ok(())
    }

    fn create_srq(&self, _: &SrqRequest) -> Result<(SrqHandle, Arc<dyn SharedReceiveQueue>)> {
        Ok((
            SrqHandle(self.number()),
            Arc::new(Queue(Qpn(0), self.noted.clone())),
        ))
    }

    fn destroy_srq(&self, _: SrqHandle) -> Result<()> {
        Ok(())
    }

    fn create_cq(&self, _: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        let silent = Silent {
            event: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd"),
            late: Arc::clone(&self.late),
            ready: Mutex::default(),
        };
        Ok((CqHandle(self.number()), Arc::new(silent)))
    }

    fn destroy_cq(&self, _: CqHandle) -> Result<()> {
        Ok(())
    }

    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
        let number = self.number();
        Ok(NewQp {
            handle: QpHandle(number),
            queue: Arc::new(Queue(Qpn(number), self.noted.clone())),
            cap: QpCap { ..request.cap },
        })
    }

    fn modify_qp(&self, _: QpHandle, transition: &QpTransition) -> Result<()> {
        self.noted().transitions.push(*transition);
        Ok(())
    }

    fn query_qp(&self, _: QpHandle) -> Result<QpState> {
        Ok(QpState::RESET)
    }

    fn destroy_qp(&self, _: QpHandle) -> Result<()> {
        Ok(())
    }
}

/// A queue that takes everything and does nothing.
#[derive(Debug)]
struct Queue(Qpn, Arc<Mutex<Noted>>);

impl QueuePair for Queue {
    fn qpn(&self) -> Qpn {
        self.0
    }

    fn post_send(&self, request: &SendWr<'_>) -> Result<()> {
        let mut noted = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        noted.sends.push(request.op);
        Ok(())
    }

    fn post_recv(&self, _: &RecvWr<'_>) -> Result<()> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).receives += 1;
        Ok(())
    }
}

impl SharedReceiveQueue for Queue {
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        QueuePair::post_recv(self, request)
    }
}

/// A completion queue without events: it has the late completions from the request for an event on.
#[derive(Debug)]
struct Silent {
    event: EventFd,
    late: Arc<Mutex<Vec<WorkCompletion>>>,
    ready: Mutex<Vec<WorkCompletion>>,
}

impl CompletionQueue for Silent {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ready.len().min(into.len());
        for (place, completion) in into.iter_mut().zip(ready.drain(..count)) {
            *place = completion;
        }
        Ok(count)
    }

    fn req_notify(&self, _: bool) -> Result<()> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.append(&mut late);
        Ok(())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn ack_event(&self) -> Result<()> {
        Ok(())
    }
}
