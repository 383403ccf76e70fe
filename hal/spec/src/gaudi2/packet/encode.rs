//! Packets into bytes, without allocating.

use core::fmt;

use super::{
    ArbPoint, CbList, CpDma, Fence, LinDma, LoadAndExe, MsgLong, MsgProt, MsgShort, Nop, Packet, Repeat,
    Stop, Wait, Wreg32, Wreg64Long, Wreg64Short, WregBulk, WriteArcStream,
};

/// A place that takes a packet's bytes whole or not at all.
///
/// Memory that a device reads is never a `&mut [u8]`, so a queue implements this over its own raw
/// mapping.
pub trait Sink {
    /// Appends the bytes, or leaves everything as it was.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full>;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    #[inline]
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
    #[inline]
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0 }
    }

    /// Bytes written.
    #[inline]
    pub const fn used(&self) -> usize {
        self.used
    }
}

impl Sink for SliceSink<'_> {
    #[inline]
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
    #[inline]
    pub const fn new(sink: S) -> Self {
        Self { sink, len: 0 }
    }

    /// Bytes appended.
    #[inline]
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

    // The bytes of one packet.
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<&mut Self, Full> {
        self.sink.put(bytes)?;
        self.len += bytes.len();
        Ok(self)
    }

    /// Any packet.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Result<&mut Self, Full> {
        packet.emit(&mut self.sink)?;
        self.len += packet.len();
        Ok(self)
    }

    /// Writes a register of the engine.
    #[inline]
    pub fn wreg_32(&mut self, packet: Wreg32) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Writes registers of the engine in a row.
    #[inline]
    pub fn wreg_bulk(&mut self, packet: WregBulk<'_>) -> Result<&mut Self, Full> {
        self.put(packet.as_bytes())
    }

    /// Writes a word to an address.
    #[inline]
    pub fn msg_long(&mut self, packet: MsgLong) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Writes a word to a base plus an offset.
    #[inline]
    pub fn msg_short(&mut self, packet: MsgShort) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Hands a command buffer to a command processor.
    #[inline]
    pub fn cp_dma(&mut self, packet: CpDma) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Repeats packets.
    #[inline]
    pub fn repeat(&mut self, packet: Repeat) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Writes a word to an address, with other rights.
    #[inline]
    pub fn msg_prot(&mut self, packet: MsgProt) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Waits for a fence counter.
    #[inline]
    pub fn fence(&mut self, packet: Fence) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Copies or fills memory.
    #[inline]
    pub fn lin_dma(&mut self, packet: LinDma) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Does nothing.
    #[inline]
    pub fn nop(&mut self, packet: Nop) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Stops the processor.
    #[inline]
    pub fn stop(&mut self, packet: Stop) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Asks the arbiter for its grant, or gives it back.
    #[inline]
    pub fn arb_point(&mut self, packet: ArbPoint) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Adds to a fence counter after some cycles.
    #[inline]
    pub fn wait(&mut self, packet: Wait) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Executes an entry of a table.
    #[inline]
    pub fn cb_list(&mut self, packet: CbList) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Loads predicates or scalars, and executes.
    #[inline]
    pub fn load_and_exe(&mut self, packet: LoadAndExe) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Sends words to the ARC.
    #[inline]
    pub fn write_arc_stream(&mut self, packet: WriteArcStream<'_>) -> Result<&mut Self, Full> {
        self.put(packet.as_bytes())
    }

    /// Writes a base register plus an offset to two registers.
    #[inline]
    pub fn wreg_64_short(&mut self, packet: Wreg64Short) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }

    /// Writes a 64-bit value to two registers.
    #[inline]
    pub fn wreg_64_long(&mut self, packet: Wreg64Long) -> Result<&mut Self, Full> {
        self.put(&packet.to_bytes())
    }
}
