//! The attacker's end of a connection, and the setup of every attack.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaudi_device::Buffer;
use gaudi_remote::{Endpoint, Error, ErrorKind, Nic, Result, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_sys::RawMapping;
use gaudi_verbs::{
    Access, Context, Cq, Message as _, Mr, MrAddr, Pd, Qp, QpAddress, QpInit, RemoteAddr, RemoteRegion, Rkey,
    WcOpcode, WcStatus, WorkCompletion,
};

use crate::nodes::{MAX_WAIT, Node, Setup, node, noise};

/// Bytes of the attacker's own memory.
const ROOM: usize = 1 << 20;
/// Its halves: outgoing and incoming bytes.
const OUT: u64 = 0;
/// Messages are sent from here, so that a later write does not change them.
const SAY: u64 = (ROOM / 2 - 8192) as u64;
const IN: u64 = (ROOM / 2) as u64;
/// Where answers to its messages arrive, one place of 64 bytes for each posted receive.
const ANSWERS: u64 = (ROOM - 4096) as u64;
/// Bytes of a message of a staged transfer.
pub(crate) const MESSAGE: usize = 64;
/// Set in the `wr_id` of receives.
const RECEIVE: u64 = 1 << 32;

/// Message kinds of a staged transfer.
pub(crate) const STORE: u8 = 1;
pub(crate) const FETCH: u8 = 2;
pub(crate) const DONE: u8 = 3;

/// Frame kinds of the control socket.
pub(crate) const HELLO: u16 = 1;
pub(crate) const READY: u16 = 2;
pub(crate) const OFFER: u16 = 3;

pub(crate) fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = b"gvr\0\x01\0".to_vec();
    frame.extend(kind.to_le_bytes());
    frame.extend(u32::try_from(body.len()).expect("short").to_le_bytes());
    frame.extend(body);
    frame
}

/// Reads one frame and returns its body.
pub(crate) fn hear(stream: &mut UnixStream) -> Vec<u8> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("a head");
    let mut body = vec![0; u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize];
    stream.read_exact(&mut body).expect("a body");
    body
}

/// A message of a staged transfer.
pub(crate) fn message(what: u8, slot: u8, offer: u32, offset: u64, len: u64) -> [u8; MESSAGE] {
    let mut bytes = [0_u8; MESSAGE];
    (bytes[0], bytes[1]) = (what, slot);
    bytes[4..8].copy_from_slice(&offer.to_le_bytes());
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// The fields of an offer on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) id: u32,
    pub(crate) region: RemoteRegion,
}

/// A process with a NIC of its own, which has shaken hands as the protocol wants it.
pub(crate) struct Attacker {
    /// Connected to the queue pair with which the victim serves.
    pub(crate) asking: Qp,
    /// Connected to the victim's requesting queue pair.
    pub(crate) serving: Qp,
    pub(crate) mr: Mr,
    memory: Arc<RawMapping>,
    cq: Cq,
    messages: VecDeque<[u8; MESSAGE]>,
    pub(crate) stream: UnixStream,
    _pd: Pd,
}

impl Attacker {
    /// Shakes hands over the stream.
    pub(crate) fn new(nic: Arc<SoftNic>, mut stream: UnixStream) -> Self {
        let context = Context::open(nic).expect("open");
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(256).expect("a queue");
        let pair = || pd.create_qp(&QpInit::new(&cq)).expect("a queue pair");
        let (mut asking, mut serving) = (pair(), pair());
        let mut hello = asking.address().expect("an address").encode().to_vec();
        hello.extend(serving.address().expect("an address").encode());
        hello.extend([0, 0]);
        stream.write_all(&frame(HELLO, &hello)).expect("sent");
        let theirs = hear(&mut stream);
        let address = |at: usize| {
            QpAddress::decode(theirs[at..at + 32].try_into().expect("32 bytes")).expect("an address")
        };
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        asking.connect(&address(32), all).expect("connected");
        serving.connect(&address(0), all).expect("connected");
        let memory = Arc::new(RawMapping::anonymous(ROOM, true).expect("memory"));
        let mr = pd
            .reg_mapping(Arc::clone(&memory), all | Access::LOCAL_WRITE)
            .expect("a region");
        for place in 0..16 {
            let at = mr
                .sge(ANSWERS + place * MESSAGE as u64, MESSAGE as u32)
                .expect("in it");
            asking.post_recv(RECEIVE | place).post(&[at]).expect("posted");
        }
        for place in 16..48 {
            let at = mr
                .sge(ANSWERS + place * MESSAGE as u64, MESSAGE as u32)
                .expect("in it");
            serving.post_recv(RECEIVE | place).post(&[at]).expect("posted");
        }
        stream.write_all(&frame(READY, &[])).expect("sent");
        hear(&mut stream);
        Self {
            asking,
            serving,
            mr,
            memory,
            cq,
            messages: VecDeque::new(),
            stream,
            _pd: pd,
        }
    }

