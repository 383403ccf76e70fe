//! Command-processor packets: bytes to packets and back (gaudi2_packets.h of the driver, which has
//! the words, and of hl-thunk, which has the fields in them).
//!
//! A packet is a 32-bit word, a 32-bit control word with the opcode in bits 28..24, and what
//! follows; all little-endian. A command buffer is packets without gaps.
//!
//! - [`Packets`] walks any bytes: it never panics and always ends, at the first error at the
//!   latest.
//! - [`Packet::emit`] gives the bytes back exactly, bits without a name included.
//! - [`Encoder`] writes packets into a [`Sink`] without allocating.
//! - A builder costs what storing its words costs: control words are constants (`const { … }`), and
//!   all of it is inlined across crates.

#![allow(
    clippy::result_unit_err,
    reason = "the checked setters that bitfield-struct writes have nothing more to say than that a value does not fit"
)]

#[macro_use]
mod macros;
mod control;
mod encode;
mod kinds;
mod registers;

use core::fmt;

pub use control::{
    ArbPoint, ArbPointCfg, ArbPointCtl, CbList, CbListCtl, CpDma, CpDmaCtl, LoadAndExe, LoadAndExeCfg,
    LoadAndExeCtl, Repeat, RepeatCfg, RepeatCtl, Stop, StopCtl, Wait, WaitCfg, WaitCtl,
};
pub use encode::{Encoder, Full, Sink, SliceSink};
pub use kinds::{
    EndianSwap, Fence, FenceCfg, FenceCtl, LinDma, LinDmaCtl, MsgBase, MsgLong, MsgLongCtl, MsgProt,
    MsgProtCtl, MsgShort, MsgShortCtl, Nop, NopCtl, Source,
};
pub use registers::{
    Wreg32, Wreg32Ctl, Wreg64Long, Wreg64LongCfg, Wreg64LongCtl, Wreg64Short, Wreg64ShortCtl, WregBulk,
    WregBulkCtl, WriteArcStream, WriteArcStreamCtl,
};

/// Bytes in the words that every packet starts with.
pub const HEADER: usize = 8;
/// Bytes in the longest packet of a fixed size.
pub const MAX_FIXED: usize = 24;

/// What a packet is, by number (gaudi2_packets.h `enum packet_id`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $size:expr;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($number);)*

            /// The header's name for it; `None` for a number without one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            const fn size(self) -> Option<Size> {
                match self.0 {
                    $($number => $size,)*
                    _ => None,
                }
            }
        }
    };
}

#[derive(Clone, Copy)]
enum Size {
    Fixed(usize),
    // Eight bytes, and as many 64-bit words as bits 15..0 of the first word say.
    Words,
}

opcodes! {
    /// Writes a register of the engine.
    WREG_32 = 0x1, "WREG_32", Some(Size::Fixed(8));
    /// Writes many registers of the engine.
    WREG_BULK = 0x2, "WREG_BULK", Some(Size::Words);
    /// Writes a word to any address.
    MSG_LONG = 0x3, "MSG_LONG", Some(Size::Fixed(16));
    /// Writes a word to a base register plus an offset.
    MSG_SHORT = 0x4, "MSG_SHORT", Some(Size::Fixed(8));
    /// Hands a command buffer to the lower command processor.
    CP_DMA = 0x5, "CP_DMA", Some(Size::Fixed(16));
    /// Jumps back.
    REPEAT = 0x6, "REPEAT", Some(Size::Fixed(8));
    /// MSG_LONG with the driver's rights.
    MSG_PROT = 0x7, "MSG_PROT", Some(Size::Fixed(16));
    /// Waits for a fence counter.
    FENCE = 0x8, "FENCE", Some(Size::Fixed(8));
    /// Copies or fills memory.
    LIN_DMA = 0x9, "LIN_DMA", Some(Size::Fixed(24));
    /// Does nothing; carries barriers.
    NOP = 0xa, "NOP", Some(Size::Fixed(8));
    /// Stops the processor.
    STOP = 0xb, "STOP", Some(Size::Fixed(8));
    /// Lets the arbiter choose another stream.
    ARB_POINT = 0xc, "ARB_POINT", Some(Size::Fixed(8));
    /// Waits a number of cycles.
    WAIT = 0xd, "WAIT", Some(Size::Fixed(8));
    /// Runs a command buffer out of a table.
    CB_LIST = 0xe, "CB_LIST", Some(Size::Fixed(24));
    /// Loads predicates or scalars, and executes.
    LOAD_AND_EXE = 0xf, "LOAD_AND_EXE", Some(Size::Fixed(16));
    /// Sends words to the ARC.
    WRITE_ARC_STREAM = 0x10, "WRITE_ARC_STREAM", Some(Size::Words);
    /// Marks the last read; its size is in no public header.
    LAST_READ_FROM_ARC = 0x11, "LAST_READ_FROM_ARC", None;
    /// Writes a 64-bit register, short form.
    WREG_64_SHORT = 0x12, "WREG_64_SHORT", Some(Size::Fixed(8));
    /// Writes a 64-bit register, long form.
    WREG_64_LONG = 0x13, "WREG_64_LONG", Some(Size::Fixed(16));
}

