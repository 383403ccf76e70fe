//! Packets that write registers of the queue manager's own engine.
//!
//! A register is named by its offset in the 64 KiB of the configuration space that hold queue
//! manager and engine: `0xa000` is the queue manager's start, `0xb000` the engine's (vendor graph
//! compiler, gaudi2 `QMAN_BLOCK_BASE`, `DMA_BLOCK_BASE`).

use bitfield_struct::bitfield;

use super::macros::{join8, join16};
use super::{HEADER, Opcode, word};

/// Control word of a WREG_32.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Wreg32Ctl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    /// The value is a scalar, whose number is in bits 1..0 of the first word.
    pub reg: bool,
    #[bits(2)]
    __: u8,
    /// The register, bytes.
    pub offset: u16,
    /// The opcode.
    #[bits(5, default = 0x1, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Writes a register.
    Wreg32(Wreg32Ctl, 8) {
        value: u32
    }
}

impl Wreg32 {
    /// Writes `value` to the register at `offset`.
    #[inline]
    pub const fn new(offset: u16, value: u32) -> Self {
        Self {
            ctl: const { Wreg32Ctl::new() }.with_offset(offset),
            value,
        }
    }

    /// Writes scalar `scalar` to the register at `offset`. `None` where `scalar` > 3.
    #[inline]
    pub const fn from_scalar(offset: u16, scalar: u8) -> Option<Self> {
        if scalar > 3 {
            return None;
        }
        Some(Self {
            ctl: const { Wreg32Ctl::new() }.with_offset(offset).with_reg(true),
            value: scalar as u32,
        })
    }

    #[inline]
    pub(super) const fn from_words(value: u32, ctl: u32) -> Self {
        Self {
            ctl: Wreg32Ctl::from_bits(ctl),
            value,
        }
    }

    /// What is written; the scalar's number in bits 1..0 where `reg` is set.
    #[inline]
    pub const fn value(&self) -> u32 {
        self.value
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join8(self.value, self.ctl.into_bits())
    }
}

/// Control word of a WREG_BULK.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WregBulkCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    #[bits(3)]
    __: u8,
    /// The first register, bytes.
    pub offset: u16,
    /// The opcode.
    #[bits(5, default = 0x2, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

/// Control word of a WRITE_ARC_STREAM.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteArcStreamCtl {
    #[bits(24)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0x10, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

/// A packet of a header and 64-bit values: a view of all its bytes.
macro_rules! bulk {
    ($(#[$doc:meta])* $name:ident($ctl:ident)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a> {
            bytes: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Values in one packet at most: 16 bits count them.
            pub const MAX_VALUES: usize = 0xffff;

            #[inline]
            pub(super) const fn from_bytes(bytes: &'a [u8]) -> Self {
                Self { bytes }
            }

            // Writes header and values to the start of `buffer`.
            fn fill(buffer: &'a mut [u8], ctl: $ctl, values: &[u64]) -> Option<Self> {
                if values.len() > Self::MAX_VALUES {
                    return None;
                }
                let bytes = buffer.get_mut(..HEADER + values.len() * 8)?;
                let (head, rest) = bytes.split_at_mut(HEADER);
                head.copy_from_slice(&join8(values.len() as u32, ctl.into_bits()));
                for (to, value) in rest.chunks_exact_mut(8).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
                Some(Self { bytes })
            }

            /// The control word.
            pub fn ctl(&self) -> $ctl {
                $ctl::from_bits(word(self.bytes, 1))
            }

            /// The values, in order.
            pub fn values(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
                self.bytes.get(HEADER..).unwrap_or_default().chunks_exact(8).map(|value| {
                    u64::from(word(value, 0)) | u64::from(word(value, 1)) << 32
                })
            }

            /// All bytes of the packet.
            #[inline]
            pub const fn as_bytes(&self) -> &'a [u8] {
                self.bytes
            }
        }
    };
}

bulk! {
    /// Writes registers in a row, two with each value: its lower half first.
    WregBulk(WregBulkCtl)
}

impl<'a> WregBulk<'a> {
    /// Makes a packet in `buffer` that writes `values` from the register at `offset` on, where
    /// predicate `predicate` holds. `None` where the buffer is too short, there are too many
    /// values, or `predicate` > 31.
    pub fn build(buffer: &'a mut [u8], offset: u16, values: &[u64], predicate: u8) -> Option<Self> {
        if predicate >= 32 {
            return None;
        }
        let ctl = const { WregBulkCtl::new() }
            .with_offset(offset)
            .with_predicate(predicate);
        Self::fill(buffer, ctl, values)
    }
}

bulk! {
    /// Sends words to the ARC beside the queue manager.
    WriteArcStream(WriteArcStreamCtl)
}

impl<'a> WriteArcStream<'a> {
    /// Makes a packet in `buffer`. `None` where the buffer is too short or there are too many
    /// values.
    pub fn build(buffer: &'a mut [u8], values: &[u64]) -> Option<Self> {
        Self::fill(buffer, const { WriteArcStreamCtl::new() }, values)
    }
}

