//! Two nodes in one process, and a NIC that refuses.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_device::{Buffer, Device};
use gaudi_remote::{Endpoint, EndpointOptions, Nic, Remote, Result, Rights};
use gaudi_seam::fault::Plan;
use gaudi_seam::{Errno, Error, HostVa};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::provider::{
    self, CompletionQueue, CqHandle, DmaBufMr, NewMr, NewQp, PdHandle, QpHandle, QpRequest, QpState,
    QpTransition,
};
use gaudi_verbs::{
    Access, AsyncEvent, Context, DeviceAttr, Gid, LinkLayer, MrAddr, MrHandle, MrState, PortAttr,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// Events that a test makes, beside the NIC's own.
#[derive(Debug)]
pub(crate) struct Events {
    made: Mutex<VecDeque<AsyncEvent>>,
    bell: EventFd,
    /// Readable where one of the two is.
    both: Epoll,
}

impl Events {
    fn beside(nic: &SoftNic) -> Self {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        let bell = EventFd::from_flags(flags).expect("an eventfd");
        let both = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll");
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        both.add(bell.as_fd(), readable).expect("added");
        let own = provider::Device::async_fd(nic).expect("a software NIC has events");
        both.add(own, readable).expect("added");
        Self {
            made: Mutex::default(),
            bell,
            both,
        }
    }

    pub(crate) fn make(&self, event: AsyncEvent) {
        self.made.lock().expect("no panic").push_back(event);
        self.bell.write(1).expect("room");
    }

    /// Whether an injected event is still unread.
    pub(crate) fn wait(&self) -> bool {
        !self.made.lock().expect("no panic").is_empty()
    }

    fn take(&self) -> Option<AsyncEvent> {
        let event = self.made.lock().expect("no panic").pop_front()?;
        self.bell.read().expect("written with it");
        Some(event)
    }
}

/// A software NIC whose registration of dma-bufs fails as a real one's may, and whose regions are
/// counted.
#[derive(Debug)]
pub(crate) struct TestNic {
    nic: Arc<SoftNic>,
    refuse: Option<Errno>,
    /// Instead of the NIC's own.
    port: Option<PortAttr>,
    /// Registrations of dma-bufs that were tried.
    pub(crate) tried: AtomicU32,
    /// Questions for the port.
    pub(crate) port_queries: AtomicU32,
    pub(crate) events: Events,
    /// Completion queues, in the order in which they were made.
    pub(crate) cqs: Mutex<Vec<CqHandle>>,
    /// Regions that live.
    pub(crate) live: AtomicI64,
}

impl provider::Device for TestNic {
    fn query_device(&self) -> Result<DeviceAttr> {
        self.nic.query_device()
    }
    fn query_port(&self) -> Result<PortAttr> {
        self.port_queries.fetch_add(1, Ordering::Relaxed);
        match &self.port {
            Some(port) => Ok(port.clone()),
            None => self.nic.query_port(),
        }
    }
    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.both.0.as_fd())
    }
    fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        match self.events.take() {
            Some(event) => Ok(Some(event)),
            None => self.nic.get_async_event(),
        }
    }
    fn alloc_pd(&self) -> Result<PdHandle> {
        self.nic.alloc_pd()
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<()> {
        self.nic.dealloc_pd(pd)
    }
    #[expect(unsafe_code, reason = "the promise is passed on")]
    unsafe fn reg_mr(
        &self,
        pd: PdHandle,
        address: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
    ) -> Result<NewMr> {
        // SAFETY: the caller promises what the NIC asks for.
        let new = unsafe { self.nic.reg_mr(pd, address, len, iova, access) }?;
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(new)
    }
    fn reg_dmabuf_mr(&self, request: &DmaBufMr<'_>) -> Result<NewMr> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        if let Some(errno) = self.refuse {
            return Err(Error::from_errno("ibv_reg_dmabuf_mr", errno));
        }
        let new = self.nic.reg_dmabuf_mr(request)?;
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(new)
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<()> {
        self.nic.dereg_mr(mr)?;
        self.live.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn mr_state(&self, mr: MrHandle) -> Result<Option<MrState>> {
        self.nic.mr_state(mr)
    }
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Arc<dyn CompletionQueue>)> {
        let (handle, queue) = self.nic.create_cq(depth)?;
        self.cqs.lock().expect("no panic").push(handle);
        Ok((handle, queue))
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<()> {
        self.nic.destroy_cq(cq)
    }
    fn create_qp(&self, request: &QpRequest) -> Result<NewQp> {
        self.nic.create_qp(request)
    }
    fn modify_qp(&self, qp: QpHandle, transition: &QpTransition) -> Result<()> {
        self.nic.modify_qp(qp, transition)
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpState> {
        self.nic.query_qp(qp)
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<()> {
        self.nic.destroy_qp(qp)
    }
}

/// One node. The endpoint stands before what it uses, as in a program.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) nic: Nic,
    pub(crate) provider: Arc<TestNic>,
    pub(crate) device: Device,
    /// The same socket as the endpoint's.
    pub(crate) stream: UnixStream,
}

/// How one node is made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) refuse: Option<Errno>,
    /// The address of an Ethernet port.
    pub(crate) address: Option<Ipv6Addr>,
    /// The longest message of its port.
    pub(crate) max_msg_sz: Option<u32>,
    pub(crate) options: EndpointOptions,
    /// Of both NICs, if it is node A's.
    pub(crate) faults: Plan,
}

impl Setup {
    pub(crate) fn direct() -> Self {
        Self {
            refuse: None,
            address: None,
            max_msg_sz: None,
            options: EndpointOptions::default(),
            faults: Plan::default(),
        }
    }

    pub(crate) fn staged() -> Self {
        Self {
            refuse: Some(Errno::EOPNOTSUPP),
            ..Self::direct()
        }
    }

    pub(crate) fn chunks(mut self, bytes: u32, depth: u32) -> Self {
        (self.options.chunk_bytes, self.options.depth) = (bytes, depth);
        self
    }
}

pub(crate) fn node(name: &str, nic: Arc<SoftNic>, stream: UnixStream, setup: &Setup) -> Result<Node> {
    let device = Device::open(&name.parse().expect("a spec"))?;
    let nic_port = provider::Device::query_port(&*nic)?;
    let provider = Arc::new(TestNic {
        events: Events::beside(&nic),
        cqs: Mutex::default(),
        nic,
        refuse: setup.refuse,
        port: (setup.address.is_some() || setup.max_msg_sz.is_some()).then(|| PortAttr {
            gid: setup
                .address
                .map_or(nic_port.gid, |address| Gid(address.octets())),
            link_layer: setup.address.map_or(nic_port.link_layer, |_| LinkLayer::ETHERNET),
            max_msg_sz: setup.max_msg_sz.unwrap_or(nic_port.max_msg_sz),
            ..nic_port
        }),
        tried: AtomicU32::new(0),
        port_queries: AtomicU32::new(0),
        live: AtomicI64::new(0),
    });
    let nic = Nic::new(&Context::open(Arc::clone(&provider) as Arc<_>)?)?;
    let same = stream.try_clone().expect("a clone");
    let endpoint = Endpoint::over(stream, &nic, Some(&device), setup.options.clone())?;
    Ok(Node {
        endpoint,
        nic,
        provider,
        device,
        stream: same,
    })
}

/// Two connected nodes, on mocks of the test's own name.
pub(crate) fn pair(name: &str, a: &Setup, b: &Setup) -> (Node, Node) {
    let specs = ["a", "b"].map(|end| format!("mock:gaudi2?name={name}-{end}"));
    pair_on(&specs[0], &specs[1], a, b)
}

/// Two connected nodes on these devices.
pub(crate) fn pair_on(spec_a: &str, spec_b: &str, a: &Setup, b: &Setup) -> (Node, Node) {
    let config = SoftNicConfig {
        faults: a.faults.clone(),
        ..SoftNicConfig::default()
    };
    let (nic_a, nic_b) = SoftNic::pair(config).expect("two NICs");
    let (stream_a, stream_b) = UnixStream::pair().expect("two sockets");
    std::thread::scope(|scope| {
        let b = scope.spawn(|| node(spec_b, nic_b, stream_b, b));
        let a = node(spec_a, nic_a, stream_a, a).expect("node A");
        (a, b.join().expect("no panic").expect("node B"))
    })
}

/// Bytes that no transfer leaves as they are by chance.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

impl Node {
    pub(crate) fn buffer(&self, len: u64, seed: u64) -> Buffer {
        let buffer = self.device.alloc_exclusive(len).expect("device memory");
        self.device
            .write(&buffer, 0, &noise(seed, len as usize))
            .expect("filled");
        buffer
    }

    pub(crate) fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.device.read(buffer, 0, &mut bytes).expect("read back");
        bytes
    }

    /// B offers, A hears of it.
    pub(crate) fn offer_to(&mut self, other: &mut Self, buffer: &Buffer, rights: Rights) -> Remote {
        self.endpoint.offer(buffer, rights).expect("offered");
        other.endpoint.receive_offer(MAX_WAIT).expect("received")
    }

    /// Regions of this NIC that live.
    pub(crate) fn live(&self) -> i64 {
        self.provider.live.load(Ordering::Relaxed)
    }
}
