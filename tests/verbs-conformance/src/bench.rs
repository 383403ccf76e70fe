//! What cases stand on: an end with memory, a queue pair and a completion queue, and two of them
//! connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::RawMapping;
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{
    Access, AddressHandle, AsyncEvent, AsyncEventType, Context, Cq, Mr, MrAddr, Mtu, Pd, Qp, QpAddress,
    QpInit, RemoteAddr, Sge, WcStatus, WorkCompletion,
};

use crate::fixture::{DmaBufMemory, Fixture};

/// Bytes of host memory of an end.
pub(crate) const HOST: usize = 1 << 20;
/// Bytes behind a dma-buf.
pub(crate) const DEVICE: u64 = 256 << 10;
/// Where regions of dma-bufs start, as keys see it: what a device address looks like.
pub(crate) const DEVICE_VA: u64 = 0x1001_0018_0000_0000;
/// Far more than anything here takes; a wait that long is a hang.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);
/// How long to see that nothing happens.
pub(crate) const QUIET: Duration = Duration::from_millis(60);

pub(crate) const FULL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Declared in the order in which things must go.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    pub(crate) host: Arc<RawMapping>,
}

/// How two ends are connected.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) access: Access,
    pub(crate) timeout: Duration,
    pub(crate) retry_cnt: u8,
    pub(crate) min_rnr_timer: Duration,
    pub(crate) rnr_retry: u8,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            access: FULL,
            timeout: Duration::from_secs(2),
            retry_cnt: 6,
            min_rnr_timer: Duration::from_millis(10),
            rnr_retry: 7,
        }
    }
}

impl End {
    pub(crate) fn new(context: &Context) -> Self {
        Self::with(context, 256, |_| {})
    }

    pub(crate) fn with(context: &Context, depth: u32, change: impl FnOnce(&mut QpInit<'_>)) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(depth).unwrap();
        let host = Arc::new(RawMapping::anonymous(HOST, false).unwrap());
        let mr = pd.reg_mapping(host.clone(), FULL).unwrap();
        let mut init = QpInit::new(&cq);
        change(&mut init);
        let qp = pd.create_qp(&init).unwrap();
        Self {
            qp,
            mr,
            cq,
            pd,
            context: context.clone(),
            host,
        }
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        self.host.write(offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        bytes_of(&self.host, offset, len)
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        let bytes = self.bytes(offset, 8);
        u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]))
    }

    pub(crate) fn completion(&self) -> WorkCompletion {
        next_completion(&self.cq)
    }

    /// One completion, which must be this.
    pub(crate) fn completes(&self, wr_id: u64, status: WcStatus) -> WorkCompletion {
        completes(&self.cq, wr_id, status)
    }

    /// One completion, which must be this one's success.
    pub(crate) fn succeeds(&self, wr_id: u64) -> WorkCompletion {
        self.completes(wr_id, WcStatus::SUCCESS)
    }

    pub(crate) fn nothing_completes(&self) {
        let mut wc = [WorkCompletion::EMPTY];
        assert_eq!(self.cq.poll(&mut wc).unwrap(), 0, "nothing completes, but {wc:?}");
    }

    /// A region of a new dma-buf in its domain.
    pub(crate) fn device(&self, fixture: &Fixture, access: Access) -> (DmaBufMemory, Mr) {
        let memory = fixture.make_dmabuf(DEVICE);
        let mr = self
            .pd
            .reg_dmabuf_mr(&memory.window, MrAddr(DEVICE_VA), access)
            .unwrap();
        (memory, mr)
    }
}

/// Parts of a region that are there: cases say offsets that fit.
pub(crate) trait Parts {
    /// As a local element.
    fn part(&self, offset: u64, len: u32) -> Sge;
    /// For the peer.
    fn far(&self, offset: u64, len: u64) -> RemoteAddr;
}

impl Parts for Mr {
    fn part(&self, offset: u64, len: u32) -> Sge {
        self.sge(offset, len).unwrap()
    }

    fn far(&self, offset: u64, len: u64) -> RemoteAddr {
        self.remote().at(offset, len).unwrap()
    }
}

pub(crate) fn next_completion(cq: &Cq) -> WorkCompletion {
    let mut wc = [WorkCompletion::EMPTY];
    let count = cq.wait(&mut wc, MAX_WAIT).expect("work completes, well or badly");
    assert_eq!(count, 1);
    wc[0]
}

