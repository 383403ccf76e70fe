//! Builders of the packets that a driver writes, past those of their bit fields.

use super::{CbList, CbListCtl, CpDma, Fence, LinDma, LinDmaCtl, MsgLong, MsgShort};
use crate::addr::DeviceVa;
use crate::gaudi2::sync::{
    MON_ARM, MON_CONFIG, MON_PAY_ADDRH, MON_PAY_ADDRL, MON_PAY_DATA, MONITORS, MonArm, MonConfig, SOBS,
    SobUpdate,
};

impl MsgLong {
    /// Writes `value` to `address`.
    #[inline]
    pub const fn new(address: DeviceVa, value: u32) -> Self {
        Self::EMPTY.with_value(value).with_address(address)
    }
}

/// A base of MSG_SHORT, as the driver sets them (gaudi2.c:gaudi2_init_qman_cp).
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

impl MsgShort {
    /// Writes `value` to `base` + `offset` bytes.
    #[inline]
    pub const fn new(base: MsgBase, offset: u16, value: u32) -> Self {
        Self::EMPTY
            .with_base(base as u8)
            .with_offset(offset)
            .with_value(value)
    }

    /// Changes a sync object. `None` if a 16-bit offset does not reach the object.
    #[inline]
    pub const fn sob(sob: u32, update: SobUpdate) -> Option<Self> {
        if sob >= SOBS {
            return None;
        }
        Some(Self::new(MsgBase::Sobs, sob as u16 * 4, update.into_bits()))
    }

    /// Sets the low half of the address that a monitor writes. `None` if an offset does not reach
    /// the monitor, as in the functions below.
    #[inline]
    pub const fn monitor_address_low(monitor: u32, address: DeviceVa) -> Option<Self> {
        Self::monitor(MON_PAY_ADDRL, monitor, address.0 as u32)
    }

    /// Sets the high half of the address that a monitor writes.
    #[inline]
    pub const fn monitor_address_high(monitor: u32, address: DeviceVa) -> Option<Self> {
        Self::monitor(MON_PAY_ADDRH, monitor, (address.0 >> 32) as u32)
    }

    /// Sets the word that a monitor writes.
    #[inline]
    pub const fn monitor_data(monitor: u32, data: u32) -> Option<Self> {
        Self::monitor(MON_PAY_DATA, monitor, data)
    }

    /// Sets how a monitor fires.
    #[inline]
    pub const fn monitor_config(monitor: u32, config: MonConfig) -> Option<Self> {
        Self::monitor(MON_CONFIG, monitor, config.into_bits())
    }

    /// Arms a monitor.
    #[inline]
    pub const fn monitor_arm(monitor: u32, arm: MonArm) -> Option<Self> {
        Self::monitor(MON_ARM, monitor, arm.into_bits())
    }

    #[inline]
    const fn monitor(register: u32, monitor: u32, value: u32) -> Option<Self> {
        if monitor >= MONITORS {
            return None;
        }
        let offset = register - MON_PAY_ADDRL + monitor * 4;
        Some(Self::new(MsgBase::Monitors, offset as u16, value))
    }
}

impl CpDma {
    /// Runs `size` bytes of packets that lie at `source`, on the lower command processor.
    #[inline]
    pub const fn new(source: DeviceVa, size: u32) -> Self {
        Self::EMPTY.with_source(source).with_size(size)
    }
}

impl Fence {
    /// Waits for counter `id` to reach `target`, then subtracts `decrement`. `None` if `id` > 3 or
    /// `decrement` > 15.
    #[inline]
    pub const fn new(id: u8, target: u8, decrement: u8) -> Option<Self> {
        if id > 3 || decrement > 15 {
            return None;
        }
        Some(
            Self::EMPTY
                .with_id(id)
                .with_target(target)
                .with_decrement(decrement),
        )
    }
}

/// How a LIN_DMA changes the order of bytes (hl-thunk `enum hltests_endian_swap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndianSwap {
    /// Keeps the order.
    None = 0,
    /// Reverses every two bytes.
    Two = 1,
    /// Reverses every four bytes.
    Four = 2,
    /// Reverses every eight bytes.
    Eight = 3,
}

/// Where a LIN_DMA takes its bytes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory.
    Copy(DeviceVa),
    /// A repeated pattern, lowest byte first.
    Set(u32),
}

impl LinDma {
    /// Copies `size` bytes.
    #[inline]
    pub const fn copy(destination: DeviceVa, source: DeviceVa, size: u32) -> Self {
        Self::with(LinDmaCtl::EMPTY, destination, source, size)
    }

    /// Fills `size` bytes with a pattern, its lowest byte first.
    ///
    /// The driver fills through this packet with a 32-bit value in the 64-bit source field
    /// (gaudi2.c:gaudi2_handle_eqe).
    // guess: bits 63..32 of the field are not used; a 64-bit pattern is not documented.
    #[inline]
    pub const fn memset(destination: DeviceVa, pattern: u32, size: u32) -> Self {
        let ctl = const { LinDmaCtl::EMPTY.with_memset(true) };
        Self::with(ctl, destination, DeviceVa(pattern as u64), size)
    }

    /// Returns the transfer of a control word. `source` is the pattern if the word asks for a fill.
    #[inline]
    pub const fn with(ctl: LinDmaCtl, destination: DeviceVa, source: DeviceVa, size: u32) -> Self {
        Self {
            ctl,
            size,
            source,
            destination,
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

    /// Returns the number of bytes that are reversed together; 1 where the order stays.
    #[inline]
    pub const fn swapped(&self) -> usize {
        1 << self.ctl.endian()
    }

    /// Returns where the bytes come from.
    #[inline]
    pub const fn source(&self) -> Source {
        if self.ctl.memset() {
            Source::Set(self.source.0 as u32)
        } else {
            Source::Copy(self.source)
        }
    }
}

impl CbList {
    /// Bytes in an entry of the table.
    pub const ENTRY: u64 = 16;

    /// Executes the entry of `table` whose number is the 32-bit word at `index`.
    #[inline]
    pub const fn new(table: DeviceVa, index: DeviceVa) -> Self {
        Self {
            ctl: CbListCtl::EMPTY,
            reserved: 0,
            index,
            table,
        }
    }
}
