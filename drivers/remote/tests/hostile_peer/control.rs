//! Attacks on the control socket: before the connection is made, and after.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_remote::{Endpoint, EndpointOptions, Error, ErrorKind, Nic};
use gaudi_softnic::SoftNic;
use gaudi_verbs::{Context, Message as _, QpInit};

use crate::attacker::{HELLO, OFFER, READY, Scene, frame, hear, nic_config};
use crate::nodes::{MAX_WAIT, Setup};

/// How long the victim waits for a handshake.
const CONNECT: Duration = Duration::from_secs(2);

/// A well-formed hello: two queue pair addresses and a name.
fn hello(nic: &Arc<SoftNic>) -> Vec<u8> {
    let context = Context::open(Arc::clone(nic) as Arc<_>).expect("open");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(16).expect("a queue");
    let mut hello = Vec::new();
    for _ in 0..2 {
        let qp = pd.create_qp(&QpInit::new(&cq)).expect("a queue pair");
        hello.extend(qp.address().expect("an address").encode());
    }
    hello.extend([1, 0, b'n']);
    hello
}

/// The victim shakes hands with a script; returns its error and checks that nothing is left of it.
fn meet(script: impl FnOnce(UnixStream, Vec<u8>) + Send) -> Error {
    let started = Instant::now();
    let (nic, peer) = SoftNic::pair(nic_config()).expect("two NICs");
    let (stream, theirs) = UnixStream::pair().expect("two sockets");
    let hello = hello(&peer);
    let nic = Nic::new(&Context::open(nic).expect("open")).expect("a NIC");
    let error = std::thread::scope(|scope| {
        scope.spawn(|| script(theirs, hello));
        let mut options = EndpointOptions::default();
        options.connect_timeout = CONNECT;
        Endpoint::over(stream, &nic, None, options).expect_err("it is not a peer")
    });
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations, "{stats:?}");
    assert!(nic.context().regions().is_empty(), "regions that live");
    assert!(started.elapsed() < MAX_WAIT, "it took {:?}", started.elapsed());
    error
}

