//! Packets that move data: messages, fences, and the DMA engine's.

use bitfield_struct::bitfield;

use super::macros::{join8, join16, join24};
use crate::addr::DeviceVa;
use crate::gaudi2::sync::{MON_PAY_ADDRL, MonArm, MonConfig, SobUpdate};

/// Control word of a NOP.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NopCtl {
    #[bits(24)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xa, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue (hl-thunk `swtc`; the driver's header calls the bit RB).
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Does nothing.
    Nop(NopCtl, 8) {
        reserved: u32
    }
}

impl Nop {
    /// A NOP without barriers.
    #[inline]
    pub const fn new() -> Self {
        Self {
            ctl: const { NopCtl::new() },
            reserved: 0,
        }
    }

    #[inline]
    pub(super) const fn from_words(reserved: u32, ctl: u32) -> Self {
        Self {
            ctl: NopCtl::from_bits(ctl),
            reserved,
        }
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join8(self.reserved, self.ctl.into_bits())
    }
}

impl Default for Nop {
    fn default() -> Self {
        Self::new()
    }
}

/// Control word and packet of MSG_LONG and MSG_PROT, which have the same fields.
macro_rules! message {
    ($ctl:ident, $ctl_doc:literal, $opcode:literal, $(#[$doc:meta])* $name:ident) => {
        #[doc = $ctl_doc]
        #[bitfield(u32)]
        #[derive(PartialEq, Eq)]
        pub struct $ctl {
            /// The predicate that must hold; 0 always does.
            #[bits(5)]
            pub predicate: u8,
            #[bits(11)]
            __: u16,
            /// May pass other writes.
            pub weakly_ordered: bool,
            /// Host caches are not asked.
            pub no_snoop: bool,
            #[bits(2)]
            __: u8,
            /// 0 writes the value, 1 a time stamp.
            #[bits(2)]
            pub op: u8,
            #[bits(2)]
            __: u8,
            /// The opcode.
            #[bits(5, default = $opcode, access = RO)]
            pub opcode: u8,
            /// Engine barrier.
            pub eb: bool,
            /// Switch of the command queue.
            pub swtc: bool,
            /// Message barrier.
            pub mb: bool,
        }

        packet! {
            $(#[$doc])*
            $name($ctl, 16) {
                value: u32,
                address: u64
            }
        }

        impl $name {
            /// Writes `value` to `address`.
            #[inline]
            pub const fn new(address: DeviceVa, value: u32) -> Self {
                Self {
                    ctl: const { $ctl::new() },
                    value,
                    address: address.0,
                }
            }

            /// Writes a time stamp to `address`.
            #[inline]
            pub const fn time_stamp(address: DeviceVa) -> Self {
                let mut this = Self::new(address, 0);
                this.ctl = this.ctl.with_op(1);
                this
            }

            #[inline]
            pub(super) const fn from_words(value: u32, ctl: u32, address: u64) -> Self {
                Self {
                    ctl: $ctl::from_bits(ctl),
                    value,
                    address,
                }
            }

            /// What is written.
            #[inline]
            pub const fn value(&self) -> u32 {
                self.value
            }

            /// Where.
            #[inline]
            pub const fn address(&self) -> DeviceVa {
                DeviceVa(self.address)
            }

            /// The packet's bytes.
            #[inline]
            pub const fn to_bytes(&self) -> [u8; Self::LEN] {
                join16(self.value, self.ctl.into_bits(), self.address)
            }
        }
    };
}

message! {
    MsgLongCtl, "Control word of a MSG_LONG.", 0x3,
    /// Writes a 32-bit word to an address: a register, device memory or host memory.
    MsgLong
}

message! {
    MsgProtCtl, "Control word of a MSG_PROT.", 0x7,
    /// MSG_LONG with the rights that the queue manager gives its command processors (`GLBL_PROT`),
    /// which are a user's for a user's queues (driver gaudi2_masks.h `QMAN_MAKE_TRUSTED`).
    MsgProt
}

/// Control word of a MSG_SHORT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct MsgShortCtl {
    /// Added to the base, in bytes.
    pub offset: u16,
    /// May pass other writes.
    pub weakly_ordered: bool,
    /// Host caches are not asked.
    pub no_snoop: bool,
    /// The header names it `dw`; what it does is in no public header.
    pub dw: bool,
    __: bool,
    /// 0 writes the value, 1 a time stamp.
    #[bits(2)]
    pub op: u8,
    /// Which of the stream's four bases.
    #[bits(2)]
    pub base: u8,
    /// The opcode.
    #[bits(5, default = 0x4, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

/// A base of MSG_SHORT, as the driver sets them (gaudi2.c:5395 `gaudi2_init_qman_cp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MsgBase {
    /// `MON_PAY_ADDRL_0` of die core 0.
    Monitors = 0,
    /// `SOB_OBJ_0` of die core 0.
    Sobs = 1,
    /// Not set by the driver.
    Second = 2,
    /// Not set by the driver.
    Third = 3,
}

packet! {
    /// Writes a 32-bit word to a base register plus a 16-bit offset.
    MsgShort(MsgShortCtl, 8) {
        value: u32
    }
}

impl MsgShort {
    /// Writes `value` to `base` + `offset` bytes.
    #[inline]
    pub const fn new(base: MsgBase, offset: u16, value: u32) -> Self {
        Self {
            ctl: const { MsgShortCtl::new() }
                .with_base(base as u8)
                .with_offset(offset),
            value,
        }
    }

    /// Changes a sync object. `None` where the object is out of a 16-bit offset's reach.
    #[inline]
    pub const fn sob(sob: u32, update: SobUpdate) -> Option<Self> {
        Self::at(MsgBase::Sobs, 0, sob, update.into_bits())
    }

    /// Says where a monitor writes, low half. `None` where the monitor is out of reach, as in the
    /// ones below.
    #[inline]
    pub const fn monitor_address_low(monitor: u32, address: DeviceVa) -> Option<Self> {
        Self::at(MsgBase::Monitors, 0, monitor, address.0 as u32)
    }

    /// Says where a monitor writes, high half.
    #[inline]
    pub const fn monitor_address_high(monitor: u32, address: DeviceVa) -> Option<Self> {
        use crate::gaudi2::sync::MON_PAY_ADDRH;
        Self::at(
            MsgBase::Monitors,
            MON_PAY_ADDRH - MON_PAY_ADDRL,
            monitor,
            (address.0 >> 32) as u32,
        )
    }

    /// Says what a monitor writes.
    #[inline]
    pub const fn monitor_data(monitor: u32, data: u32) -> Option<Self> {
        use crate::gaudi2::sync::MON_PAY_DATA;
        Self::at(MsgBase::Monitors, MON_PAY_DATA - MON_PAY_ADDRL, monitor, data)
    }

    /// Says how a monitor fires.
    #[inline]
    pub const fn monitor_config(monitor: u32, config: MonConfig) -> Option<Self> {
        use crate::gaudi2::sync::MON_CONFIG;
        Self::at(
            MsgBase::Monitors,
            MON_CONFIG - MON_PAY_ADDRL,
            monitor,
            config.into_bits(),
        )
    }

    /// Arms a monitor.
    #[inline]
    pub const fn monitor_arm(monitor: u32, arm: MonArm) -> Option<Self> {
        use crate::gaudi2::sync::MON_ARM;
        Self::at(
            MsgBase::Monitors,
            MON_ARM - MON_PAY_ADDRL,
            monitor,
            arm.into_bits(),
        )
    }

    #[inline]
    const fn at(base: MsgBase, register: u32, index: u32, value: u32) -> Option<Self> {
        use crate::gaudi2::sync::{MONITORS, SOBS};
        let limit = if matches!(base, MsgBase::Sobs) {
            SOBS
        } else {
            MONITORS
        };
        if index >= limit {
            return None;
        }
        Some(Self::new(base, (register + index * 4) as u16, value))
    }

    #[inline]
    pub(super) const fn from_words(value: u32, ctl: u32) -> Self {
        Self {
            ctl: MsgShortCtl::from_bits(ctl),
            value,
        }
    }

    /// What is written.
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

/// First word of a FENCE.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FenceCfg {
    /// Taken off the counter when the stream goes on.
    #[bits(4)]
    pub decrement: u8,
    #[bits(12)]
    __: u16,
    /// The stream goes on when the counter is at or above.
    pub target: u8,
    #[bits(6)]
    __: u8,
    /// Which of the stream's four counters.
    #[bits(2)]
    pub id: u8,
}

/// Control word of a FENCE.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FenceCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    #[bits(19)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0x8, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Holds the stream until a fence counter reaches a target.
    Fence(FenceCtl, 8) {
        cfg: FenceCfg
    }
}

