//! The layout of each packet of a fixed length: one bit field per packet.
//!
//! Fields are named by hl-thunk's gaudi2_packets.h; what a field does is documented there, in
//! hl-thunk's tests, or marked `source: inferred`. Registers of WREG packets are named by their
//! offset in the 64 KiB of the configuration space that hold queue manager and engine: `0xa000` is
//! the queue manager's start, `0xb000` the engine's (vendor graph compiler, gaudi2
//! `QMAN_BLOCK_BASE`, `DMA_BLOCK_BASE`).

use bitfield_struct::bitfield;

use super::{HEADER, Opcode, start};
use crate::addr::DeviceVa;

/// Declares a bit field that contains a control word: the fields below the opcode, the opcode and
/// the three flags above it, and the fields after the control word.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident: $bits:ident = $opcode:ident << $shift:literal
     { $($low:tt)* } { $($high:tt)* }) => {
        $(#[$doc])*
        #[bitfield($bits, new = false, default = false)]
        #[derive(PartialEq, Eq)]
        pub struct $name {
            $($low)*
            /// The opcode.
            #[bits(5, access = RO)]
            pub opcode: u8,
            /// Engine barrier (EB): waits until the engine has completed all earlier work.
            pub engine_barrier: bool,
            /// Switch of the command queue (hl-thunk `swtc`; the driver's header calls the bit RB).
            pub swtc: bool,
            /// Message barrier (MB): waits until all earlier messages have arrived.
            pub message_barrier: bool,
            $($high)*
        }

        impl $name {
            /// The opcode, and zero in each field.
            pub const EMPTY: Self = Self((Opcode::$opcode.number() as $bits) << $shift);
        }
    };
}

