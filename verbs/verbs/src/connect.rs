//! What two ends tell each other before they can talk: one small message each, over any stream.
//!
//! ```text
//! offset bytes field     little-endian
//!  0     4     magic     "gvx\0"
//!  4     2     version   2; 1 is understood: it had neither `rd_atom` nor `lid`, whose bytes were 0
//!  6     2     kind      1 queue pair, 2 region
//!  8     4     reserved  0
//! 12     32    body      by kind; unused bytes are 0
//!
//! queue pair: 0 number (4), 4 psn (4), 8 gid (16), 24 mtu (1), 25 rd_atom (1), 26 lid (2)
//! region:     0 address (8), 8 bytes (8), 16 rkey (4)
//! ```

use std::io::{self, Read, Write};

use gaudi_seam::{Errno, Error, ErrorKind, Result};

use crate::device::{Gid, Mtu};
use crate::wr::{MrAddr, Psn, QpAddress, Qpn, RemoteRegion, Rkey};

const MAGIC: [u8; 4] = *b"gvx\0";
const VERSION: u16 = 2;
/// Its bytes mean the same, as far as it has them.
const OLDEST: u16 = 1;
const HEAD: usize = 12;
const BODY: usize = 32;
const RECEIVE: &str = "connection message receive";
const SEND: &str = "connection message send";

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::QpAddress {}
    impl Sealed for super::RemoteRegion {}
}

/// What can be told: [`QpAddress`] and [`RemoteRegion`].
pub trait Message: sealed::Sealed + Sized {
    /// The kind on the wire.
    const KIND: u16;
    /// Lays it out.
    fn encode(&self) -> [u8; 32];
    /// Reads it back. `Protocol` where a field has a value that cannot be.
    fn decode(body: &[u8; 32]) -> Result<Self>;
}

impl Message for QpAddress {
    const KIND: u16 = 1;

    fn encode(&self) -> [u8; BODY] {
        let mut body = [0; BODY];
        put(&mut body, 0, &self.qpn.0.to_le_bytes());
        put(&mut body, 4, &self.psn.0.to_le_bytes());
        put(&mut body, 8, &self.gid.0);
        put(&mut body, 24, &[self.mtu.0, self.rd_atom]);
        put(&mut body, 26, &self.lid.to_le_bytes());
        body
    }

    fn decode(body: &[u8; BODY]) -> Result<Self> {
        let address = Self {
            qpn: Qpn(u32::from_le_bytes(take(body, 0))),
            psn: Psn(u32::from_le_bytes(take(body, 4))),
            gid: Gid(take(body, 8)),
            mtu: Mtu(body[24]),
            rd_atom: body[25],
            lid: u16::from_le_bytes(take(body, 26)),
        };
        for (what, seen) in [
            ("the queue pair number", address.qpn.0),
            ("the packet sequence number", address.psn.0),
        ] {
            if seen > 0xff_ffff {
                return Err(protocol(&format!("{what} has more than 24 bits"))
                    .saw(format!("{seen:#x}"), "at most 0xffffff"));
            }
        }
        if address.mtu.bytes().is_none() {
            return Err(protocol("the MTU is unknown").saw(address.mtu, "1 to 5 (256 to 4096 bytes)"));
        }
        check_rest(body, 28)?;
        Ok(address)
    }
}

impl Message for RemoteRegion {
    const KIND: u16 = 2;

    fn encode(&self) -> [u8; BODY] {
        let mut body = [0; BODY];
        put(&mut body, 0, &self.addr.0.to_le_bytes());
        put(&mut body, 8, &self.len.to_le_bytes());
        put(&mut body, 16, &self.rkey.0.to_le_bytes());
        body
    }

    fn decode(body: &[u8; BODY]) -> Result<Self> {
        let region = Self {
            addr: MrAddr(u64::from_le_bytes(take(body, 0))),
            len: u64::from_le_bytes(take(body, 8)),
            rkey: Rkey(u32::from_le_bytes(take(body, 16))),
        };
        if region.addr.checked_add(region.len).is_none() {
            return Err(protocol("the region leaves the address space").saw(
                format!("{} bytes at {}", region.len, region.addr),
                "an end below 2^64",
            ));
        }
        check_rest(body, 20)?;
        Ok(region)
    }
}

fn put(body: &mut [u8; BODY], at: usize, bytes: &[u8]) {
    // The offsets are constants of the layouts above and stay inside the body.
    if let Some(place) = body.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn take<const N: usize>(body: &[u8; BODY], at: usize) -> [u8; N] {
    std::array::from_fn(|index| body.get(at + index).copied().unwrap_or(0))
}

fn check_rest(body: &[u8; BODY], from: usize) -> Result<()> {
    if body.iter().skip(from).any(|byte| *byte != 0) {
        return Err(protocol("reserved bytes are set"));
    }
    Ok(())
}

fn protocol(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, RECEIVE).because(cause)
}

/// Tells the peer one thing.
pub fn send<M: Message>(stream: &mut impl Write, message: &M) -> Result<()> {
    let mut frame = [0; HEAD + BODY];
    let (head, body) = frame.split_at_mut(HEAD);
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&M::KIND.to_le_bytes());
    body.copy_from_slice(&message.encode());
    stream
        .write_all(&frame)
        .and_then(|()| stream.flush())
        .map_err(|error| io_error(SEND, &error))
}

/// Hears one thing from the peer. Takes exactly one message from the stream.
///
/// Waits as long as the stream does: give it a read timeout (`TimedOut` comes back then). `Disconnected` where the peer closed,
/// `Protocol` where it sent something else; the stream is out of step after that.
pub fn receive<M: Message>(stream: &mut impl Read) -> Result<M> {
    let mut head = [0; HEAD];
    let mut body = [0; BODY];
    stream
        .read_exact(&mut head)
        .map_err(|error| io_error(RECEIVE, &error))?;
    if head[..4] != MAGIC {
        return Err(protocol("this is no connection message")
            .saw(format!("{:02x?}", &head[..4]), format!("{MAGIC:02x?}")));
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(
            protocol("the peer speaks another version").saw(version, format!("{OLDEST} to {VERSION}"))
        );
    }
    let kind = u16::from_le_bytes([head[6], head[7]]);
    if kind != M::KIND {
        return Err(protocol("another message was expected").saw(kind, M::KIND));
    }
    if head[8..] != [0; 4] {
        return Err(protocol("reserved bytes are set"));
    }
    stream
        .read_exact(&mut body)
        .map_err(|error| io_error(RECEIVE, &error))?;
    M::decode(&body)
}

/// Tells and hears: both ends call this at the same point.
pub fn exchange<M: Message>(stream: &mut (impl Read + Write), local: &M) -> Result<M> {
    send(stream, local)?;
    receive(stream)
}

fn io_error(operation: &'static str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Disconnected, operation).because("the peer closed the stream")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::timed_out(operation),
        _ => match error.raw_os_error() {
            Some(errno) => Error::from_errno(operation, Errno::from_raw(errno)),
            None => Error::new(ErrorKind::Io, operation).because(error.to_string()),
        },
    }
}
