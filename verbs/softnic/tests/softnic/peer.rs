//! A peer that writes frames byte by byte: the far end of a cable, without a NIC behind it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::{Access, Gid, Mtu, Psn, QpAddress, Qpn};

use crate::node::*;

pub(crate) const HEADER: usize = 56;
/// The largest payload of one frame.
pub(crate) const CHUNK: u32 = 256 * 1024;
pub(crate) const PEER_QPN: u32 = 0x77;
/// The address of the queue pair that the peer pretends to own.
pub(crate) const PEER: QpAddress = QpAddress {
    qpn: Qpn(PEER_QPN),
    psn: Psn(0),
    gid: Gid([1; 16]),
    mtu: Mtu::MTU_4096,
    rd_atom: 8,
    lid: 0,
};

// Kinds of frames.
pub(crate) const WRITE: u8 = 1;
pub(crate) const WRITE_IMM: u8 = 2;
pub(crate) const READ: u8 = 3;
pub(crate) const SEND: u8 = 4;
pub(crate) const SEND_IMM: u8 = 5;
pub(crate) const READ_RESPONSE: u8 = 6;
pub(crate) const ACK: u8 = 7;
pub(crate) const NAK: u8 = 8;
pub(crate) const SEND_INV: u8 = 9;
pub(crate) const FETCH_ADD: u8 = 10;
pub(crate) const COMPARE_SWAP: u8 = 11;
pub(crate) const DATAGRAM: u8 = 12;
pub(crate) const NOP: u8 = 13;
pub(crate) const HELLO: u8 = 14;
/// Every kind that exists.
pub(crate) const KINDS: std::ops::RangeInclusive<u8> = WRITE..=HELLO;

// Codes of a refusal.
pub(crate) const NOT_READY: u8 = 1;
pub(crate) const ACCESS: u8 = 3;
pub(crate) const INVALID_REQUEST: u8 = 4;
pub(crate) const NO_PEER: u8 = 6;
pub(crate) const GAP: u8 = 7;
/// Every code that exists.
pub(crate) const CODES: std::ops::RangeInclusive<u8> = NOT_READY..=GAP;

/// A header as it is on the cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) status: u8,
    pub(crate) dst: u32,
    pub(crate) src: u32,
    pub(crate) msn: u64,
    pub(crate) raddr: u64,
    pub(crate) rkey: u32,
    pub(crate) imm: u32,
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) payload: u32,
    pub(crate) reserved: u32,
}

impl Frame {
    /// A frame of the peer's queue pair without a message.
    pub(crate) fn new(kind: u8, dst: u32, msn: u64) -> Self {
        Self {
            kind,
            flags: 0,
            status: 0,
            dst,
            src: PEER_QPN,
            msn,
            raddr: 0,
            rkey: 0,
            imm: 0,
            total: 0,
            offset: 0,
            payload: 0,
            reserved: 0,
        }
    }

    /// Names memory of the other end.
    pub(crate) fn at(self, raddr: u64, rkey: u32) -> Self {
        Self { raddr, rkey, ..self }
    }

    /// The length of the message; this frame has all of it if the kind carries payload.
    pub(crate) fn of(self, total: u32) -> Self {
        let payload = if self.carries() { total } else { 0 };
        Self {
            total,
            payload,
            ..self
        }
    }

    /// A part of a message.
    pub(crate) fn part(self, total: u32, offset: u32, payload: u32) -> Self {
        Self {
            total,
            offset,
            payload,
            ..self
        }
    }

    pub(crate) fn refusing(self, status: u8) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn carries(&self) -> bool {
        !matches!(self.kind, READ | ACK | NAK | NOP | HELLO)
    }

