//! The messages with which two nodes connect their queue pairs, in [frames](crate::Framed).
//!
//! ```text
//! A body has 32 bytes, little-endian; unused bytes are 0.
//! queue pair: 0 number (4), 4 psn (4), 8 gid (16), 24 mtu (1), 25 rd_atom (1), 26 lid (2)
//! region:     0 address (8), 8 bytes (8), 16 rkey (4)
//! ```

use std::io::{Read, Write};

use gaudi_seam::Result;

use crate::device::{Gid, Mtu};
use crate::frame::{self, protocol};
use crate::wr::{MrAddr, Psn, QpAddress, Qpn, RemoteRegion, Rkey};

const BODY: usize = 32;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::QpAddress {}
    impl Sealed for super::RemoteRegion {}
}

/// A message that connects two nodes: [`QpAddress`] or [`RemoteRegion`].
pub trait Message: sealed::Sealed + Sized {
    /// The kind of its frame.
    const KIND: u16;
    /// Encodes the body.
    fn encode(&self) -> [u8; 32];
    /// Decodes a body.
    ///
    /// # Errors
    /// `Protocol`: a field has an invalid value.
    fn decode(body: &[u8; 32]) -> Result<Self>;
}

impl Message for QpAddress {
    const KIND: u16 = 16;

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
    const KIND: u16 = 17;

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

/// Sends one message.
///
/// # Errors
/// `Disconnected` if the peer closed the stream, `TimedOut` after the stream's own timeout.
pub fn send<M: Message>(stream: &mut impl Write, message: &M) -> Result<()> {
    frame::write(stream, M::KIND, &message.encode())
}

/// Receives one message. Reads exactly one frame.
///
/// Waits as long as the stream does.
///
/// # Errors
/// - `TimedOut`: the stream's own timeout passed.
/// - `Disconnected`: the peer closed the stream.
/// - `Protocol`: the peer sent something else; the stream is out of step after that.
pub fn receive<M: Message>(stream: &mut impl Read) -> Result<M> {
    let body = frame::read(stream, M::KIND, BODY)?;
    let body = body
        .try_into()
        .map_err(|_| protocol("the message is too short"))?;
    M::decode(&body)
}

/// Sends a message and receives the peer's: both ends call this at the same point.
///
/// # Errors
/// As [`receive`].
pub fn exchange<M: Message>(stream: &mut (impl Read + Write), local: &M) -> Result<M> {
    send(stream, local)?;
    receive(stream)
}