impl Fence {
    /// Waits for counter `id` to reach `target`, then takes `decrement` off it. `None` where `id` >
    /// 3 or `decrement` > 15.
    #[inline]
    pub const fn new(id: u8, target: u8, decrement: u8) -> Option<Self> {
        if id > 3 || decrement > 15 {
            return None;
        }
        let cfg = FenceCfg::new()
            .with_id(id)
            .with_target(target)
            .with_decrement(decrement);
        Some(Self {
            ctl: const { FenceCtl::new() },
            cfg,
        })
    }

    #[inline]
    pub(super) const fn from_words(cfg: u32, ctl: u32) -> Self {
        Self {
            ctl: FenceCtl::from_bits(ctl),
            cfg: FenceCfg::from_bits(cfg),
        }
    }

    /// What is waited for.
    #[inline]
    pub const fn cfg(&self) -> FenceCfg {
        self.cfg
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join8(self.cfg.into_bits(), self.ctl.into_bits())
    }
}

/// Control word of a LIN_DMA.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LinDmaCtl {
    /// When done, write the engine's `WR_COMP_WDATA` to its `WR_COMP_ADDR`.
    pub wrcomp: bool,
    /// Byte order change while copying; 0 for none.
    #[bits(2)]
    pub endian: u8,
    __: bool,
    /// Fill with a pattern instead of copying.
    pub memset: bool,
    __: bool,
    /// Convert from bf16.
    pub bf16: bool,
    /// Convert from fp16.
    pub fp16: bool,
    /// Count the context id up.
    pub context_id_inc: bool,
    /// Add the engine's offset register 0.
    pub add_offset_0: bool,
    #[bits(14)]
    __: u16,
    /// The opcode.
    #[bits(5, default = 0x9, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