    /// Takes the next offer from the control socket.
    pub(crate) fn hear_offer(&mut self) -> Seen {
        let body = hear(&mut self.stream);
        let region = body[14..46].try_into().expect("32 bytes");
        Seen {
            id: u32::from_le_bytes(body[..4].try_into().expect("4 bytes")),
            region: RemoteRegion::decode(region).expect("a region"),
        }
    }

    /// Waits for the next completion; the receive's place comes with a message.
    fn completion(&self, timeout: Duration) -> Option<WorkCompletion> {
        let mut done = [WorkCompletion::EMPTY];
        self.cq.wait(&mut done, timeout).ok().map(|_| done[0])
    }

    /// Waits for the completion of a read, write or atomic.
    fn sent(&mut self) -> WcStatus {
        self.completed(1)
    }

    /// Waits for the completion of a work request.
    fn completed(&mut self, wr_id: u64) -> WcStatus {
        loop {
            let done = self.completion(MAX_WAIT).expect("a completion in time");
            if done.wr_id == wr_id {
                return done.status;
            }
            self.keep(&done);
        }
    }

    /// Stores a message until it is requested.
    fn keep(&mut self, done: &WorkCompletion) {
        if done.is_success() && done.opcode == WcOpcode::RECV && done.wr_id & RECEIVE != 0 {
            let mut bytes = [0; MESSAGE];
            let at = ANSWERS as usize + (done.wr_id & 0xff) as usize * MESSAGE;
            self.memory.read(at, &mut bytes).expect("read");
            self.messages.push_back(bytes);
        }
    }

    /// Reads the victim's memory, and returns what arrived.
    pub(crate) fn read(&mut self, from: RemoteAddr, len: u32) -> (WcStatus, Vec<u8>) {
        self.memory
            .write(IN as usize, &vec![0; len as usize])
            .expect("cleared");
        let into = [self.mr.sge(IN, len).expect("in it")];
        self.asking.post_send(1).read(&into, from).post().expect("posted");
        let status = self.sent();
        (status, self.arrived(len))
    }

    fn arrived(&self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.memory.read(IN as usize, &mut bytes).expect("read");
        bytes
    }

    /// Writes to the victim's memory.
    pub(crate) fn write(&mut self, bytes: &[u8], to: RemoteAddr) -> WcStatus {
        self.memory.write(OUT as usize, bytes).expect("filled");
        let from = [self.mr.sge(OUT, bytes.len() as u32).expect("in it")];
        self.asking.post_send(1).write(&from, to).post().expect("posted");
        self.sent()
    }

    /// Adds to 8 bytes of the victim's memory.
    pub(crate) fn fetch_add(&mut self, to: RemoteAddr) -> WcStatus {
        let was = self.mr.sge(IN, 8).expect("in it");
        self.asking
            .post_send(1)
            .fetch_add(&was, to, 1)
            .post()
            .expect("posted");
        self.sent()
    }

    /// Replaces 8 bytes of the victim's memory.
    pub(crate) fn compare_swap(&mut self, to: RemoteAddr, compare: u64) -> WcStatus {
        let was = self.mr.sge(IN, 8).expect("in it");
        let posted = self.asking.post_send(1).compare_swap(&was, to, compare, !compare);
        posted.post().expect("posted");
        self.sent()
    }

