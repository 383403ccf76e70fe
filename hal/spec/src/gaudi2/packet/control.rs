//! Packets that steer a command processor: what runs next, when, and whether.
//!
//! Fields are named by hl-thunk's gaudi2_packets.h; what a field does is documented there, in
//! hl-thunk's tests, or marked `source: inferred`.

use bitfield_struct::bitfield;

use super::macros::{join8, join16, join24};
use crate::addr::DeviceVa;

/// Control word of a STOP.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct StopCtl {
    #[bits(24)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xb, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Stops the command processor, with the error "CP encountered STOP OPCODE" (driver
    /// gaudi2.c:1126).
    Stop(StopCtl, 8) {
        reserved: u32
    }
}

impl Stop {
    /// A STOP without barriers.
    #[inline]
    pub const fn new() -> Self {
        Self {
            ctl: const { StopCtl::new() },
            reserved: 0,
        }
    }

    #[inline]
    pub(super) const fn from_words(reserved: u32, ctl: u32) -> Self {
        Self {
            ctl: StopCtl::from_bits(ctl),
            reserved,
        }
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join8(self.reserved, self.ctl.into_bits())
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

/// First word of an ARB_POINT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ArbPointCfg {
    /// Of two streams that ask at once the one with the higher number goes first, where the arbiter
    /// goes by priority (hl-thunk test_cs_two_streams_with_priority_arb).
    #[bits(24)]
    pub priority: u32,
    #[bits(7)]
    __: u8,
    /// Gives the arbiter's grant back, instead of asking for it.
    pub release: bool,
}

/// Control word of an ARB_POINT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ArbPointCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    #[bits(19)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xc, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    __: bool,
    /// Message barrier.
    pub mb: bool,
}

packet8! {
    /// Asks the arbiter of the queue manager for the grant, or gives it back. Does nothing where
    /// the arbiter is off.
    ArbPoint(ArbPointCfg, ArbPointCtl)
}

impl ArbPoint {
    /// Waits for the arbiter's grant. `None` where `priority` has more than 24 bits.
    #[inline]
    pub const fn acquire(priority: u32) -> Option<Self> {
        if priority >> 24 != 0 {
            return None;
        }
        Some(Self {
            ctl: const { ArbPointCtl::new() },
            cfg: ArbPointCfg::new().with_priority(priority),
        })
    }

    /// Gives the grant back.
    #[inline]
    pub const fn release() -> Self {
        Self {
            ctl: const { ArbPointCtl::new() },
            cfg: ArbPointCfg::new().with_release(true),
        }
    }
}

/// First word of a REPEAT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RepeatCfg {
    /// The header names it `sore`; what it does is in no public text.
    pub sore: bool,
    /// The header names it `outer`; what it does is in no public text.
    pub outer: bool,
    #[bits(14)]
    __: u16,
    /// The header names it `jmp_ptr`; its unit and direction are in no public text.
    pub jump: u16,
}

/// Control word of a REPEAT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RepeatCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    #[bits(19)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0x6, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    __: bool,
    /// Message barrier.
    pub mb: bool,
}

packet8! {
    /// Repeats packets of a command buffer. The layout is public, what it does is not: no program
    /// in public uses one.
    Repeat(RepeatCfg, RepeatCtl)
}

impl Repeat {
    /// A packet with these fields.
    #[inline]
    pub const fn new(sore: bool, outer: bool, jump: u16) -> Self {
        Self {
            ctl: const { RepeatCtl::new() },
            cfg: RepeatCfg::new().with_sore(sore).with_outer(outer).with_jump(jump),
        }
    }
}

/// First word of a WAIT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WaitCfg {
    /// Cycles of the command processor.
    #[bits(24)]
    pub cycles: u32,
    /// Added to the fence counter afterwards.
    #[bits(4)]
    pub increment: u8,
    /// Which of the four fence counters.
    #[bits(2)]
    pub id: u8,
    #[bits(2)]
    __: u8,
}