/// How a LIN_DMA changes the order of bytes (hl-thunk `enum hltests_endian_swap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndianSwap {
    /// Leaves them.
    None = 0,
    /// Turns round every two bytes.
    Two = 1,
    /// … every four.
    Four = 2,
    /// … every eight.
    Eight = 3,
}

impl EndianSwap {
    /// What two bits of a control word say.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Two,
            2 => Self::Four,
            3 => Self::Eight,
            _ => Self::None,
        }
    }

    /// Bytes that are turned round together; 1 where they are left.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self as u8
    }
}

/// Where a LIN_DMA takes its bytes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory.
    Copy(DeviceVa),
    /// A repeated pattern, lowest byte first.
    Set(u32),
}

packet! {
    /// Copies or fills up to 4 GiB - 1 of memory.
    LinDma(LinDmaCtl, 24) {
        size: u32,
        source: u64,
        destination: u64
    }
}

impl LinDma {
    /// Copies `size` bytes.
    #[inline]
    pub const fn copy(destination: DeviceVa, source: DeviceVa, size: u32) -> Self {
        Self {
            ctl: const { LinDmaCtl::new() },
            size,
            source: source.0,
            destination: destination.0,
        }
    }

    /// Fills `size` bytes with a pattern, its lowest byte first.
    ///
    /// The driver fills through this packet with a 32-bit value in the 64-bit source field
    /// (gaudi2.c:10618).
    // guess: bits 63..32 of the field are not used; no public text says whether the pattern could
    // be 64 bits wide.
    #[inline]
    pub const fn memset(destination: DeviceVa, pattern: u32, size: u32) -> Self {
        let ctl = const { LinDmaCtl::new().with_memset(true) };
        Self {
            ctl,
            size,
            source: pattern as u64,
            destination: destination.0,
        }
    }

    /// Signals through the engine's write-completion registers when done.
    #[must_use]
    #[inline]
    pub const fn with_write_completion(mut self, on: bool) -> Self {
        self.ctl = self.ctl.with_wrcomp(on);
        self
    }

    /// Changes the order of bytes while copying.
    #[must_use]
    #[inline]
    pub const fn with_swap(mut self, swap: EndianSwap) -> Self {
        self.ctl = self.ctl.with_endian(swap as u8);
        self
    }

    /// How the order of bytes changes.
    #[inline]
    pub const fn swap(&self) -> EndianSwap {
        EndianSwap::from_bits(self.ctl.endian())
    }

    #[inline]
    pub(super) const fn from_words(size: u32, ctl: u32, source: u64, destination: u64) -> Self {
        Self {
            ctl: LinDmaCtl::from_bits(ctl),
            size,
            source,
            destination,
        }
    }

    /// Bytes to move.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Where they come from.
    #[inline]
    pub const fn source(&self) -> Source {
        if self.ctl.memset() {
            Source::Set(self.source as u32)
        } else {
            Source::Copy(DeviceVa(self.source))
        }
    }

    /// Where they go.
    #[inline]
    pub const fn destination(&self) -> DeviceVa {
        DeviceVa(self.destination)
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join24(self.size, self.ctl.into_bits(), self.source, self.destination)
    }
}

predicated!(MsgLong, MsgProt, Fence);