/// The victim gets these bytes, and then silence until it hangs up.
fn gets(bytes: &[u8]) -> Error {
    meet(|mut stream, _| {
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

/// The victim gets a hello that was changed.
fn gets_hello(change: impl FnOnce(&mut Vec<u8>) + Send) -> Error {
    meet(|mut stream, mut hello| {
        change(&mut hello);
        let _ = stream.write_all(&frame(HELLO, &hello));
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

#[test]
fn foreign_protocol_is_rejected() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        assert_eq!(gets(bytes).kind(), ErrorKind::Protocol);
    }
}

#[test]
fn other_versions_are_rejected() {
    for version in [0, 2, u16::MAX] {
        let mut bytes = frame(HELLO, &[0; 66]);
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        let error = gets(&bytes);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains("version"), "{error}");
    }
}

#[test]
fn frames_out_of_order_are_rejected() {
    for kind in [0, READY, OFFER, 4, u16::MAX] {
        assert_eq!(gets(&frame(kind, &[0; 66])).kind(), ErrorKind::Protocol, "{kind}");
    }
}

#[test]
fn oversized_frame_is_rejected_by_its_head() {
    for len in [1025, u32::MAX] {
        let mut bytes = frame(HELLO, &[]);
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        let started = Instant::now();
        assert_eq!(gets(&bytes).kind(), ErrorKind::Protocol);
        assert!(started.elapsed() < CONNECT, "without waiting for the body");
    }
}

#[test]
fn truncated_hello_is_rejected() {
    for len in [0, 1, 32, 63, 64, 65, 66] {
        let error = gets_hello(|hello| hello.truncate(len));
        assert_eq!(error.kind(), ErrorKind::Protocol, "{len}: {error}");
    }
}

#[test]
fn trailing_bytes_of_a_hello_are_rejected() {
    assert_eq!(gets_hello(|hello| hello.push(0)).kind(), ErrorKind::Protocol);
}

#[test]
fn lies_about_text_lengths_are_rejected() {
    for len in [2_u16, 1000, u16::MAX] {
        let error = gets_hello(|hello| hello[64..66].copy_from_slice(&len.to_le_bytes()));
        assert_eq!(error.kind(), ErrorKind::Protocol, "{len}: {error}");
    }
}

#[test]
fn impossible_queue_pairs_are_rejected() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 5] = [
        ("a number of 32 bits", |hello| hello[3] = 1),
        ("a count of 32 bits", |hello| hello[32 + 7] = 1),
        ("no MTU", |hello| hello[24] = 0),
        ("MTU 255", |hello| hello[32 + 24] = 255),
        ("a reserved byte", |hello| hello[31] = 1),
    ];
    for (what, change) in changes {
        assert_eq!(gets_hello(change).kind(), ErrorKind::Protocol, "{what}");
    }
}

#[test]
fn echo_of_the_victims_hello_is_rejected() {
    let error = meet(|mut stream, _| {
        // Everything that the victim sends is returned, including its own queue pairs.
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let _ = stream.write_all(&buffer[..count]);
        }
    });
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[test]
fn ready_with_a_body_is_rejected() {
    let error = meet(|mut stream, hello| {
        let _ = stream.write_all(&frame(HELLO, &hello));
        let _ = stream.write_all(&frame(READY, &[0]));
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[test]
fn repeated_hello_is_rejected() {
    let error = meet(|mut stream, hello| {
        let _ = stream.write_all(&frame(HELLO, &hello));
        let _ = stream.write_all(&frame(HELLO, &hello));
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[test]
fn close_in_the_handshake_disconnects() {
    for bytes in [0, 5, 12, 40] {
        let error = meet(|mut stream, hello| {
            let _ = stream.write_all(&frame(HELLO, &hello)[..bytes]);
        });
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{bytes}: {error}");
    }
    let error = meet(|mut stream, hello| {
        let _ = stream.write_all(&frame(HELLO, &hello));
        hear(&mut stream);
    });
    assert_eq!(error.kind(), ErrorKind::Disconnected, "before ready: {error}");
}

#[test]
fn silent_handshake_times_out() {
    let started = Instant::now();
    assert_eq!(gets(&[]).kind(), ErrorKind::TimedOut);
    assert!(started.elapsed() >= CONNECT);
}

#[test]
fn trickled_handshake_times_out() {
    let started = Instant::now();
    let error = meet(|mut stream, hello| {
        for byte in frame(HELLO, &hello) {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            // Slower than the deadline allows, and never silent.
            std::thread::sleep(CONNECT / 20);
        }
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(started.elapsed() < 3 * CONNECT, "one deadline for the handshake");
}

#[test]
fn trickled_offer_times_out() {
    let mut scene = Scene::new("trickled-offer", &Setup::direct());
    let mut stream = scene.attacker.stream.try_clone().expect("a clone");
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for byte in frame(OFFER, &[0; 200]) {
                if stream.write_all(&[byte]).is_err() || started.elapsed() > 4 * CONNECT {
                    return;
                }
                std::thread::sleep(CONNECT / 20);
            }
        });
        let error = scene
            .victim
            .endpoint
            .receive_offer(CONNECT)
            .expect_err("half an offer");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(started.elapsed() < 3 * CONNECT, "one deadline for the offer");
        let error = scene
            .victim
            .endpoint
            .receive_offer(CONNECT)
            .expect_err("out of step");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    });
    scene.end();
}

#[test]
fn replayed_frames_end_the_connection() {
    for kind in [HELLO, READY] {
        let mut scene = Scene::new(&format!("replayed-{kind}"), &Setup::direct());
        scene.attacker.stream.write_all(&frame(kind, &[])).expect("sent");
        let error = scene
            .victim
            .endpoint
            .receive_offer(MAX_WAIT)
            .expect_err("not an offer");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        scene.end();
    }
}

#[test]
fn control_characters_of_names_are_escaped() {
    let (nic, peer) = SoftNic::pair(nic_config()).expect("two NICs");
    let (stream, mut theirs) = UnixStream::pair().expect("two sockets");
    let mut hello = hello(&peer);
    hello.truncate(64);
    hello.extend([5, 0, 0x1b, b'[', b'2', b'J', 7]);
    let nic = Nic::new(&Context::open(nic).expect("open")).expect("a NIC");
    theirs.write_all(&frame(HELLO, &hello)).expect("sent");
    theirs.write_all(&frame(READY, &[])).expect("sent");
    let end = Endpoint::over(stream, &nic, None, EndpointOptions::default()).expect("a peer with a bad name");
    assert!(!end.peer().contains(char::is_control), "{:?}", end.peer());
}