    pub(crate) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(b"gsn\0");
        bytes.extend([2, self.kind, self.flags, self.status]);
        bytes.extend(self.dst.to_le_bytes());
        bytes.extend(self.src.to_le_bytes());
        bytes.extend(self.msn.to_le_bytes());
        bytes.extend(self.raddr.to_le_bytes());
        for field in [
            self.rkey,
            self.imm,
            self.total,
            self.offset,
            self.payload,
            self.reserved,
        ] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.try_into().expect("56 bytes")
    }

    fn parse(bytes: &[u8; HEADER]) -> Self {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self {
            kind: bytes[5],
            flags: bytes[6],
            status: bytes[7],
            dst: word(8),
            src: word(12),
            msn: long(16),
            raddr: long(24),
            rkey: word(32),
            imm: word(36),
            total: word(40),
            offset: word(44),
            payload: word(48),
            reserved: word(52),
        }
    }
}

/// A well-formed header of this kind.
pub(crate) fn header(
    kind: u8,
    dst: u32,
    msn: u64,
    raddr: u64,
    rkey: u32,
    total: u32,
    payload: u32,
) -> Vec<u8> {
    let frame = Frame::new(kind, dst, msn).at(raddr, rkey).part(total, 0, payload);
    frame.bytes().to_vec()
}

/// The first frame of each direction.
pub(crate) fn hello(gid: [u8; 16]) -> Vec<u8> {
    let half = |at: usize| u64::from_be_bytes(std::array::from_fn(|index| gid[at + index]));
    let mut frame = Frame::new(HELLO, 0, half(0)).at(half(8), 0);
    frame.src = PEER_QPN;
    frame.bytes().to_vec()
}

/// The peer's end of a cable.
pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
}

impl Peer {
    /// Plugs a new cable into `nic`.
    pub(crate) fn plugged_into(nic: &SoftNic) -> Self {
        let (cable, socket) = UnixStream::pair().unwrap();
        nic.plug(cable).unwrap();
        Self::over(socket)
    }

    pub(crate) fn over(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
        socket.set_write_timeout(Some(MAX_WAIT)).unwrap();
        Self { socket }
    }

    /// Sends a frame whose payload, if it has any, is of this byte.
    pub(crate) fn send(&mut self, frame: Frame, fill: u8) {
        let mut bytes = frame.bytes().to_vec();
        bytes.resize(HEADER + frame.payload as usize, fill);
        self.raw(&bytes);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// The next frame of the NIC other than a Hello, with its payload.
    pub(crate) fn receive(&mut self) -> (Frame, Vec<u8>) {
        loop {
            let mut bytes = [0; HEADER];
            self.socket.read_exact(&mut bytes).expect("the NIC answers");
            let frame = Frame::parse(&bytes);
            let mut payload = vec![0; frame.payload as usize];
            self.socket.read_exact(&mut payload).expect("the payload follows");
            if frame.kind != HELLO {
                return (frame, payload);
            }
        }
    }

    /// The next frame must be of this kind, with this status, about this message.
    pub(crate) fn hears(&mut self, kind: u8, status: u8, msn: u64) -> Vec<u8> {
        let (frame, payload) = self.receive();
        assert_eq!(
            (frame.kind, frame.status, frame.msn),
            (kind, status, msn),
            "{frame:?}"
        );
        payload
    }

    /// Reads all bytes until the NIC closes the cable.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset of the socket is an end, too.
        let _ = self.socket.read_to_end(&mut bytes);
        bytes
    }
}

/// A node whose one cable leads to the returned peer, connected to it with these rights.
pub(crate) fn against_a_peer(access: Access) -> (Node, Peer) {
    let (cable, socket) = UnixStream::pair().unwrap();
    let mut a = Node::new(SoftNic::open("softnic0", cable, SoftNicConfig::default()).unwrap());
    a.qp.connect(&PEER, access).unwrap();
    (a, Peer::over(socket))
}

/// Waits until `done`; panics with `what` if that takes far longer than it can.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + MAX_WAIT;
    while !done() {
        assert!(Instant::now() < end, "{what} does not happen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