/// Control word of a WAIT.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WaitCtl {
    #[bits(24)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xd, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    __: bool,
    /// Message barrier.
    pub mb: bool,
}

packet8! {
    /// Adds to a fence counter of its own command processor after some cycles (`source: inferred`
    /// from the names of its fields).
    Wait(WaitCfg, WaitCtl)
}

impl Wait {
    /// Adds `increment` to counter `id` after `cycles`. `None` where `cycles` has more than 24
    /// bits, `increment` > 15 or `id` > 3.
    #[inline]
    pub const fn new(cycles: u32, id: u8, increment: u8) -> Option<Self> {
        if cycles >> 24 != 0 || id > 3 || increment > 15 {
            return None;
        }
        let cfg = WaitCfg::new()
            .with_cycles(cycles)
            .with_id(id)
            .with_increment(increment);
        Some(Self {
            ctl: const { WaitCtl::new() },
            cfg,
        })
    }
}

/// Control word of a CP_DMA.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CpDmaCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    /// Runs on the processor that executes this packet, instead of the lower one.
    pub upper_cp: bool,
    #[bits(18)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0x5, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    __: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Hands a command buffer to the lower command processor of the queue manager, or to its own.
    CpDma(CpDmaCtl, 16) {
        size: u32,
        source: u64
    }
}

impl CpDma {
    /// Runs `size` bytes of packets that lie at `source`, on the lower command processor.
    #[inline]
    pub const fn new(source: DeviceVa, size: u32) -> Self {
        Self {
            ctl: const { CpDmaCtl::new() },
            size,
            source: source.0,
        }
    }

    /// Runs them on the processor that executes this, after the buffer that it is in (hl-thunk
    /// test_cs_cb_list).
    #[must_use]
    #[inline]
    pub const fn on_upper(mut self, on: bool) -> Self {
        self.ctl = self.ctl.with_upper_cp(on);
        self
    }

    #[inline]
    pub(super) const fn from_words(size: u32, ctl: u32, source: u64) -> Self {
        Self {
            ctl: CpDmaCtl::from_bits(ctl),
            size,
            source,
        }
    }

    /// Bytes of packets.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Where they lie.
    #[inline]
    pub const fn source(&self) -> DeviceVa {
        DeviceVa(self.source)
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join16(self.size, self.ctl.into_bits(), self.source)
    }
}

/// Control word of a CB_LIST.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CbListCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    /// Bytes of an entry of the table: 0 for 16, which alone is supported (hl-thunk
    /// gaudi2_add_cb_list_pkt), 1 for 32.
    pub size_desc: bool,
    #[bits(18)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xe, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    __: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Executes the entry of a table that a word in memory chooses; an entry is a CP_DMA packet
    /// (hl-thunk test_cs_cb_list).
    CbList(CbListCtl, 24) {
        reserved: u32,
        index: u64,
        table: u64
    }
}

impl CbList {
    /// Bytes in an entry of the table.
    pub const ENTRY: u64 = 16;

    /// Executes the entry of `table` whose number is the 32-bit word at `index`.
    #[inline]
    pub const fn new(table: DeviceVa, index: DeviceVa) -> Self {
        Self {
            ctl: const { CbListCtl::new() },
            reserved: 0,
            index: index.0,
            table: table.0,
        }
    }

    #[inline]
    pub(super) const fn from_words(reserved: u32, ctl: u32, index: u64, table: u64) -> Self {
        Self {
            ctl: CbListCtl::from_bits(ctl),
            reserved,
            index,
            table,
        }
    }

    /// Where the number of the entry lies.
    #[inline]
    pub const fn index(&self) -> DeviceVa {
        DeviceVa(self.index)
    }

    /// Where the table lies.
    #[inline]
    pub const fn table(&self) -> DeviceVa {
        DeviceVa(self.table)
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join24(self.reserved, self.ctl.into_bits(), self.index, self.table)
    }
}