/// Declares a packet of 8 or 16 bytes: its first two words, and the 64 bits after them.
macro_rules! packet {
    ($(#[$doc:meta])* $name:ident: $bits:ident = $opcode:ident
     { $($low:tt)* } $({ $($high:tt)* })?) => {
        fields! {
            $(#[$doc])*
            $name: $bits = $opcode << 56 { $($low)* } { $($($high)*)? }
        }

        impl $name {
            /// Bytes in the packet.
            pub const LEN: usize = size_of::<$bits>();

            #[inline]
            pub(super) const fn length(_first: u32) -> usize {
                Self::LEN
            }

            #[inline]
            pub(super) fn view(bytes: &[u8]) -> Self {
                Self($bits::from_le_bytes(start(bytes)))
            }

            /// Returns the packet's bytes.
            #[inline]
            pub const fn to_bytes(&self) -> [u8; Self::LEN] {
                self.0.to_le_bytes()
            }
        }
    };
}

/// Declares a packet of 24 bytes: a word, the control word, and two addresses.
macro_rules! packet24 {
    ($(#[$doc:meta])* $name:ident($ctl:ident) = $opcode:ident { $($low:tt)* } {
        $(#[$first_doc:meta])* $first:ident,
        $(#[$one_doc:meta])* $one:ident,
        $(#[$two_doc:meta])* $two:ident,
    }) => {
        fields! {
            #[doc = concat!("Control word of [`", stringify!($name), "`].")]
            $ctl: u32 = $opcode << 24 { $($low)* } {}
        }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            /// The control word.
            pub ctl: $ctl,
            $(#[$first_doc])*
            pub $first: u32,
            $(#[$one_doc])*
            pub $one: DeviceVa,
            $(#[$two_doc])*
            pub $two: DeviceVa,
        }

        impl $name {
            /// Bytes in the packet.
            pub const LEN: usize = 24;

            #[inline]
            pub(super) const fn length(_first: u32) -> usize {
                Self::LEN
            }

            #[inline]
            pub(super) fn view(bytes: &[u8]) -> Self {
                let long = |at| u64::from_le_bytes(start(bytes.get(at..).unwrap_or_default()));
                let head = long(0);
                Self {
                    ctl: $ctl((head >> 32) as u32),
                    $first: head as u32,
                    $one: DeviceVa(long(8)),
                    $two: DeviceVa(long(16)),
                }
            }

            /// Returns the packet's bytes.
            #[inline]
            pub const fn to_bytes(&self) -> [u8; Self::LEN] {
                let head = self.$first as u64 | (self.ctl.0 as u64) << 32;
                // By name and not by index: the compiler then stores three words.
                let [a, b, c, d, e, f, g, h] = head.to_le_bytes();
                let [i, j, k, l, m, n, o, p] = self.$one.0.to_le_bytes();
                let [q, r, s, t, u, v, w, x] = self.$two.0.to_le_bytes();
                [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x]
            }

            /// Sets the engine barrier.
            #[must_use]
            #[inline]
            pub const fn with_engine_barrier(mut self, on: bool) -> Self {
                self.ctl = self.ctl.with_engine_barrier(on);
                self
            }

            /// Sets the message barrier.
            #[must_use]
            #[inline]
            pub const fn with_message_barrier(mut self, on: bool) -> Self {
                self.ctl = self.ctl.with_message_barrier(on);
                self
            }
        }
    };
}

packet! {
    /// Writes a register.
    Wreg32: u64 = WREG_32 {
        /// What is written; the scalar's number in bits 1..0 where `reg` is set.
        pub value: u32,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        /// The value is a scalar, whose number is in bits 1..0 of the first word.
        pub reg: bool,
        #[bits(2)]
        __: u8,
        /// The register, bytes.
        pub offset: u16,
    }
}

/// Declares MSG_LONG and MSG_PROT, which have the same fields.
macro_rules! message {
    ($($(#[$doc:meta])* $name:ident = $opcode:ident;)*) => {
        $(packet! {
            $(#[$doc])*
            $name: u128 = $opcode {
                /// What is written.
                pub value: u32,
                /// The predicate that must hold; 0 always does.
                #[bits(5)]
                pub predicate: u8,
                #[bits(11)]
                __: u16,
                /// May pass other writes.
                pub weakly_ordered: bool,
                /// Does not snoop the host's caches.
                pub no_snoop: bool,
                #[bits(2)]
                __: u8,
                /// 0 writes the value, 1 a time stamp.
                #[bits(2)]
                pub op: u8,
                #[bits(2)]
                __: u8,
            } {
                /// Where it is written.
                #[bits(64, from = DeviceVa, into = DeviceVa::get)]
                pub address: DeviceVa,
            }
        })*
    };
}

message! {
    /// Writes a 32-bit word to an address: a register, device memory or host memory.
    MsgLong = MSG_LONG;
    /// MSG_LONG with the rights that the queue manager gives its command processors (`GLBL_PROT`),
    /// which are a user's for a user's queues (driver gaudi2_masks.h `QMAN_MAKE_TRUSTED`).
    MsgProt = MSG_PROT;
}

packet! {
    /// Writes a 32-bit word to a base register plus a 16-bit offset.
    MsgShort: u64 = MSG_SHORT {
        /// What is written.
        pub value: u32,
        /// Added to the base, in bytes.
        pub offset: u16,
        /// May pass other writes.
        pub weakly_ordered: bool,
        /// Does not snoop the host's caches.
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
    }
}

packet! {
    /// Hands a command buffer to the lower command processor of the queue manager, or to its own.
    CpDma: u128 = CP_DMA {
        /// Bytes of packets.
        pub size: u32,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        /// Runs on the processor that executes this packet, after the buffer that the packet is in
        /// (hl-thunk test_cs_cb_list), instead of on the lower one.
        pub upper_cp: bool,
        #[bits(18)]
        __: u32,
    } {
        /// Where the packets lie.
        #[bits(64, from = DeviceVa, into = DeviceVa::get)]
        pub source: DeviceVa,
    }
}

packet! {
    /// Repeats packets of a command buffer. The layout is public, what it does is not: no program
    /// in public uses one.
    Repeat: u64 = REPEAT {
        /// The header names it `sore`; what it does is in no public text.
        pub sore: bool,
        /// The header names it `outer`; what it does is in no public text.
        pub outer: bool,
        #[bits(14)]
        __: u16,
        /// The header names it `jmp_ptr`; its unit and direction are in no public text.
        pub jump: u16,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        #[bits(19)]
        __: u32,
    }
}

packet! {
    /// Holds the stream until a fence counter reaches a target.
    Fence: u64 = FENCE {
        /// Subtracted from the counter when the stream continues.
        #[bits(4)]
        pub decrement: u8,
        #[bits(12)]
        __: u16,
        /// The stream continues when the counter is at or above.
        pub target: u8,
        #[bits(6)]
        __: u8,
        /// Which of the stream's four counters.
        #[bits(2)]
        pub id: u8,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        #[bits(19)]
        __: u32,
    }
}

packet24! {
    /// Copies or fills up to 4 GiB - 1 of memory.
    LinDma(LinDmaCtl) = LIN_DMA {
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
    } {
        /// Bytes to move.
        size,
        /// Where the bytes come from, or the pattern.
        source,
        /// Where the bytes go.
        destination,
    }
}

packet! {
    /// Does nothing.
    Nop: u64 = NOP {
        #[bits(56)]
        __: u64,
    }
}

packet! {
    /// Stops the command processor, with the error "CP encountered STOP OPCODE" (driver
    /// gaudi2.c:mme_razwi_info).
    Stop: u64 = STOP {
        #[bits(56)]
        __: u64,
    }
}

packet! {
    /// Asks the arbiter of the queue manager for the grant, or releases it. Does nothing where the
    /// arbiter is off.
    ArbPoint: u64 = ARB_POINT {
        /// Of two streams that ask at once the one with the higher number goes first, where the
        /// arbiter goes by priority (hl-thunk test_cs_two_streams_with_priority_arb).
        #[bits(24)]
        pub priority: u32,
        #[bits(7)]
        __: u8,
        /// Releases the arbiter's grant, instead of asking for it.
        pub release: bool,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        #[bits(19)]
        __: u32,
    }
}

packet! {
    /// Adds to a fence counter of its own command processor after some cycles (`source: inferred`
    /// from the names of its fields).
    Wait: u64 = WAIT {
        /// Cycles of the command processor.
        #[bits(24)]
        pub cycles: u32,
        /// Added to the fence counter afterwards.
        #[bits(4)]
        pub increment: u8,
        /// Which of the four fence counters.
        #[bits(2)]
        pub id: u8,
        #[bits(26)]
        __: u32,
    }
}

packet24! {
    /// Executes the entry of a table that a word in memory chooses; an entry is a CP_DMA packet
    /// (hl-thunk test_cs_cb_list).
    CbList(CbListCtl) = CB_LIST {
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        /// Bytes of an entry of the table: 0 for 16, which alone is supported (hl-thunk
        /// gaudi2_add_cb_list_pkt), 1 for 32.
        pub size_desc: bool,
        #[bits(18)]
        __: u32,
    } {
        /// Not used.
        reserved,
        /// Where the number of the entry lies.
        index,
        /// Where the table lies.
        table,
    }
}

packet! {
    /// Loads predicates or scalars of the command processor from memory, and executes a packet that
    /// the scalars hold.
    ///
    /// Predicates are 4 bytes in a row or 128 bytes in words, scalars 16 bytes (hl-thunk
    /// test_cs_load_predicates, test_cs_load_scalars_exe_4_rfs). Public programs load from
    /// multiples of 128. Predicate 0 does not change.
    LoadAndExe: u128 = LOAD_AND_EXE {
        /// Loads the four scalars, instead of the predicates.
        pub scalars: bool,
        /// Predicates lie as 32 bits in a row, instead of one in bit 0 of each of 32 words.
        pub consecutive: bool,
        #[bits(6)]
        __: u8,
        /// Loads.
        pub load: bool,
        /// Executes what the scalars hold, after loading: 16 bytes from scalar 0 on, or 8 from
        /// scalar 2 on where `upper`.
        pub exe: bool,
        /// Executes scalars 2 and 3, instead of all four from scalar 0 on.
        pub upper: bool,
        #[bits(21)]
        __: u32,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        #[bits(19)]
        __: u32,
    } {
        /// Where the data lies.
        #[bits(64, from = DeviceVa, into = DeviceVa::get)]
        pub source: DeviceVa,
    }
}

packet! {
    /// Writes a base register plus a signed 32-bit offset to two registers (vendor graph compiler,
    /// gaudi2 `WriteReg64`).
    Wreg64Short: u64 = WREG_64_SHORT {
        /// What is added to the base register; the scalar's number in bits 1..0 where `reg` is set.
        pub offset: i32,
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
    }
}

packet! {
    /// Writes a 64-bit value, or a base register plus a value, to two registers or one of them
    /// (vendor graph compiler, gaudi2 `WriteReg64`).
    Wreg64Long: u128 = WREG_64_LONG {
        /// Writes the lower register.
        pub low: bool,
        /// Writes the upper register.
        pub high: bool,
        #[bits(30)]
        __: u32,
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        /// Which of the queue manager's sixteen base registers.
        #[bits(4)]
        pub base: u8,
        /// Adds the base register; without it the value is written as it is (`source: inferred`
        /// from the name: public programs all set it).
        pub rel: bool,
        /// The first of the two registers, in words.
        #[bits(14)]
        pub dreg_offset: u16,
    } {
        /// The value, or what is added to the base register.
        pub offset: u64,
    }
}

/// Declares a packet of a head and 64-bit values, as a view of its bytes.
macro_rules! bulk {
    ($(#[$doc:meta])* $name:ident($head:ident) = $opcode:ident { $($fields:tt)* }) => {
        fields! {
            #[doc = concat!("Head of a [`", stringify!($name), "`].")]
            $head: u64 = $opcode << 56 {
                /// Values that follow.
                pub count: u16,
                __: u16,
                $($fields)*
            } {}
        }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a> {
            bytes: &'a [u8],
        }

        impl<'a> $name<'a> {
            #[inline]
            pub(super) const fn length(first: u32) -> usize {
                HEADER + 8 * (first & 0xffff) as usize
            }

            #[inline]
            pub(super) const fn view(bytes: &'a [u8]) -> Self {
                Self { bytes }
            }

            /// Builds a packet of `values` in `buffer`. Returns `None` if the buffer is too short,
            /// or 16 bits cannot count the values.
            pub fn build(buffer: &'a mut [u8], head: $head, values: &[u64]) -> Option<Self> {
                let head = head.with_count(values.len().try_into().ok()?);
                let bytes = buffer.get_mut(..HEADER + values.len() * 8)?;
                let words = core::iter::once(&head.0).chain(values);
                for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                Some(Self { bytes })
            }

            /// Returns the first two words.
            pub fn head(&self) -> $head {
                $head(u64::from_le_bytes(start(self.bytes)))
            }

            /// Returns the values, in order.
            pub fn values(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
                let words = self.bytes.chunks_exact(8).skip(1);
                words.map(|value| u64::from_le_bytes(start(value)))
            }

            /// Returns the packet's bytes.
            #[inline]
            pub const fn to_bytes(&self) -> &'a [u8] {
                self.bytes
            }
        }
    };
}

bulk! {
    /// Writes registers in a row, two with each value: its lower half first.
    WregBulk(WregBulkHead) = WREG_BULK {
        /// The predicate that must hold; 0 always does.
        #[bits(5)]
        pub predicate: u8,
        #[bits(3)]
        __: u8,
        /// The first register, bytes.
        pub offset: u16,
    }
}

bulk! {
    /// Sends words to the ARC beside the queue manager.
    WriteArcStream(WriteArcStreamHead) = WRITE_ARC_STREAM {
        #[bits(24)]
        __: u32,
    }
}
