//! A NIC of the guest through libibverbs: memory, queue pairs and completions, without the safe
//! layer above.

#![allow(
    dead_code,
    unused_macros,
    reason = "each program of tests takes what it needs"
)]
#![expect(
    unsafe_code,
    reason = "registering host memory is a promise, which the harness keeps: memory lives as long as its region"
)]

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_dmabuf::{DmaBuf, Window};
use gaudi_ibverbs::{IbvDevice, OpenOptions};
use gaudi_lab::rxe::{self, Build};
use gaudi_seam::{Error, ErrorKind, HostVa};
use gaudi_sys::{Errno, RawMapping, poll};
use gaudi_verbs::provider::{
    CompletionQueue, CqHandle, Device, DmaBufMr, NewMr, NewQp, PdHandle, QpCap, QpHandle, QpRequest,
    QpTransition, QpType, QueuePair, SrqHandle,
};
use gaudi_verbs::{
    Access, AsyncEvent, AsyncEventType, Lkey, MrAddr, Mtu, Payload, Psn, QpAddress, RecvWr, RemoteAddr,
    SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

/// The guest's NIC, or the end of the test where the guest has no libibverbs.
macro_rules! nic {
    ($test:literal) => {{
        if gaudi_lab::rxe::skips_verbs($test) {
            return;
        }
        $crate::ibv::Nic::open($crate::ibv::any())
    }};
}

/// Ten times what the slowest answer takes: a refusal is retried by the requester for some seconds.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(120);

/// All that a peer can be allowed, and the local right that it needs.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// An open NIC with a domain.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) device: Arc<IbvDevice>,
    pub(crate) pd: PdHandle,
}

/// Whether a test must be skipped, for want of libibverbs or of the patched module; counts it.
pub(crate) fn skips(test: &str) -> bool {
    rxe::skips_verbs(test) || rxe::skips(test)
}

/// Bytes of a usual memory.
pub(crate) const LEN: usize = 1 << 16;

/// Two memories, the first full of a pattern.
pub(crate) fn memories(nic: &Nic, seed: u8) -> (Host, Host) {
    let (from, to) = (nic.host(LEN), nic.host(LEN));
    from.pattern(seed);
    (from, to)
}

/// The eight bytes of a memory from `offset` on, as a number.
pub(crate) fn word(host: &Host, offset: usize) -> u64 {
    u64::from_ne_bytes(host.bytes(offset, 8).try_into().expect("eight bytes"))
}

/// Whatever build this guest has: for what both can.
pub(crate) fn any() -> Build {
    if rxe::need().is_none() {
        Build::Patched
    } else {
        Build::Stock
    }
}

impl Nic {
    /// A device over the guest's PCI NIC. Every caller has a context of its own.
    pub(crate) fn open(build: Build) -> Self {
        Self::over(build, "rxe0", "eth0", "10.77.0.1")
    }

    pub(crate) fn over(build: Build, name: &str, interface: &str, address: &str) -> Self {
        rxe::device(build, name, interface, address);
        Self::named(name)
    }

    /// One that is there.
    pub(crate) fn named(name: &str) -> Self {
        let device = OpenOptions::default().open(name).expect("the NIC opens");
        let pd = device.alloc_pd().expect("a domain");
        Self { device, pd }
    }

    /// Fresh zeroed memory, registered with all rights; addresses count from the memory's own.
    pub(crate) fn host(&self, len: usize) -> Host {
        let memory = RawMapping::anonymous(len, true).expect("memory");
        self.register(memory, ALL)
    }

    pub(crate) fn register(&self, memory: RawMapping, access: Access) -> Host {
        let at = address_of(&memory);
        Host {
            mr: self.promise(at, memory.len() as u64, at.into(), access),
            iova: at.into(),
            memory,
        }
    }

    /// A region of memory that the test keeps for as long as it uses the region's keys.
    pub(crate) fn promise(&self, at: HostVa, len: u64, iova: MrAddr, access: Access) -> NewMr {
        self.try_promise(at, len, iova, access).expect("a plain region")
    }

    pub(crate) fn try_promise(
        &self,
        at: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
    ) -> Result<NewMr, Error> {
        // SAFETY: the test keeps the memory, as raw memory without references; where a region
        // outlives it at a test's end, its pages are the kernel's until the context goes.
        unsafe { self.device.reg_mr(self.pd, at, len, iova, access) }
    }

    /// A whole dma-buf, with addresses from 0.
    pub(crate) fn dmabuf(&self, buffer: &DmaBuf) -> NewMr {
        self.window(&buffer.whole().expect("a window"), 0, ALL)
            .expect("the patched build registers it")
    }

    pub(crate) fn window(&self, window: &Window, iova: u64, access: Access) -> Result<NewMr, Error> {
        self.device.reg_dmabuf_mr(&DmaBufMr {
            pd: self.pd,
            window,
            iova: MrAddr(iova),
            access,
        })
    }

