//! Two guests that meet: a stream between the two halves of a test, and work of one on memory of
//! the other.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use gaudi_lab::nic::pattern;
use gaudi_lab::rxe;
use gaudi_lab::{Side, side};
use gaudi_sys::PAGE;
use gaudi_verbs::{MrAddr, QpAddress, RemoteAddr, Rkey, SendOp, exchange};

use crate::ibv::{self, Nic, succeeded};

/// Bytes of the memory that [`work`] works on.
pub(crate) const LEN: usize = 64 * PAGE as usize;
/// The other guest may boot later.
pub(crate) const LATER: Duration = Duration::from_secs(240);

/// The lab runs one test at a time in both guests, in the order of their names; each test has a
/// port of its own.
pub(crate) fn meet(port: u16) -> TcpStream {
    rxe::address("eth1", side().address());
    let begin = Instant::now();
    loop {
        let met = match side() {
            Side::A => TcpListener::bind((Side::A.address(), port)).and_then(|listener| {
                listener.set_nonblocking(true)?;
                std::thread::sleep(Duration::from_millis(500));
                listener.accept().map(|(stream, _)| stream)
            }),
            Side::B => TcpStream::connect((Side::A.address(), port)),
        };
        match met {
            Ok(stream) => {
                stream.set_nonblocking(false).expect("a stream");
                stream.set_read_timeout(Some(LATER)).expect("a stream");
                return stream;
            }
            Err(error) => assert!(begin.elapsed() < LATER, "no one came: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A connected queue pair, and what the peer offers.
pub(crate) fn connected(
    nic: &Nic,
    stream: &mut TcpStream,
    addr: u64,
    rkey: Rkey,
) -> (ibv::Queue, RemoteAddr) {
    let queue = nic.queue();
    let peer: QpAddress = exchange(stream, &queue.address()).expect("the peer sends its address");
    queue.connect(&peer);
    let mut mine = [0; 12];
    mine[..8].copy_from_slice(&addr.to_be_bytes());
    mine[8..].copy_from_slice(&rkey.0.to_be_bytes());
    // Only now, so that both are connected when both know.
    let theirs = say(stream, &mine);
    let to = RemoteAddr {
        addr: MrAddr(u64::from_be_bytes(theirs[..8].try_into().expect("eight bytes"))),
        rkey: Rkey(u32::from_be_bytes(theirs[8..].try_into().expect("four bytes"))),
    };
    (queue, to)
}

/// Both sides say the same number of bytes.
pub(crate) fn say<const N: usize>(stream: &mut TcpStream, mine: &[u8; N]) -> [u8; N] {
    stream.write_all(mine).expect("the peer listens");
    let mut theirs = [0; N];
    stream.read_exact(&mut theirs).expect("the peer answers");
    theirs
}

/// B writes, reads back, adds and sends; A looks at what became of its memory, in each way that it
/// has to look: from a place so many bytes.
pub(crate) fn work(
    stream: &mut TcpStream,
    nic: &Nic,
    views: &[&dyn Fn(usize, usize) -> Vec<u8>],
    addr: u64,
    rkey: Rkey,
) {
    let (queue, to) = connected(nic, stream, addr, rkey);
    let host = nic.host(LEN);
    let at = |offset: u64| RemoteAddr {
        addr: MrAddr(to.addr.0 + offset),
        ..to
    };
    match side() {
        Side::A => {
            queue.receive(1, &[host.sge(0, 4096)]);
            say(stream, b"ready");
            let got = queue.wait();
            succeeded(&got, "a send of the other guest");
            assert_eq!((got.byte_len, got.imm_data), (500, Some(0xb)));
            assert!(host.bytes(0, 500) == pattern(51, LEN)[7..507], "the message");
            say(stream, b"done.");
            for look in views {
                assert!(look(3, LEN - 32) == pattern(51, LEN - 32), "the write");
                assert_eq!(look(LEN - 8, 8), 77_u64.to_ne_bytes(), "the addition");
            }
        }
        Side::B => {
            say(stream, b"ready");
            host.pattern(51);
            succeeded(
                &queue.run(&[host.sge(0, LEN - 32)], SendOp::Write(at(3))),
                "a write",
            );
            let back = nic.host(LEN);
            succeeded(
                &queue.run(&[back.sge(0, LEN - 32)], SendOp::Read(at(3))),
                "a read",
            );
            assert!(
                back.bytes(0, LEN - 32) == pattern(51, LEN - 32),
                "brings the same"
            );
            let add = SendOp::FetchAdd {
                to: at(LEN as u64 - 8),
                add: 77,
            };
            succeeded(&queue.run(&[back.sge(0, 8)], add), "an addition");
            succeeded(&queue.run(&[host.sge(7, 500)], SendOp::SendImm(0xb)), "a send");
            say(stream, b"done.");
        }
    }
    queue.close();
}