    /// Sends a message to the victim's serving end.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.memory.write(SAY as usize, bytes).expect("filled");
        let from = [self.mr.sge(SAY, bytes.len() as u32).expect("in it")];
        self.asking.post_send(2).send(&from).post().expect("posted");
    }

    /// Sends a message unless the send queue is full.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.memory.write(SAY as usize, bytes).expect("filled");
        let from = [self.mr.sge(SAY, bytes.len() as u32).expect("in it")];
        self.asking.post_send(2).send(&from).post().is_ok()
    }

    /// Sends a message to the victim's serving end that invalidates a key there.
    pub(crate) fn send_inv(&mut self, bytes: &[u8], key: Rkey) {
        self.memory.write(SAY as usize, bytes).expect("filled");
        let from = [self.mr.sge(SAY, bytes.len() as u32).expect("in it")];
        self.asking
            .post_send(2)
            .send_inv(&from, key)
            .post()
            .expect("posted");
    }

    /// Sends a message to the victim's asking end, and returns when it is there or refused.
    pub(crate) fn answer(&mut self, bytes: &[u8]) {
        self.memory.write(SAY as usize, bytes).expect("filled");
        let from = [self.mr.sge(SAY, bytes.len() as u32).expect("in it")];
        self.serving.post_send(3).send(&from).post().expect("posted");
        self.completed(3);
    }

    /// Waits for the next message of the victim.
    pub(crate) fn message(&mut self, timeout: Duration) -> Option<[u8; MESSAGE]> {
        let end = Instant::now() + timeout;
        while self.messages.is_empty() {
            let done = self.completion(end.saturating_duration_since(Instant::now()))?;
            self.keep(&done);
        }
        self.messages.pop_front()
    }

    /// Sends a request and returns the kind of error that the victim answers; empty for success.
    pub(crate) fn request(&mut self, bytes: &[u8]) -> String {
        self.send(bytes);
        let answer = self.message(MAX_WAIT).expect("an answer");
        let name = answer[32..].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// A region of the attacker's own, as an offer would name it.
    pub(crate) fn own(&self) -> RemoteRegion {
        self.mr.remote()
    }
}

/// An address with a key, whether or not anything allows it.
pub(crate) fn at(addr: MrAddr, rkey: Rkey) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

/// Bytes of the victim's buffers.
pub(crate) const LEN: u64 = 64 << 10;

/// The victim's node with two peers on one NIC: the attacker, and an accomplice that passes on what
/// it was offered.
pub(crate) struct Scene {
    pub(crate) attacker: Attacker,
    pub(crate) accomplice: Attacker,
    /// Its endpoint leads to the attacker.
    pub(crate) victim: Node,
    /// The victim's end of the connection to the accomplice.
    pub(crate) other: Endpoint,
    /// Offered to the accomplice alone.
    pub(crate) secret: Buffer,
    /// Its address and key, from the victim's offer to the accomplice.
    pub(crate) seen: Seen,
    started: Instant,
    nics: [Arc<SoftNic>; 2],
}

/// A short time for one frame: the longest that the victim's NIC waits for a stalled cable.
pub(crate) fn nic_config() -> SoftNicConfig {
    SoftNicConfig {
        stall_timeout: Duration::from_secs(5),
        ..SoftNicConfig::default()
    }
}