    pub(crate) fn queue(&self) -> Queue {
        self.queue_of(QpType::Rc, None, 64)
    }

    pub(crate) fn queue_of(&self, qp_type: QpType, srq: Option<SrqHandle>, max_inline_data: u32) -> Queue {
        self.queue_with(qp_type, srq, max_inline_data, 32)
    }

    /// With room for what perftest has outstanding.
    pub(crate) fn deep_queue(&self) -> Queue {
        self.queue_with(QpType::Rc, None, 64, 128)
    }

    fn queue_with(
        &self,
        qp_type: QpType,
        srq: Option<SrqHandle>,
        max_inline_data: u32,
        max_send_wr: u32,
    ) -> Queue {
        let (cq_handle, cq) = self.device.create_cq(256).expect("a completion queue");
        let new = self
            .device
            .create_qp(&QpRequest {
                qp_type,
                pd: self.pd,
                send_cq: cq_handle,
                recv_cq: cq_handle,
                srq,
                cap: QpCap {
                    max_send_wr,
                    max_recv_wr: 32,
                    max_send_sge: 8,
                    max_recv_sge: 8,
                    max_inline_data,
                },
                sq_sig_all: false,
            })
            .expect("a queue pair");
        assert!(
            new.cap.max_send_wr >= 32 && new.cap.max_inline_data >= max_inline_data,
            "at least what was asked for: {:?}",
            new.cap
        );
        Queue::of(self, new, cq_handle, cq)
    }

    /// Two queue pairs that are connected.
    pub(crate) fn pair(&self) -> (Queue, Queue) {
        let (here, there) = (self.queue(), self.queue());
        here.connect(&there.address());
        there.connect(&here.address());
        (here, there)
    }

    /// One request on a connection of its own; the answer is its completion. The peer that refuses
    /// it fails.
    pub(crate) fn run(&self, sges: &[Sge], op: SendOp) -> WorkCompletion {
        let (here, there) = self.pair();
        let done = here.run(sges, op);
        there.close();
        here.close();
        done
    }
}

pub(crate) fn address_of(memory: &RawMapping) -> HostVa {
    HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64)
}

/// Host memory with its region.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) mr: NewMr,
    pub(crate) iova: MrAddr,
    pub(crate) memory: RawMapping,
}

impl Host {
    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: MrAddr(self.iova.0 + offset as u64),
            length: u32::try_from(length).expect("a short range"),
            lkey: self.mr.lkey,
        }
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr {
            addr: MrAddr(self.iova.0 + offset as u64),
            rkey: self.mr.rkey,
        }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        bytes(&self.memory, offset, length)
    }

    pub(crate) fn pattern(&self, seed: u8) {
        self.memory
            .write(0, &gaudi_lab::nic::pattern(seed, self.memory.len()))
            .expect("inside");
    }

    pub(crate) fn clear(&self) {
        self.memory.fill(0, self.memory.len(), 0).expect("inside");
    }
}

pub(crate) fn bytes(memory: &RawMapping, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(offset, &mut bytes).expect("inside");
    bytes
}

/// An element of a region whose addresses count from 0.
pub(crate) fn inside(mr: &NewMr, offset: u64, length: u32) -> Sge {
    Sge {
        addr: MrAddr(offset),
        length,
        lkey: mr.lkey,
    }
}

pub(crate) fn at(mr: &NewMr, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: MrAddr(offset),
        rkey: mr.rkey,
    }
}

/// A queue pair with a completion queue of its own.
#[derive(Debug)]
pub(crate) struct Queue {
    device: Arc<IbvDevice>,
    pub(crate) handle: QpHandle,
    pub(crate) queue: Arc<dyn QueuePair>,
    pub(crate) cap: QpCap,
    pub(crate) cq_handle: CqHandle,
    pub(crate) cq: Arc<dyn CompletionQueue>,
}

impl Queue {
    /// Of a queue pair that the test made itself.
    pub(crate) fn of(nic: &Nic, new: NewQp, cq_handle: CqHandle, cq: Arc<dyn CompletionQueue>) -> Self {
        Self {
            device: nic.device.clone(),
            handle: new.handle,
            queue: new.queue,
            cap: new.cap,
            cq_handle,
            cq,
        }
    }

    pub(crate) fn address(&self) -> QpAddress {
        let port = self.device.query_port().expect("a port");
        QpAddress {
            qpn: self.queue.qpn(),
            psn: Psn(7),
            gid: port.gid,
            mtu: port.active_mtu,
            rd_atom: 16,
            lid: port.lid,
        }
    }

    pub(crate) fn modify(&self, transition: &QpTransition) {
        self.device
            .modify_qp(self.handle, transition)
            .unwrap_or_else(|error| panic!("{transition:?}: {error}"));
    }

    pub(crate) fn connect(&self, remote: &QpAddress) {
        self.connect_with(remote, ALL, 7);
    }