impl Opcode {
    /// The opcode in a control word.
    pub const fn of(ctl: u32) -> Self {
        Self((ctl >> 24 & 0x1f) as u8)
    }

    /// The number, 0..=0x1f.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end within the packet.
    Truncated {
        /// Bytes that the packet needs.
        needed: usize,
        /// Bytes that are there.
        available: usize,
    },
    /// The opcode has no name, or a name without a known size: nothing after it can be found.
    UnknownOpcode(Opcode),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, available } => {
                write!(
                    f,
                    "the packet needs {needed} bytes and the buffer has {available} left"
                )
            }
            Self::UnknownOpcode(opcode) => write!(f, "{opcode} is not a packet of known size"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packet<'a> {
    /// Writes a register of the engine.
    Wreg32(Wreg32),
    /// Writes registers of the engine in a row.
    WregBulk(WregBulk<'a>),
    /// Writes a word to an address.
    MsgLong(MsgLong),
    /// Writes a word to a base plus an offset.
    MsgShort(MsgShort),
    /// Hands a command buffer to a command processor.
    CpDma(CpDma),
    /// Repeats packets.
    Repeat(Repeat),
    /// Writes a word to an address, with other rights.
    MsgProt(MsgProt),
    /// Waits for a fence counter.
    Fence(Fence),
    /// Copies or fills memory.
    LinDma(LinDma),
    /// Does nothing.
    Nop(Nop),
    /// Stops the processor.
    Stop(Stop),
    /// Asks the arbiter for its grant, or gives it back.
    ArbPoint(ArbPoint),
    /// Adds to a fence counter after some cycles.
    Wait(Wait),
    /// Executes an entry of a table.
    CbList(CbList),
    /// Loads predicates or scalars, and executes.
    LoadAndExe(LoadAndExe),
    /// Sends words to the ARC.
    WriteArcStream(WriteArcStream<'a>),
    /// Writes a base register plus an offset to two registers.
    Wreg64Short(Wreg64Short),
    /// Writes a 64-bit value to two registers.
    Wreg64Long(Wreg64Long),
    /// Known by name and size only.
    Other {
        /// What it is.
        opcode: Opcode,
        /// All its bytes, the header's words included.
        bytes: &'a [u8],
    },
}

// Word `index` of 32 bits; zero past the end, which no caller reaches.
fn word(bytes: &[u8], index: usize) -> u32 {
    match bytes.get(index * 4..index * 4 + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

fn long(bytes: &[u8], index: usize) -> u64 {
    u64::from(word(bytes, index)) | u64::from(word(bytes, index + 1)) << 32
}

/// The control word of the packet that starts here; zero where the bytes end before it.
pub fn ctl(bytes: &[u8]) -> u32 {
    word(bytes, 1)
}

/// Whether a control word asks for an engine barrier; its place is the same in every packet.
pub const fn engine_barrier(ctl: u32) -> bool {
    ctl >> 29 & 1 != 0
}

/// Bytes in the packet that starts here, by its first eight bytes.
pub fn size(bytes: &[u8]) -> Result<usize, DecodeError> {
    if bytes.len() < HEADER {
        return Err(DecodeError::Truncated {
            needed: HEADER,
            available: bytes.len(),
        });
    }
    let opcode = Opcode::of(word(bytes, 1));
    match opcode.size() {
        Some(Size::Fixed(size)) => Ok(size),
        Some(Size::Words) => Ok(HEADER + 8 * (word(bytes, 0) as usize & 0xffff)),
        None => Err(DecodeError::UnknownOpcode(opcode)),
    }
}

impl<'a> Packet<'a> {
    /// The packet at the start of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let size = size(bytes)?;
        let Some(bytes) = bytes.get(..size) else {
            return Err(DecodeError::Truncated {
                needed: size,
                available: bytes.len(),
            });
        };
        let (first, ctl) = (word(bytes, 0), word(bytes, 1));
        Ok(match Opcode::of(ctl) {
            Opcode::WREG_32 => Self::Wreg32(Wreg32::from_words(first, ctl)),
            Opcode::WREG_BULK => Self::WregBulk(WregBulk::from_bytes(bytes)),
            Opcode::MSG_LONG => Self::MsgLong(MsgLong::from_words(first, ctl, long(bytes, 2))),
            Opcode::MSG_SHORT => Self::MsgShort(MsgShort::from_words(first, ctl)),
            Opcode::CP_DMA => Self::CpDma(CpDma::from_words(first, ctl, long(bytes, 2))),
            Opcode::REPEAT => Self::Repeat(Repeat::from_words(first, ctl)),
            Opcode::MSG_PROT => Self::MsgProt(MsgProt::from_words(first, ctl, long(bytes, 2))),
            Opcode::FENCE => Self::Fence(Fence::from_words(first, ctl)),
            Opcode::LIN_DMA => Self::LinDma(LinDma::from_words(first, ctl, long(bytes, 2), long(bytes, 4))),
            Opcode::NOP => Self::Nop(Nop::from_words(first, ctl)),
            Opcode::STOP => Self::Stop(Stop::from_words(first, ctl)),
            Opcode::ARB_POINT => Self::ArbPoint(ArbPoint::from_words(first, ctl)),
            Opcode::WAIT => Self::Wait(Wait::from_words(first, ctl)),
            Opcode::CB_LIST => Self::CbList(CbList::from_words(first, ctl, long(bytes, 2), long(bytes, 4))),
            Opcode::LOAD_AND_EXE => Self::LoadAndExe(LoadAndExe::from_words(first, ctl, long(bytes, 2))),
            Opcode::WRITE_ARC_STREAM => Self::WriteArcStream(WriteArcStream::from_bytes(bytes)),
            Opcode::WREG_64_SHORT => Self::Wreg64Short(Wreg64Short::from_words(first, ctl)),
            Opcode::WREG_64_LONG => Self::Wreg64Long(Wreg64Long::from_words(first, ctl, long(bytes, 2))),
            opcode => Self::Other { opcode, bytes },
        })
    }

    /// What the packet is.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Wreg32(_) => Opcode::WREG_32,
            Self::WregBulk(_) => Opcode::WREG_BULK,
            Self::MsgLong(_) => Opcode::MSG_LONG,
            Self::MsgShort(_) => Opcode::MSG_SHORT,
            Self::CpDma(_) => Opcode::CP_DMA,
            Self::Repeat(_) => Opcode::REPEAT,
            Self::MsgProt(_) => Opcode::MSG_PROT,
            Self::Fence(_) => Opcode::FENCE,
            Self::LinDma(_) => Opcode::LIN_DMA,
            Self::Nop(_) => Opcode::NOP,
            Self::Stop(_) => Opcode::STOP,
            Self::ArbPoint(_) => Opcode::ARB_POINT,
            Self::Wait(_) => Opcode::WAIT,
            Self::CbList(_) => Opcode::CB_LIST,
            Self::LoadAndExe(_) => Opcode::LOAD_AND_EXE,
            Self::WriteArcStream(_) => Opcode::WRITE_ARC_STREAM,
            Self::Wreg64Short(_) => Opcode::WREG_64_SHORT,
            Self::Wreg64Long(_) => Opcode::WREG_64_LONG,
            Self::Other { opcode, .. } => *opcode,
        }
    }

    /// The predicate that must hold for the packet to be executed, 0 for always; `None` of a packet
    /// that has none.
    pub fn predicate(&self) -> Option<u8> {
        Some(match self {
            Self::Wreg32(packet) => packet.ctl().predicate(),
            Self::WregBulk(packet) => packet.ctl().predicate(),
            Self::MsgLong(packet) => packet.ctl().predicate(),
            Self::MsgProt(packet) => packet.ctl().predicate(),
            Self::CpDma(packet) => packet.ctl().predicate(),
            Self::Repeat(packet) => packet.ctl().predicate(),
            Self::Fence(packet) => packet.ctl().predicate(),
            Self::ArbPoint(packet) => packet.ctl().predicate(),
            Self::CbList(packet) => packet.ctl().predicate(),
            Self::LoadAndExe(packet) => packet.ctl().predicate(),
            Self::Wreg64Short(packet) => packet.ctl().predicate(),
            Self::Wreg64Long(packet) => packet.ctl().predicate(),
            _ => return None,
        })
    }

    /// Bytes in the packet.
    pub const fn len(&self) -> usize {
        match self {
            Self::Wreg32(_) => Wreg32::LEN,
            Self::WregBulk(packet) => packet.as_bytes().len(),
            Self::MsgLong(_) => MsgLong::LEN,
            Self::MsgShort(_) => MsgShort::LEN,
            Self::CpDma(_) => CpDma::LEN,
            Self::Repeat(_) => Repeat::LEN,
            Self::MsgProt(_) => MsgProt::LEN,
            Self::Fence(_) => Fence::LEN,
            Self::LinDma(_) => LinDma::LEN,
            Self::Nop(_) => Nop::LEN,
            Self::Stop(_) => Stop::LEN,
            Self::ArbPoint(_) => ArbPoint::LEN,
            Self::Wait(_) => Wait::LEN,
            Self::CbList(_) => CbList::LEN,
            Self::LoadAndExe(_) => LoadAndExe::LEN,
            Self::WriteArcStream(packet) => packet.as_bytes().len(),
            Self::Wreg64Short(_) => Wreg64Short::LEN,
            Self::Wreg64Long(_) => Wreg64Long::LEN,
            Self::Other { bytes, .. } => bytes.len(),
        }
    }

    /// Never: a packet has at least its header. Here because [`len`](Self::len) is.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the packet's bytes.
    pub fn emit(&self, sink: &mut (impl Sink + ?Sized)) -> Result<(), Full> {
        match self {
            Self::Wreg32(packet) => sink.put(&packet.to_bytes()),
            Self::WregBulk(packet) => sink.put(packet.as_bytes()),
            Self::MsgLong(packet) => sink.put(&packet.to_bytes()),
            Self::MsgShort(packet) => sink.put(&packet.to_bytes()),
            Self::CpDma(packet) => sink.put(&packet.to_bytes()),
            Self::Repeat(packet) => sink.put(&packet.to_bytes()),
            Self::MsgProt(packet) => sink.put(&packet.to_bytes()),
            Self::Fence(packet) => sink.put(&packet.to_bytes()),
            Self::LinDma(packet) => sink.put(&packet.to_bytes()),
            Self::Nop(packet) => sink.put(&packet.to_bytes()),
            Self::Stop(packet) => sink.put(&packet.to_bytes()),
            Self::ArbPoint(packet) => sink.put(&packet.to_bytes()),
            Self::Wait(packet) => sink.put(&packet.to_bytes()),
            Self::CbList(packet) => sink.put(&packet.to_bytes()),
            Self::LoadAndExe(packet) => sink.put(&packet.to_bytes()),
            Self::WriteArcStream(packet) => sink.put(packet.as_bytes()),
            Self::Wreg64Short(packet) => sink.put(&packet.to_bytes()),
            Self::Wreg64Long(packet) => sink.put(&packet.to_bytes()),
            Self::Other { bytes, .. } => sink.put(bytes),
        }
    }
}

/// Walks a command buffer: `(offset, packet)`, or the offset's error, after which it ends.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    offset: usize,
    failed: bool,
}

impl<'a> Packets<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            offset: 0,
            failed: false,
        }
    }

    /// The offset of the next packet, or of the bytes that are none.
    pub const fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<(usize, Packet<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..)?;
        if rest.is_empty() || self.failed {
            return None;
        }
        match Packet::decode(rest) {
            Ok(packet) => {
                let offset = self.offset;
                self.offset += packet.len();
                Some(Ok((offset, packet)))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

impl core::iter::FusedIterator for Packets<'_> {}
