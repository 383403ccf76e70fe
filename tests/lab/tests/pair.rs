//! Two guests with a network between them. Both run this program; each test has two halves that
//! meet over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::{self, Build};
use gaudi_lab::uverbs::{Address, DmaBufRegion, Request, access, status};
use gaudi_lab::{Side, side};
use gaudi_sys::dmabuf::{udmabuf_create, udmabuf_open};
use gaudi_sys::{Memfd, PAGE, RawMapping};

/// The lab runs one test at a time in both guests, in the order of their names; each test has a
/// port of its own.
fn meet(port: u16) -> TcpStream {
    rxe::address("eth1", side().address());
    let limit = Duration::from_secs(240); // the other guest may boot later
    let begin = Instant::now();
    let stream = match side() {
        Side::A => {
            let listener = TcpListener::bind((Side::A.address(), port)).expect("a port");
            listener.set_nonblocking(true).expect("a listener");
            loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(error) => assert!(begin.elapsed() < limit, "no one came: {error}"),
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Side::B => loop {
            match TcpStream::connect((Side::A.address(), port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < limit, "no one is there: {error}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        },
    };
    stream.set_nonblocking(false).expect("a stream");
    stream.set_read_timeout(Some(limit)).expect("a stream");
    stream
}

/// Both sides say the same number of bytes.
fn exchange<const N: usize>(stream: &mut TcpStream, mine: &[u8; N]) -> [u8; N] {
    stream.write_all(mine).expect("the peer listens");
    let mut theirs = [0; N];
    stream.read_exact(&mut theirs).expect("the peer answers");
    theirs
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_guests_talk_over_tcp() {
    let mut stream = meet(7001);
    let mine = if side() == Side::A {
        *b"a says hello"
    } else {
        *b"b says hello"
    };
    let theirs = exchange(&mut stream, &mine);
    assert_eq!(theirs[1..], mine[1..], "the same words");
    assert_ne!(theirs[0], mine[0], "of the other one");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn guest_writes_into_the_others_dmabuf() {
    if rxe::skips("guest_writes_into_the_others_dmabuf") {
        return;
    }
    const LEN: usize = 16 * PAGE as usize;
    let mut stream = meet(7002);
    let nic = Nic::over(Build::Patched, "rxe1", "eth1", side().address());
    let mut pair = nic.context.queue_pair().expect("a queue pair");
    let mine = nic.address(&pair);
    let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
    let device = udmabuf_open().expect("udmabuf is built in");
    let buffer = udmabuf_create(&device, &memory, 0, LEN as u64).expect("a udmabuf");
    let region = nic
        .context
        .register_dmabuf(&DmaBufRegion {
            offset: 0,
            length: LEN as u64,
            iova: 0,
            fd: buffer.as_raw_fd(),
            access: access::ALL,
        })
        .expect("a region");

    let mut message = [0; 24];
    message[..16].copy_from_slice(&mine.gid);
    message[16..20].copy_from_slice(&mine.qp.to_be_bytes());
    message[20..].copy_from_slice(&region.rkey.to_be_bytes());
    let theirs = exchange(&mut stream, &message);
    let number = |at: usize| u32::from_be_bytes(theirs[at..at + 4].try_into().expect("four bytes"));
    let peer = Address {
        gid: theirs[..16].try_into().expect("sixteen bytes"),
        qp: number(16),
    };
    nic.connect(&pair, &peer);
    let _ = exchange(&mut stream, b"connected");

    if side() == Side::B {
        let host = nic.host(LEN);
        host.pattern(5).expect("inside");
        let (remote, rkey) = (3, number(20));
        let done = run(&mut pair, host.local(0, LEN - 7), Request::Write { remote, rkey });
        assert_eq!(done.status, status::SUCCESS, "a write to the other guest");
    }
    let _ = exchange(&mut stream, b"written");
    if side() == Side::A {
        let mut seen = vec![0; LEN];
        view.read(0, &mut seen).expect("inside");
        assert!(
            seen[3..LEN - 4] == pattern(5, LEN - 7)[..],
            "the other guest's bytes are in this one's memory file"
        );
    }
    let _ = exchange(&mut stream, b"done");
}