    /// `rnr_retry` is how often a message asks for a receive that is not there.
    pub(crate) fn connect_with(&self, remote: &QpAddress, access: Access, rnr_retry: u8) {
        let mtu = self.device.query_port().expect("a port").active_mtu;
        self.modify(&QpTransition::Init { access });
        self.modify(&QpTransition::ReadyToReceive {
            remote: *remote,
            path_mtu: mtu.min(remote.mtu).min(Mtu::MTU_1024),
            max_dest_rd_atomic: 16,
            min_rnr_timer: Duration::from_millis(1),
        });
        self.modify(&QpTransition::ReadyToSend {
            sq_psn: Psn(7),
            max_rd_atomic: 16,
            timeout: Duration::from_secs(1),
            retry_cnt: 7,
            rnr_retry,
        });
    }

    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge], op: SendOp) -> Result<(), Error> {
        self.queue.post_send(&request(wr_id, Payload::Sges(sges), op))
    }

    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) {
        self.queue.post_recv(&RecvWr { wr_id, sges }).expect("room");
    }

    /// Posts and waits for the end of just that.
    pub(crate) fn run(&self, sges: &[Sge], op: SendOp) -> WorkCompletion {
        self.post(99, sges, op).expect("room");
        let done = self.wait();
        assert_eq!(done.wr_id, 99, "it is the request's own end");
        done
    }

    /// The next completion, by the channel: a polling test would starve the NIC of a slow machine.
    pub(crate) fn wait(&self) -> WorkCompletion {
        wait(&*self.cq)
    }

    pub(crate) fn to_error(&self) {
        self.modify(&QpTransition::Error);
    }

    /// Destroys both; the test goes on with what stays.
    pub(crate) fn close(self) {
        self.device.destroy_qp(self.handle).expect("a queue pair ends");
        self.device
            .destroy_cq(self.cq_handle)
            .expect("its completion queue ends");
    }
}

pub(crate) fn request<'a>(wr_id: u64, payload: Payload<'a>, op: SendOp) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        payload,
        ud: None,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn wait(cq: &dyn CompletionQueue) -> WorkCompletion {
    let begin = Instant::now();
    loop {
        let mut one = [WorkCompletion::EMPTY];
        if cq.poll(&mut one).expect("the queue is whole") == 1 {
            return one[0];
        }
        cq.req_notify(false).expect("it can be asked");
        // What came before the request raises no event.
        if cq.poll(&mut one).expect("the queue is whole") == 1 {
            return one[0];
        }
        let ready = poll::readable([cq.event_fd()], MAX_WAIT).expect("a descriptor");
        if ready[0] {
            cq.ack_event().expect("an event");
        }
        assert!(begin.elapsed() < MAX_WAIT, "a request has an end");
    }
}

#[track_caller]
pub(crate) fn succeeded(done: &WorkCompletion, what: &str) {
    assert_eq!(done.status, WcStatus::SUCCESS, "{what}: {done:?}");
}

/// That it was refused with this errno and kind.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Error>, kind: ErrorKind, errno: Errno) -> Error {
    let error = answer.expect_err("it must be refused");
    assert_eq!(
        (error.kind(), error.errno()),
        (kind, Some(errno)),
        "kind and errno of: {error}"
    );
    error
}

/// Does something in a fork child that ends without unwinding the parent's stack.
pub(crate) fn in_child(work: impl FnOnce()) {
    let _child = gaudi_lab::child();
    // SAFETY: the child does little and leaves by _exit; libc keeps its allocator usable over a
    // fork.
    match unsafe { nix::unistd::fork() }.expect("a child") {
        nix::unistd::ForkResult::Child => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { nix::libc::_exit(answer.is_err().into()) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("the child ends");
            assert_eq!(
                status,
                nix::sys::wait::WaitStatus::Exited(child, 0),
                "the child did what it should"
            );
        }
    }
}

/// An lkey of no region.
pub(crate) const NOBODYS: Lkey = Lkey(0xdead_beef);

/// Descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir(Path::new("/proc/self/fd"))
        .expect("proc is mounted")
        .count()
}

/// Whether a descriptor has something to read, now.
pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    poll::readable([fd.as_fd()], Duration::ZERO).expect("a descriptor")[0]
}

/// The next event of a NIC's context.
pub(crate) fn event(nic: &Nic) -> AsyncEvent {
    let fd = nic.device.async_fd().expect("libibverbs has events");
    let ready = poll::readable([fd], MAX_WAIT).expect("a descriptor");
    assert!(ready[0], "an event comes");
    nic.device
        .get_async_event()
        .expect("it is read")
        .expect("there is one")
}

/// The next event of a kind: an rxe also reports port and address changes, when others of the guest
/// come and go.
pub(crate) fn event_of(nic: &Nic, wanted: AsyncEventType) -> AsyncEvent {
    loop {
        let event = event(nic);
        if event.event_type == wanted {
            return event;
        }
    }
}
