//! Command-processor packets: bytes to packets and back (gaudi2_packets.h of the driver, which has
//! the words, and of hl-thunk, which has the fields in them).
//!
//! A packet is a 32-bit word, a 32-bit control word with the opcode in bits 28..24, and what
//! follows; all little-endian. A command buffer is packets without gaps.
//!
//! - [`Packets`] walks any bytes: it never panics and always ends, at the first error at the
//!   latest.
//! - [`Packet::emit`] returns the bytes exactly, bits without a name included.
//! - A packet is one row of the table here, and one bit field in `layout`, which is also its
//!   builder: `Wait::EMPTY.with_cycles(8)`.
//! - A builder costs what storing its words costs: all of it is inlined across crates.

#![allow(
    clippy::result_unit_err,
    clippy::missing_errors_doc,
    reason = "the checked setters that bitfield-struct writes have nothing more to say than that a value does not fit"
)]

mod build;
mod layout;

use core::fmt;

pub use build::{EndianSwap, MsgBase, Source};
pub use layout::*;

/// Bytes in the words that every packet starts with.
pub const HEADER: usize = 8;
/// Bytes in the longest packet of a fixed size.
pub const MAX_FIXED: usize = 24;

/// What a packet is, by number (gaudi2_packets.h `enum packet_id`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(u8);

/// Declares opcodes, the packet of each, and its predicate if it has one.
macro_rules! packets {
    ($($(#[$doc:meta])* $opcode:ident = $number:literal, $kind:ident $(<$life:lifetime>)?
       $(, [$($predicate:tt)+])?;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $opcode: Opcode = Opcode($number);)*
            /// Marks the last read; its size is in no public header.
            pub const LAST_READ_FROM_ARC: Opcode = Opcode(0x11);

            /// Returns the header's name; `None` of a number without one.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$opcode => Some(stringify!($opcode)),)*
                    Self::LAST_READ_FROM_ARC => Some("LAST_READ_FROM_ARC"),
                    _ => None,
                }
            }

            // Bytes in a packet by its first word; `None` of an opcode without a packet.
            const fn size(self, first: u32) -> Option<usize> {
                match self {
                    $(Self::$opcode => Some($kind::length(first)),)*
                    _ => None,
                }
            }
        }

        /// One packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Packet<'a> {
            $($(#[$doc])* $kind($kind $(<$life>)?),)*
        }

        impl<'a> Packet<'a> {
            fn view(opcode: Opcode, bytes: &'a [u8]) -> Option<Self> {
                Some(match opcode {
                    $(Opcode::$opcode => Self::$kind($kind::view(bytes)),)*
                    _ => return None,
                })
            }

            /// Returns the packet's opcode.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$kind(_) => Opcode::$opcode,)*
                }
            }

            /// Returns the predicate that must hold for the packet to be executed, 0 for always;
            /// `None` of a packet that has none.
            pub fn predicate(&self) -> Option<u8> {
                match self {
                    $($(Self::$kind(packet) => Some(packet.$($predicate)+),)?)*
                    _ => None,
                }
            }

            /// Passes the packet's bytes to `put`.
            pub fn emit<R>(&self, put: impl FnOnce(&[u8]) -> R) -> R {
                match self {
                    $(Self::$kind(packet) => put(packet.to_bytes().as_ref()),)*
                }
            }
        }
    };
}

packets! {
    /// Writes a register of the engine.
    WREG_32 = 0x1, Wreg32, [predicate()];
    /// Writes registers of the engine in a row.
    WREG_BULK = 0x2, WregBulk<'a>, [head().predicate()];
    /// Writes a word to any address.
    MSG_LONG = 0x3, MsgLong, [predicate()];
    /// Writes a word to a base register plus an offset.
    MSG_SHORT = 0x4, MsgShort;
    /// Hands a command buffer to a command processor.
    CP_DMA = 0x5, CpDma, [predicate()];
    /// Repeats packets.
    REPEAT = 0x6, Repeat, [predicate()];
    /// Writes a word to an address, with other rights.
    MSG_PROT = 0x7, MsgProt, [predicate()];
    /// Waits for a fence counter.
    FENCE = 0x8, Fence, [predicate()];
    /// Copies or fills memory.
    LIN_DMA = 0x9, LinDma;
    /// Does nothing; carries barriers.
    NOP = 0xa, Nop;
    /// Stops the processor.
    STOP = 0xb, Stop;
    /// Requests the arbiter's grant, or releases it.
    ARB_POINT = 0xc, ArbPoint, [predicate()];
    /// Adds to a fence counter after some cycles.
    WAIT = 0xd, Wait;
    /// Executes an entry of a table.
    CB_LIST = 0xe, CbList, [ctl.predicate()];
    /// Loads predicates or scalars, and executes.
    LOAD_AND_EXE = 0xf, LoadAndExe, [predicate()];
    /// Sends words to the ARC.
    WRITE_ARC_STREAM = 0x10, WriteArcStream<'a>;
    /// Writes a base register plus an offset to two registers.
    WREG_64_SHORT = 0x12, Wreg64Short, [predicate()];
    /// Writes a 64-bit value to two registers.
    WREG_64_LONG = 0x13, Wreg64Long, [predicate()];
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

// The first bytes. Callers pass at least `N`: a packet's length is checked when it is decoded.
#[inline]
fn start<const N: usize>(bytes: &[u8]) -> [u8; N] {
    debug_assert!(bytes.len() >= N, "{} bytes of a packet, not {N}", bytes.len());
    bytes.first_chunk().copied().unwrap_or([0; N])
}

/// Returns the control word of the packet that starts here; zero where the bytes end before it.
pub fn ctl(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |head| (u64::from_le_bytes(*head) >> 32) as u32)
}

/// Whether a control word asks for an engine barrier; its place is the same in every packet.
pub const fn engine_barrier(ctl: u32) -> bool {
    ctl >> 29 & 1 != 0
}

/// Returns the number of bytes in the packet that starts here, by its first eight bytes.
///
/// # Errors
/// - `Truncated` if there are fewer than eight bytes.
/// - `UnknownOpcode` if the opcode has no packet.
pub fn size(bytes: &[u8]) -> Result<usize, DecodeError> {
    let available = bytes.len();
    let head = bytes.first_chunk().ok_or(DecodeError::Truncated {
        needed: HEADER,
        available,
    })?;
    let head = u64::from_le_bytes(*head);
    let opcode = Opcode::of((head >> 32) as u32);
    opcode.size(head as u32).ok_or(DecodeError::UnknownOpcode(opcode))
}

impl<'a> Packet<'a> {
    /// Returns the packet at the start of `bytes`.
    ///
    /// # Errors
    /// - `Truncated` if the bytes end within the packet.
    /// - `UnknownOpcode` if the opcode has no packet.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (needed, available) = (size(bytes)?, bytes.len());
        let whole = bytes
            .get(..needed)
            .ok_or(DecodeError::Truncated { needed, available })?;
        let opcode = Opcode::of(ctl(bytes));
        Self::view(opcode, whole).ok_or(DecodeError::UnknownOpcode(opcode))
    }

    /// Returns the number of bytes in the packet.
    #[expect(clippy::len_without_is_empty, reason = "a packet has at least its header")]
    pub fn len(&self) -> usize {
        self.emit(<[u8]>::len)
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