/// Control word of a WREG_64_SHORT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Wreg64ShortCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    /// Which of the queue manager's sixteen base registers.
    #[bits(4)]
    pub base: u8,
    /// The offset is a scalar, whose number is in bits 1..0 of the first word.
    pub reg: bool,
    /// The first of the two registers, in words.
    #[bits(14)]
    pub dreg_offset: u16,
    /// The opcode.
    #[bits(5, default = 0x12, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Writes a base register plus a signed 32-bit offset to two registers (vendor graph compiler,
    /// gaudi2 `WriteReg64`).
    Wreg64Short(Wreg64ShortCtl, 8) {
        offset: u32
    }
}

impl Wreg64Short {
    /// Writes base register `base` plus `offset` to the registers at `register` and `register` + 4.
    /// `None` where `base` > 15 or `register` is not a multiple of 4.
    #[inline]
    pub const fn new(register: u16, base: u8, offset: i32) -> Option<Self> {
        if base > 15 || register % 4 != 0 {
            return None;
        }
        let ctl = const { Wreg64ShortCtl::new() }
            .with_base(base)
            .with_dreg_offset(register / 4);
        Some(Self {
            ctl,
            offset: offset as u32,
        })
    }

    #[inline]
    pub(super) const fn from_words(offset: u32, ctl: u32) -> Self {
        Self {
            ctl: Wreg64ShortCtl::from_bits(ctl),
            offset,
        }
    }

    /// What is added to the base register; the scalar's number in bits 1..0 where `reg` is set.
    #[inline]
    pub const fn offset(&self) -> i32 {
        self.offset as i32
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join8(self.offset, self.ctl.into_bits())
    }
}

/// First word of a WREG_64_LONG.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Wreg64LongCfg {
    /// Writes the lower register.
    pub low: bool,
    /// Writes the upper register.
    pub high: bool,
    #[bits(30)]
    __: u32,
}

/// Control word of a WREG_64_LONG.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Wreg64LongCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    /// Which of the queue manager's sixteen base registers.
    #[bits(4)]
    pub base: u8,
    /// Adds the base register; without it the value is written as it is (`source: inferred` from
    /// the name: public programs all set it).
    pub rel: bool,
    /// The first of the two registers, in words.
    #[bits(14)]
    pub dreg_offset: u16,
    /// The opcode.
    #[bits(5, default = 0x13, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Writes a 64-bit value, or a base register plus a value, to two registers or one of them
    /// (vendor graph compiler, gaudi2 `WriteReg64`).
    Wreg64Long(Wreg64LongCtl, 16) {
        cfg: Wreg64LongCfg,
        offset: u64
    }
}

impl Wreg64Long {
    /// Writes `value` to the registers at `register` and `register` + 4. `None` where `register` is
    /// not a multiple of 4.
    #[inline]
    pub const fn absolute(register: u16, value: u64) -> Option<Self> {
        if register % 4 != 0 {
            return None;
        }
        Some(Self {
            ctl: const { Wreg64LongCtl::new() }.with_dreg_offset(register / 4),
            cfg: Wreg64LongCfg::new().with_low(true).with_high(true),
            offset: value,
        })
    }

    /// Writes base register `base` plus `offset`. `None` where `base` > 15 or `register` is not a
    /// multiple of 4.
    #[inline]
    pub const fn relative(register: u16, base: u8, offset: u64) -> Option<Self> {
        if base > 15 {
            return None;
        }
        match Self::absolute(register, offset) {
            Some(mut this) => {
                this.ctl = this.ctl.with_base(base).with_rel(true);
                Some(this)
            }
            None => None,
        }
    }

    /// Chooses which of the two registers are written.
    #[must_use]
    #[inline]
    pub const fn with_halves(mut self, low: bool, high: bool) -> Self {
        self.cfg = self.cfg.with_low(low).with_high(high);
        self
    }

    #[inline]
    pub(super) const fn from_words(cfg: u32, ctl: u32, offset: u64) -> Self {
        Self {
            ctl: Wreg64LongCtl::from_bits(ctl),
            cfg: Wreg64LongCfg::from_bits(cfg),
            offset,
        }
    }

    /// Which registers are written.
    #[inline]
    pub const fn cfg(&self) -> Wreg64LongCfg {
        self.cfg
    }

    /// The value, or what is added to the base register.
    #[inline]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join16(self.cfg.into_bits(), self.ctl.into_bits(), self.offset)
    }
}

predicated!(Wreg32, Wreg64Short, Wreg64Long);

// A view is of a packet whose opcode is known.
const _: () = assert!(
    WregBulkCtl::new().opcode() == Opcode::WREG_BULK.number()
        && WriteArcStreamCtl::new().opcode() == Opcode::WRITE_ARC_STREAM.number()
);