pub(crate) fn completes(cq: &Cq, wr_id: u64, status: WcStatus) -> WorkCompletion {
    let wc = next_completion(cq);
    assert_eq!(
        (wc.wr_id, wc.status),
        (wr_id, status),
        "the next completion: {wc:?}"
    );
    wc
}

/// INIT, RTR and RTS by hand.
pub(crate) fn join_one(qp: &mut Qp, own: &QpAddress, remote: &QpAddress, link: &Link) -> Result<()> {
    qp.modify(&QpTransition::Init { access: link.access })?;
    qp.modify(&QpTransition::ReadyToReceive {
        remote: *remote,
        path_mtu: own.mtu.min(remote.mtu).min(Mtu::MTU_1024),
        max_dest_rd_atomic: 8,
        min_rnr_timer: link.min_rnr_timer,
    })?;
    qp.modify(&QpTransition::ReadyToSend {
        sq_psn: own.psn,
        max_rd_atomic: 8,
        timeout: link.timeout,
        retry_cnt: link.retry_cnt,
        rnr_retry: link.rnr_retry,
    })
}

pub(crate) fn join(a: &mut Qp, b: &mut Qp, link: &Link) {
    let (at_a, at_b) = (a.address().unwrap(), b.address().unwrap());
    join_one(a, &at_a, &at_b, link).unwrap();
    join_one(b, &at_b, &at_a, link).unwrap();
}

/// Two ends, connected.
pub(crate) fn pair(fixture: &Fixture) -> (End, End) {
    pair_by(fixture, &Link::default())
}

pub(crate) fn pair_by(fixture: &Fixture, link: &Link) -> (End, End) {
    let (mut a, mut b) = (End::new(&fixture.a), End::new(&fixture.b));
    join(&mut a.qp, &mut b.qp, link);
    (a, b)
}

/// Two ends whose queue pairs are made with a change.
pub(crate) fn pair_with(fixture: &Fixture, change: impl Fn(&mut QpInit<'_>)) -> (End, End) {
    let (mut a, mut b) = (
        End::with(&fixture.a, 256, &change),
        End::with(&fixture.b, 256, &change),
    );
    join(&mut a.qp, &mut b.qp, &Link::default());
    (a, b)
}

/// How to reach a NIC's port from a domain.
pub(crate) fn way(pd: &Pd, to: &Context) -> Result<AddressHandle> {
    let port = to.query_port().unwrap();
    pd.create_ah(&port.gid, port.lid)
}

pub(crate) fn bytes_of(mapping: &RawMapping, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    mapping.read(offset, &mut bytes).unwrap();
    bytes
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

/// The operation was refused with this errno.
pub(crate) fn refused<T>(answer: Result<T>, errno: Errno) -> Error {
    match answer {
        Ok(_) => panic!("refused with {errno:?} is expected, it succeeded"),
        Err(error) => {
            assert_eq!(error.errno(), Some(errno), "{error}");
            error
        }
    }
}

/// Compares bytes; panics with the first difference.
pub(crate) fn same(what: &str, seen: &[u8], expected: &[u8]) {
    assert_eq!(seen.len(), expected.len(), "{what}: lengths");
    if let Some(at) = seen.iter().zip(expected).position(|(a, b)| a != b) {
        panic!(
            "{what}: byte {at} of {} is {:#04x}, {:#04x} is expected",
            seen.len(),
            seen[at],
            expected[at]
        );
    }
}

pub(crate) fn drain_events(fixture: &Fixture) {
    for context in [&fixture.a, &fixture.b] {
        while let Ok(Some(_)) = context.get_async_event() {}
    }
}

/// Waits for one event of a kind; others are passed over.
pub(crate) fn event(context: &Context, wanted: AsyncEventType) -> AsyncEvent {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        match context.get_async_event().unwrap() {
            Some(event) if event.event_type == wanted => return event,
            Some(_) => {}
            None => {
                assert!(Instant::now() < deadline, "no event {wanted} comes");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// No event of a kind is there, nor comes soon.
pub(crate) fn no_event(context: &Context, unwanted: AsyncEventType) {
    std::thread::sleep(QUIET);
    while let Some(event) = context.get_async_event().unwrap() {
        assert_ne!(event.event_type, unwanted, "an event that nothing caused");
    }
}
