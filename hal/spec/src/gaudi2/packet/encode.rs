//! Packets into bytes, without allocating.

use core::fmt;

use super::{CpDma, Fence, LinDma, MsgLong, MsgShort, Nop, Packet};

/// A place that takes a packet's bytes whole or not at all.
///
/// Memory that a device reads is never a `&mut [u8]`, so a queue implements this over its own raw mapping.
pub trait Sink {
    /// Appends the bytes, or leaves everything as it was.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full>;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        (**self).put(bytes)
    }
}

/// The sink has no room for the whole packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the command buffer has no room for the packet")
    }
}

impl core::error::Error for Full {}

/// Ordinary memory as a sink, for tests and for buffers that are copied to the device afterwards.
#[derive(Debug)]
pub struct SliceSink<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl<'a> SliceSink<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0 }
    }

    /// Bytes written.
    pub const fn used(&self) -> usize {
        self.used
    }
}

impl Sink for SliceSink<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let end = self.used.checked_add(bytes.len()).ok_or(Full)?;
        self.bytes
            .get_mut(self.used..end)
            .ok_or(Full)?
            .copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }
}

/// Appends packets to a sink; a chain of calls reads as the command buffer does.
#[derive(Debug)]
pub struct Encoder<S> {
    sink: S,
    len: usize,
}

impl<S: Sink> Encoder<S> {
    /// Appends to `sink`.
    pub const fn new(sink: S) -> Self {
        Self { sink, len: 0 }
    }

    /// Bytes appended.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was appended.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the sink back.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Any packet.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Result<&mut Self, Full> {
        packet.emit(&mut self.sink)?;
        self.len += packet.len();
        Ok(self)
    }

    /// Does nothing; carries barriers.
    pub fn nop(&mut self, packet: Nop) -> Result<&mut Self, Full> {
        self.packet(&Packet::Nop(packet))
    }

    /// Writes a word to an address.
    pub fn msg_long(&mut self, packet: MsgLong) -> Result<&mut Self, Full> {
        self.packet(&Packet::MsgLong(packet))
    }

    /// Writes a word to a base plus an offset.
    pub fn msg_short(&mut self, packet: MsgShort) -> Result<&mut Self, Full> {
        self.packet(&Packet::MsgShort(packet))
    }

    /// Hands a command buffer to the lower command processor.
    pub fn cp_dma(&mut self, packet: CpDma) -> Result<&mut Self, Full> {
        self.packet(&Packet::CpDma(packet))
    }

    /// Waits for a fence counter.
    pub fn fence(&mut self, packet: Fence) -> Result<&mut Self, Full> {
        self.packet(&Packet::Fence(packet))
    }

    /// Copies or fills memory.
    pub fn lin_dma(&mut self, packet: LinDma) -> Result<&mut Self, Full> {
        self.packet(&Packet::LinDma(packet))
    }
}