/// First word of a LOAD_AND_EXE.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LoadAndExeCfg {
    /// Loads the four scalars, instead of the predicates.
    pub scalars: bool,
    /// Predicates lie as 32 bits in a row, instead of one in bit 0 of each of 32 words.
    pub consecutive: bool,
    #[bits(6)]
    __: u8,
    /// Loads.
    pub load: bool,
    /// Executes what the scalars hold, after loading.
    pub exe: bool,
    /// Executes scalars 2 and 3, instead of all four from scalar 0 on.
    pub upper: bool,
    #[bits(21)]
    __: u32,
}

/// Control word of a LOAD_AND_EXE.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LoadAndExeCtl {
    /// The predicate that must hold; 0 always does.
    #[bits(5)]
    pub predicate: u8,
    #[bits(19)]
    __: u32,
    /// The opcode.
    #[bits(5, default = 0xf, access = RO)]
    pub opcode: u8,
    /// Engine barrier.
    pub eb: bool,
    /// Switch of the command queue.
    pub swtc: bool,
    /// Message barrier.
    pub mb: bool,
}

packet! {
    /// Loads predicates or scalars of the command processor from memory, and executes a packet that
    /// the scalars hold.
    ///
    /// Predicates are 4 bytes in a row or 128 bytes in words, scalars 16 bytes (hl-thunk
    /// test_cs_load_predicates, test_cs_load_scalars_exe_4_rfs). Public programs load from
    /// multiples of 128.
    LoadAndExe(LoadAndExeCtl, 16) {
        cfg: LoadAndExeCfg,
        source: u64
    }
}

impl LoadAndExe {
    /// Bytes of the four scalars.
    pub const SCALARS: usize = 16;
    /// Bytes of the predicates as 32 words.
    pub const PREDICATE_WORDS: usize = 128;

    /// Loads the predicates from bit 0 of each of the 32 words at `source`. Predicate 0 is not
    /// changed.
    #[inline]
    pub const fn predicates(source: DeviceVa) -> Self {
        Self::with(source, LoadAndExeCfg::new().with_load(true))
    }

    /// Loads the predicates from the 32 bits at `source`. Predicate 0 is not changed.
    #[inline]
    pub const fn predicate_bits(source: DeviceVa) -> Self {
        Self::with(
            source,
            LoadAndExeCfg::new().with_load(true).with_consecutive(true),
        )
    }

    /// Loads the scalars from the four words at `source`.
    #[inline]
    pub const fn scalars(source: DeviceVa) -> Self {
        Self::with(source, LoadAndExeCfg::new().with_load(true).with_scalars(true))
    }

    /// Executes the packet that the scalars hold: 16 bytes from scalar 0 on, or 8 from scalar 2 on
    /// where `upper`.
    #[inline]
    pub const fn execute(upper: bool) -> Self {
        Self::with(DeviceVa(0), LoadAndExeCfg::new().with_exe(true).with_upper(upper))
    }

    /// Executes after loading.
    #[must_use]
    #[inline]
    pub const fn and_execute(mut self, upper: bool) -> Self {
        self.cfg = self.cfg.with_exe(true).with_upper(upper);
        self
    }

    #[inline]
    const fn with(source: DeviceVa, cfg: LoadAndExeCfg) -> Self {
        Self {
            ctl: const { LoadAndExeCtl::new() },
            cfg,
            source: source.0,
        }
    }

    #[inline]
    pub(super) const fn from_words(cfg: u32, ctl: u32, source: u64) -> Self {
        Self {
            ctl: LoadAndExeCtl::from_bits(ctl),
            cfg: LoadAndExeCfg::from_bits(cfg),
            source,
        }
    }

    /// What is loaded and executed.
    #[inline]
    pub const fn cfg(&self) -> LoadAndExeCfg {
        self.cfg
    }

    /// Where the data lies.
    #[inline]
    pub const fn source(&self) -> DeviceVa {
        DeviceVa(self.source)
    }

    /// The packet's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        join16(self.cfg.into_bits(), self.ctl.into_bits(), self.source)
    }
}

predicated!(ArbPoint, Repeat, CpDma, CbList, LoadAndExe);