impl Scene {
    /// Connects all three. The secret is filled with `noise(7, LEN)`.
    pub(crate) fn new(name: &str, setup: &Setup) -> Self {
        let started = Instant::now();
        let nic = SoftNic::unplugged("victim", nic_config()).expect("a NIC");
        let nics = ["attacker", "accomplice"].map(|name| {
            let (here, there) = UnixStream::pair().expect("two sockets");
            nic.plug(here).expect("plugged in");
            SoftNic::open(name, there, nic_config()).expect("a NIC")
        });
        let (stream, theirs) = UnixStream::pair().expect("two sockets");
        let spec = format!("mock:gaudi2?name=hostile-{name}");
        let (attacker, victim) = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| Attacker::new(Arc::clone(&nics[0]), theirs));
            let victim = node(&spec, Arc::clone(&nic), stream, setup).expect("the victim's node");
            (attacker.join().expect("no panic"), victim)
        });
        let (accomplice, mut other) = Self::connect(&nics[1], &victim, setup);
        let mut accomplice = accomplice;
        let secret = victim.buffer(LEN, 7);
        other.offer(&secret, Rights::BOTH).expect("offered");
        let seen = accomplice.hear_offer();
        Self {
            attacker,
            accomplice,
            victim,
            other,
            secret,
            seen,
            started,
            nics,
        }
    }

    /// One more connection to the victim, over the cable of one of the two.
    fn connect(nic: &Arc<SoftNic>, victim: &Node, setup: &Setup) -> (Attacker, Endpoint) {
        let (stream, theirs) = UnixStream::pair().expect("two sockets");
        std::thread::scope(|scope| {
            let attacker = scope.spawn(|| Attacker::new(Arc::clone(nic), theirs));
            let device = Some(&victim.device);
            let end = Endpoint::over(stream, &victim.nic, device, setup.options.clone());
            (attacker.join().expect("no panic"), end.expect("the victim's end"))
        })
    }

    /// Connects the victim to the attacker anew. Returns the attacker's new end and the victim's
    /// old one.
    pub(crate) fn reconnect(&mut self, setup: &Setup) -> (Attacker, Endpoint) {
        let (attacker, end) = Self::connect(&self.nics[0], &self.victim, setup);
        (attacker, std::mem::replace(&mut self.victim.endpoint, end))
    }

    /// The attacker connects anew, since a refused access ends a connection. The victim's old end
    /// is closed.
    pub(crate) fn again(&mut self, setup: &Setup) {
        let (attacker, old) = self.reconnect(setup);
        old.close().expect("closed");
        self.attacker = attacker;
    }

    /// Waits until the victim's end fails, and returns why.
    pub(crate) fn until_error(&mut self) -> Error {
        let started = Instant::now();
        loop {
            // Nothing comes, so the call looks at the connection and at its deadline.
            match self.victim.endpoint.receive_offer(Duration::from_millis(20)) {
                Err(error) if error.kind() != ErrorKind::TimedOut => return error,
                answer => assert!(
                    started.elapsed() < MAX_WAIT,
                    "the victim sees no error: {answer:?}"
                ),
            }
        }
    }

    /// The victim's NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.victim.nic
    }

    /// The victim offers a buffer to the attacker.
    pub(crate) fn offer(&mut self, buffer: &Buffer, rights: Rights) -> Result<Seen> {
        self.victim.endpoint.offer(buffer, rights)?;
        Ok(self.attacker.hear_offer())
    }

    /// Checks what must hold after every attack: the secret is unchanged, no registration is left,
    /// and it all took less than 30 s.
    pub(crate) fn end(self) {
        let Self {
            attacker,
            mut accomplice,
            victim,
            other,
            secret,
            seen,
            started,
            nics,
        } = self;
        assert!(
            victim.bytes(&secret) == noise(7, LEN as usize),
            "the secret is whole"
        );
        if !other_is_staged(&other, &victim) {
            let (status, bytes) = accomplice.read(seen.region.at(0, 4096).expect("in it"), 4096);
            assert_eq!(status, WcStatus::SUCCESS, "the other peer is served as before");
            assert!(bytes == noise(7, 4096), "and reads what it was offered");
        }
        drop(attacker);
        let Node {
            endpoint,
            nic,
            provider,
            device,
            stream,
        } = victim;
        drop(stream);
        // Its connection may have ended with the attack; its objects are released in any case.
        let _ = endpoint.close();
        other.close().expect("the other peer's end closes in order");
        drop(accomplice);
        secret.close().expect("no region holds the buffer");
        assert_eq!(provider.live.load(Ordering::Relaxed), 0, "regions that live");
        let stats = nic.stats();
        assert_eq!(stats.registrations, stats.deregistrations, "{stats:?}");
        drop((nic, device, nics));
        assert!(
            started.elapsed() < MAX_WAIT,
            "the attack took {:?}",
            started.elapsed()
        );
    }
}

/// Whether the victim's NIC registers no dma-bufs.
fn other_is_staged(_end: &Endpoint, victim: &Node) -> bool {
    victim.nic.remembered(victim.device.id()).is_some()
}
