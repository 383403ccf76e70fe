//! A peer that shakes hands as it must, and then asks for what it must not.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gaudi_device::Buffer;
use gaudi_remote::{ErrorKind, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_sys::RawMapping;
use gaudi_verbs::{Access, Context, Cq, Message as _, Mr, Qp, QpAddress, QpInit, WcOpcode, WorkCompletion};

use crate::nodes::{Node, PATIENCE, Setup, noise};

/// A peer that shakes hands as it must and then asks for what it must not.
#[test]
fn requests_of_a_hostile_peer_are_refused_and_end_the_connection_only() {
    let message = |what: u8, slot: u8, offer: u32, offset: u64, len: u64| {
        let mut bytes = [0_u8; 64];
        (bytes[0], bytes[1]) = (what, slot);
        bytes[4..8].copy_from_slice(&offer.to_le_bytes());
        bytes[8..16].copy_from_slice(&offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
        bytes
    };
    let mut reserved = message(1, 0, 0, 0, 4096);
    reserved[63] = 1;
    // What breaks the protocol ends the service; what is only not allowed is answered.
    let cases: [(&str, &[u8], bool); 9] = [
        ("an unknown word", &message(9, 0, 0, 0, 1), false),
        ("a reserved byte", &reserved, false),
        ("a slot beyond", &message(1, 200, 0, 0, 4096), false),
        ("more than a slot", &message(1, 0, 0, 0, 1 << 40), false),
        ("too short", &[1, 0, 0, 0], false),
        ("an unknown offer", &message(1, 0, 77, 0, 4096), true),
        ("beyond the memory", &message(1, 0, 0, 1 << 62, 4096), true),
        ("around the corner", &message(2, 1, 0, u64::MAX, 4096), true),
        ("not to get", &message(2, 1, 0, 0, 4096), true),
    ];
    for (name, bytes, answered) in cases {
        let (mut hostile, mut b, answer) = meet(name, &[bytes]);
        assert_eq!(answer.is_some(), answered, "{name}: {answer:?}");
        if let Some(answer) = answer {
            assert!(answer.contains("access_denied"), "{name}: {answer}");
        }
        assert_eq!(
            b.bytes(&hostile.theirs),
            noise(2, 1 << 20),
            "{name}: nothing was written"
        );
        let own = b.buffer(4096, 1);
        if !answered {
            let told = b.endpoint.offer(&own, Rights::PUT).expect_err("served no more");
            assert_eq!(
                told.kind(),
                ErrorKind::Protocol,
                "{name}: the reason, and not the hang-up: {told}"
            );
        }
        hostile.end();
        b.endpoint.forget(&hostile.theirs).expect("it lets go");
        drop(own);
    }
}

/// One slot again and again, without waiting for an answer: neither memory nor work of this end may grow with it.
#[test]
fn a_slot_is_asked_for_once_before_its_answer() {
    let mut request = [0_u8; 64];
    request[0] = 1;
    request[16..24].copy_from_slice(&4096_u64.to_le_bytes());
    // One receive stands for answers: the second answer waits for its place, the third finds it taken.
    let requests = [&request[..]; 8];
    let (_hostile, mut b, _) = meet("again", &requests);
    let started = std::time::Instant::now();
    let memory = b.buffer(4096, 1);
    let error = loop {
        match b.endpoint.offer(&memory, Rights::PUT) {
            Err(error) => break error,
            Ok(_) => assert!(started.elapsed() < PATIENCE, "the service ends"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

struct Hostile {
    qp: Qp,
    _serving: Qp,
    _mr: Mr,
    _cq: Cq,
    _stream: UnixStream,
    theirs: Buffer,
}

impl Hostile {
    fn end(&mut self) {
        self.qp.to_error().expect("ended");
    }
}

fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = b"gvr\0\x01\0".to_vec();
    frame.extend(kind.to_le_bytes());
    frame.extend(u32::try_from(body.len()).expect("short").to_le_bytes());
    frame.extend(body);
    frame
}

fn hear(stream: &mut UnixStream) -> Vec<u8> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("a head");
    let mut body = vec![0; u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize];
    stream.read_exact(&mut body).expect("a body");
    body
}

/// Shakes hands, says one thing, and hears what is answered within a while.
fn meet(name: &str, requests: &[&[u8]]) -> (Hostile, Node, Option<String>) {
    let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
    let (mut stream, stream_b) = UnixStream::pair().expect("two sockets");
    let spec = format!("mock:gaudi2?name=hostile-{}", name.replace(' ', "-"));
    let b = std::thread::spawn(move || {
        let setup = Setup::staged().chunks(64 << 10, 4);
        crate::nodes::node(&spec, nic_b, stream_b, &setup).expect("node B")
    });
    let context = Context::open(nic_a).expect("open");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(64).expect("a queue");
    let pair = || pd.create_qp(&QpInit::new(&cq)).expect("a queue pair");
    let (mut qp, mut serving) = (pair(), pair());
    let mut hello = qp.address().expect("an address").encode().to_vec();
    hello.extend(serving.address().expect("an address").encode());
    hello.extend([0, 0]);
    stream.write_all(&frame(1, &hello)).expect("sent");
    let theirs = hear(&mut stream);
    let address =
        |at: usize| QpAddress::decode(theirs[at..at + 32].try_into().expect("32 bytes")).expect("an address");
    qp.connect(&address(32), Access::empty()).expect("connected");
    serving.connect(&address(0), Access::empty()).expect("connected");
    let mapping = Arc::new(RawMapping::anonymous(4096, true).expect("memory"));
    let mr = pd
        .reg_mapping(Arc::clone(&mapping), Access::LOCAL_WRITE)
        .expect("a region");
    let place = mr.sge(2048, 64).expect("in it");
    qp.post_recv(1).post(&[place]).expect("posted");
    stream.write_all(&frame(2, &[])).expect("sent");
    hear(&mut stream);
    let mut b = b.join().expect("no panic");
    let memory = b.buffer(1 << 20, 2);
    assert_eq!(b.bytes(&memory), noise(2, 1 << 20));
    b.endpoint.offer(&memory, Rights::PUT).expect("offered");
    hear(&mut stream);

    for (at, bytes) in (0_u64..).step_by(64).zip(requests) {
        mapping.write(at as usize, bytes).expect("written");
        let said = mr
            .sge(at, u32::try_from(bytes.len()).expect("short"))
            .expect("in it");
        qp.post_send(2).send(&[said]).post().expect("posted");
    }
    let mut answer = None;
    let mut done = [WorkCompletion::EMPTY];
    while cq.wait(&mut done, Duration::from_millis(700)).is_ok() {
        if done[0].is_success() && done[0].opcode == WcOpcode::RECV {
            let mut bytes = [0; 64];
            mapping.read(2048, &mut bytes).expect("read");
            answer = Some(String::from_utf8_lossy(&bytes[32..]).into_owned());
            break;
        }
    }
    let hostile = Hostile {
        qp,
        _serving: serving,
        _mr: mr,
        _cq: cq,
        _stream: stream,
        theirs: memory,
    };
    (hostile, b, answer)
}
