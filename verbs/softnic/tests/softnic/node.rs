//! A node: a NIC with one queue pair, host memory, and "device" memory behind a stand-in dma-buf.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_dmabuf::{DmaBuf, Window};
use gaudi_seam::RawMapping;
use gaudi_softnic::{Fabric, SoftNic, SoftNicConfig};
use gaudi_sys::{Memfd, standin};
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{
    Access, AsyncElement, AsyncEventType, Context, Cq, Mr, MrAddr, Mtu, Pd, Qp, QpAddress, QpInit, WcStatus,
    WorkCompletion,
};

/// Bytes of host memory.
pub(crate) const HOST: usize = 4 << 20;
/// Bytes of the exported window.
pub(crate) const DEVICE: u64 = 3 << 20;
/// Where the window starts in device memory.
pub(crate) const DEVICE_START: u64 = 8192;
/// The device address of the window's first byte.
pub(crate) const DEVICE_VA: u64 = 0x1001_0018_0000_2000;
/// Far more than anything here takes; a wait that long is a hang.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

pub(crate) const FULL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// Declared in the order in which things must go: the queue pair first, the NIC last.
pub(crate) struct Node {
    pub(crate) qp: Qp,
    pub(crate) host_mr: Mr,
    pub(crate) device_mr: Mr,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    pub(crate) host: Arc<RawMapping>,
    pub(crate) device: RawMapping,
    pub(crate) window: Window,
    pub(crate) memory: Memfd,
    pub(crate) nic: Arc<SoftNic>,
}

impl Node {
    pub(crate) fn new(nic: Arc<SoftNic>) -> Self {
        Self::with_depth(nic, 256)
    }

    pub(crate) fn with_depth(nic: Arc<SoftNic>, depth: u32) -> Self {
        let context = Context::open(nic.clone()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(depth).unwrap();
        let host = Arc::new(RawMapping::anonymous(HOST, false).unwrap());
        let host_mr = pd.reg_mapping(host.clone(), FULL).unwrap();
        let memory = Memfd::sparse(standin::MEMFD_NAME, 16 << 20).unwrap();
        let window = export(&memory, DEVICE_START, DEVICE);
        let device_mr = pd.reg_dmabuf_mr(&window, MrAddr(DEVICE_VA), FULL).unwrap();
        let device = RawMapping::of_fd(&memory, DEVICE_START, DEVICE as usize).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        Self {
            qp,
            host_mr,
            device_mr,
            cq,
            pd,
            context,
            host,
            device,
            window,
            memory,
            nic,
        }
    }

    /// One completion, which must come.
    pub(crate) fn completion(&self) -> WorkCompletion {
        let mut wc = [WorkCompletion::EMPTY];
        let count = self
            .cq
            .wait(&mut wc, MAX_WAIT)
            .expect("work must complete, well or badly");
        assert_eq!(count, 1);
        wc[0]
    }

    /// One completion, which must be this.
    pub(crate) fn completes(&self, wr_id: u64, status: WcStatus) -> WorkCompletion {
        let wc = self.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status), "completion {wc:?}");
        wc
    }

    pub(crate) fn nothing_completes(&self) {
        let mut wc = [WorkCompletion::EMPTY];
        assert_eq!(self.cq.poll(&mut wc).unwrap(), 0, "unexpected {wc:?}");
    }
}

/// Waits for an asynchronous event of the node.
pub(crate) fn has_event(node: &Node, wanted: AsyncEventType) {
    let deadline = Instant::now() + MAX_WAIT;
    while Instant::now() < deadline {
        match node.context.get_async_event().unwrap() {
            Some(event) if event.event_type == wanted => {
                if wanted == AsyncEventType::QP_FATAL {
                    assert!(matches!(event.element, AsyncElement::Qp(_)), "{event:?}");
                }
                return;
            }
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no event {wanted}");
}

pub(crate) fn export(memory: &Memfd, offset: u64, len: u64) -> Window {
    let fd: OwnedFd = standin::export(memory, standin::Window { offset, len }).unwrap();
    DmaBuf::from_fd(fd).unwrap().whole().unwrap()
}

/// Makes [`pair_with`] use a cable in memory.
pub(crate) const FABRIC: &str = "SOFTNIC_TEST_FABRIC";

/// Two NICs of a fabric, joined.
pub(crate) fn fabric_pair(seed: u64, config: SoftNicConfig) -> (Arc<SoftNic>, Arc<SoftNic>) {
    let fabric = Fabric::new(seed);
    let [a, b] = ["softnic0", "softnic1"].map(|name| fabric.nic(name, config.clone()).unwrap());
    fabric.join(&a, &b).unwrap();
    (a, b)
}

/// Two nodes in this process, connected.
pub(crate) fn pair() -> (Node, Node) {
    pair_with(SoftNicConfig::default())
}

/// As [`pair`], over a cable in memory if [`FABRIC`] is set.
pub(crate) fn pair_with(config: SoftNicConfig) -> (Node, Node) {
    let (a, b) = match std::env::var_os(FABRIC) {
        None => SoftNic::pair(config).unwrap(),
        Some(_) => fabric_pair(1, config),
    };
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    connect(&mut a.qp, &mut b.qp);
    (a, b)
}

pub(crate) fn connect(a: &mut Qp, b: &mut Qp) {
    let (at_a, at_b) = (a.address().unwrap(), b.address().unwrap());
    a.connect(&at_b, FULL).unwrap();
    b.connect(&at_a, FULL).unwrap();
}

/// Bytes that repeat late and are never 0.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8 | 1
        })
        .collect()
}

pub(crate) fn bytes_of(mapping: &RawMapping, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    mapping.read(offset, &mut bytes).unwrap();
    bytes
}

/// Connects a queue pair, whose address is `own`, with this timeout.
pub(crate) fn join(qp: &mut Qp, own: &QpAddress, remote: &QpAddress, timeout: Duration) {
    qp.modify(&QpTransition::Init { access: FULL }).unwrap();
    qp.modify(&QpTransition::ReadyToReceive {
        remote: *remote,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 16,
        min_rnr_timer: Duration::from_millis(1),
    })
    .unwrap();
    qp.modify(&QpTransition::ReadyToSend {
        sq_psn: own.psn,
        max_rd_atomic: 16,
        timeout,
        retry_cnt: 100,
        rnr_retry: 7,
    })
    .unwrap();
}
