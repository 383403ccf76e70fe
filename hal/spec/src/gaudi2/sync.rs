//! The sync manager: sync objects (counters), monitors that watch them, completion queues; and the
//! words written to them.
//!
//! One a die core, `OBJS` at configuration offset 0x4100000 and `GLBL` at 0x411e000, die cores
//! 0x200000 apart (dcore0_sync_mngr_objs_regs.h, dcore0_sync_mngr_glbl_regs.h). Monitors see the
//! sync objects of their own die core only.

#![allow(
    clippy::missing_errors_doc,
    reason = "the checked setters that bitfield-struct writes fail only if a value does not fit"
)]

use bitfield_struct::bitfield;

use super::map::{CFG_BASE, DCORE_STRIDE};
use crate::addr::DeviceVa;

/// Sync managers on the chip (gaudi2.h `NUM_OF_DCORES`).
pub const DCORES: u32 = 4;
/// Sync objects in each (`SOB_OBJ_0` … `SOB_OBJ_8191`).
pub const SOBS: u32 = 8192;
/// Monitors in each (`MON_STATUS_0` … `MON_STATUS_2047`).
pub const MONITORS: u32 = 2048;
/// Completion queues in each (`CQ_BASE_ADDR_L_0` … `_63`).
pub const CQS: u32 = 64;
/// Sync objects that one monitor can watch at once.
pub const GROUP: u32 = 8;
/// The highest value of a sync object, 15 bits (`SOB_OBJ_VAL_MASK`).
pub const SOB_MAX: u32 = 0x7fff;
/// Sync objects in a row that count as one number in long mode, and monitors that compare with it
/// (hl-thunk gaudi2_add_write_to_sob_pkt, gaudi2_add_monitor).
pub const LONG: u32 = 4;
/// The highest value in long mode, 60 bits.
pub const LONG_MAX: u64 = (1 << 60) - 1;

// 64 for submissions, 1 for KDMA, 10 + 10 for decoders (driver gaudi2P.h `enum
// gaudi2_reserved_sob_id`) = 85; then 2 for each queue with sync streams (`HL_RSVD_SOBS`): the 260
// hardware queues less 96 of the NIC (gaudi2.c:gaudi2_set_fixed_properties) = 164.
/// The first sync object for users (driver gaudi2.c:gaudi2_set_fixed_properties).
pub const FIRST_USER_SOB: u32 = 85 + 164 * 2;
// 64 + 1 + 30 + 30 (`enum gaudi2_reserved_mon_id`), and one a sync-stream queue (`HL_RSVD_MONS`).
/// The first monitor for users (driver gaudi2.c:gaudi2_set_fixed_properties).
pub const FIRST_USER_MONITOR: u32 = 125 + 164;
/// The first completion queue for users (driver gaudi2P.h `GAUDI2_RESERVED_CQ_NUMBER`).
pub const FIRST_USER_CQ: u32 = 2;

/// Configuration offset of die core 0's `OBJS` block.
pub const OBJS: u32 = 0x410_0000;
/// Bytes in it up to `SM_SEC_0`, the part that users may map (driver gaudi2P.h
/// `SM_OBJS_BLOCK_SIZE`).
pub const OBJS_SIZE: u32 = 0x1_4000;
/// `SOB_OBJ_0`, from `OBJS`; a word each, as all below.
pub const SOB_OBJ: u32 = 0;
/// `MON_PAY_ADDRL_0`: low half of the address that a monitor writes, or the completion queue's
/// number.
pub const MON_PAY_ADDRL: u32 = 0x8000;
/// `MON_PAY_ADDRH_0`: high half.
pub const MON_PAY_ADDRH: u32 = 0xa000;
/// `MON_PAY_DATA_0`: what it writes.
pub const MON_PAY_DATA: u32 = 0xc000;
/// `MON_ARM_0`: what it waits for ([`MonArm`]).
pub const MON_ARM: u32 = 0xe000;
/// `MON_CONFIG_0`: how it fires ([`MonConfig`]).
pub const MON_CONFIG: u32 = 0x1_0000;
/// `MON_STATUS_0`: bit 0 armed, bits 8..1 sync objects still awaited.
pub const MON_STATUS: u32 = 0x1_2000;

/// Configuration offset of die core 0's `GLBL` block.
pub const GLBL: u32 = 0x411_e000;
/// Bytes of it that matter here.
pub const GLBL_SIZE: u32 = 0x1000;
/// `SM_SEI_CAUSE`, from `GLBL`: the sync manager's errors ([`SEI_CAUSE`]) and what they concern,
/// until the driver clears it (driver gaudi2.c `gaudi2_handle_sm_err`).
pub const SM_SEI_CAUSE: u32 = 0x4;
/// The errors in it (dcore0_sync_mngr_glbl_masks.h `SM_SEI_CAUSE_CAUSE_MASK`).
pub const SEI_CAUSE: u32 = 0x7;
/// A monitor's write failed (gaudi2.c `gaudi2_sm_sei_cause`).
pub const SEI_WRITE_ERROR: u32 = 1 << 2;
/// `ASID_SEC`: the context of the driver's monitors on die core 0, and [`BYPASS`] (driver gaudi2.c
/// `gaudi2_init_sm`).
pub const ASID_SEC: u32 = 0x30;
/// The bit of it and of [`ASID_NONE_SEC_PRIV`] that bypasses the MMU.
pub const BYPASS: u32 = 1 << 16;
/// `ASID_NONE_SEC_PRIV`: the context of the other monitors on die core 0.
pub const ASID_NONE_SEC_PRIV: u32 = 0x48;
/// `SYNC_MNGR_MSTR_IF_AXUSER_HB_ASID`, from `GLBL`: the context of all monitors and completion
/// queues on the other die cores; `MMU_BP` is the next word (driver gaudi2.c
/// `gaudi2_mmu_dcore_prepare`).
pub const MSTR_IF_AXUSER: u32 = 0x1a80;
/// `CQ_BASE_ADDR_L_0`, from `GLBL`; a word a queue, as all below.
pub const CQ_BASE_L: u32 = 0x50;
/// `CQ_BASE_ADDR_H_0`.
pub const CQ_BASE_H: u32 = 0x150;
/// `CQ_SIZE_LOG2_0`: log2 of its bytes (driver gaudi2.c `gaudi2_init_sm`:
/// `ilog2(HL_CQ_SIZE_IN_BYTES)`).
pub const CQ_SIZE_LOG2: u32 = 0x250;
/// `CQ_PI_0`: entries written.
pub const CQ_PI: u32 = 0x350;
/// `LBW_ADDR_L_0`: where a second word goes when an entry was written and the monitor's `lbw_en` is
/// set.
pub const CQ_LBW_ADDR_L: u32 = 0x550;
/// `LBW_ADDR_H_0`.
pub const CQ_LBW_ADDR_H: u32 = 0x650;
/// `LBW_DATA_0`.
pub const CQ_LBW_DATA: u32 = 0x750;
/// `CQ_INC_MODE_0`: bit 0 set makes the queue one 64-bit counter in memory, to which a monitor's
/// data is added (hl-thunk gaudi2_add_cq_config_pkt).
pub const CQ_INC_MODE: u32 = 0x850;

/// A word written to a sync object (dcore0_sync_mngr_objs_masks.h `SOB_OBJ_*`).
///
/// With `add` clear the object takes bits 14..0; with it set they are added as a 16-bit
/// two's-complement number, bit 15 the sign (driver gaudi2_masks.h `SOB_OBJ_SIGN_MASK`).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SobUpdate {
    /// The value, or the amount's low 15 bits.
    #[bits(15)]
    pub value: u16,
    /// The amount's sign.
    pub negative: bool,
    __: u8,
    /// Four objects count as one 60-bit number.
    pub long: bool,
    #[bits(5)]
    __: u8,
    /// Evict a trace packet.
    pub trace_evict: bool,
    /// Add instead of set.
    pub add: bool,
}

impl SobUpdate {
    /// Gives the object a value; bits above 15 are cut off, as the register cuts them.
    pub const fn set(value: u16) -> Self {
        Self::from_bits((value & 0x7fff) as u32)
    }

    /// Adds to the object, which stays within 0 and [`SOB_MAX`].
    pub const fn add_signed(amount: i16) -> Self {
        Self::from_bits(1 << 31 | amount as u16 as u32)
    }

    /// What the word adds; `None` where it sets.
    pub const fn amount(self) -> Option<i16> {
        if self.add() {
            Some(self.into_bits() as u16 as i16)
        } else {
            None
        }
    }
}

/// How a monitor compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The object is at or above the value.
    AtLeast,
    /// The object has the value.
    Equal,
}

/// A word written to `MON_ARM` (dcore0_sync_mngr_objs_masks.h `MON_ARM_*`); writing it arms the
/// monitor.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct MonArm {
    /// The group of eight sync objects, low eight bits; [`MonConfig::group_high`] holds the rest.
    pub group: u8,
    /// A set bit leaves that object of the group out.
    pub mask: u8,
    /// "==" instead of "≥".
    pub equal: bool,
    /// The value to compare with.
    #[bits(15)]
    pub value: u16,
}

impl MonArm {
    /// Waits for one sync object. Only the low eight bits of its group fit: [`MonConfig::for_sob`]
    /// carries the rest.
    pub const fn for_sob(sob: u32, compare: Compare, value: u16) -> Self {
        let mask = !(1u8 << (sob % GROUP));
        Self::from_bits(
            (sob / GROUP) & 0xff
                | (mask as u32) << 8
                | (matches!(compare, Compare::Equal) as u32) << 16
                | ((value & 0x7fff) as u32) << 17,
        )
    }

    /// Compares a number of long mode with `value`: the words for monitors `n` … `n + 3`, to be
    /// written last first. Bits of `value` above 60 are cut off.
    pub const fn for_long_sob(sob: u32, compare: Compare, value: u64) -> [Self; LONG as usize] {
        let parts = long_parts(value);
        [
            Self::for_sob(sob, compare, parts[0]),
            Self::for_sob(0, compare, parts[1]),
            Self::for_sob(0, compare, parts[2]),
            Self::for_sob(0, compare, parts[3]),
        ]
    }

    /// How the word compares.
    pub const fn compare(self) -> Compare {
        if self.equal() {
            Compare::Equal
        } else {
            Compare::AtLeast
        }
    }
}

/// A word written to `MON_CONFIG` (dcore0_sync_mngr_objs_masks.h `MON_CONFIG_*`).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct MonConfig {
    /// Four objects count as one 60-bit number.
    pub long: bool,
    #[bits(3)]
    __: u8,
    /// Fire into a completion queue, whose number is in `MON_PAY_ADDRL`.
    pub cq_en: bool,
    /// Further writes: this monitor fires its own payload and those of this many monitors after it.
    #[bits(2)]
    pub extra_writes: u8,
    __: bool,
    /// After the completion queue's entry, also do the queue's LBW write.
    pub lbw_en: bool,
    #[bits(7)]
    __: u8,
    /// Bits 11..8 of the group's number.
    #[bits(4)]
    pub group_high: u8,
    #[bits(11)]
    __: u16,
    /// The upper half of a long comparison.
    pub long_high_group: bool,
}

impl MonConfig {
    /// One payload, and the group bits that [`MonArm::for_sob`] cannot hold.
    pub const fn for_sob(sob: u32) -> Self {
        Self::from_bits((((sob / GROUP) >> 8) & 0xf) << 16)
    }

    /// Watches the number of long mode that starts at sync object `sob`, a multiple of 4.
    ///
    /// A long monitor with one payload may fire twice on the chip (erratum H6-3342, hl-thunk
    /// gaudi2_add_monitor): this configures two, and the second is the next monitor's.
    pub const fn for_long_sob(sob: u32) -> Self {
        Self::for_sob(sob)
            .with_long(true)
            .with_extra_writes(1)
            .with_long_high_group(sob % GROUP >= LONG)
    }
}

/// The 15 bits that each of four sync objects holds of a number of long mode, lowest first.
pub const fn long_parts(value: u64) -> [u16; LONG as usize] {
    [
        (value & 0x7fff) as u16,
        (value >> 15 & 0x7fff) as u16,
        (value >> 30 & 0x7fff) as u16,
        (value >> 45 & 0x7fff) as u16,
    ]
}

/// A register of a die core's `OBJS` block, as engines address it; `None` where die core or index
/// leave the block.
pub fn objs_address(dcore: u32, register: u32, index: u32) -> Option<DeviceVa> {
    let limit = if register == SOB_OBJ { SOBS } else { MONITORS };
    if dcore >= DCORES || index >= limit || register > MON_STATUS {
        return None;
    }
    let offset = OBJS + dcore * DCORE_STRIDE + register + index * 4;
    CFG_BASE
        .checked_add(u64::from(offset))
        .map(|address| DeviceVa(address.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_free_objects_match_the_driver() {
        assert_eq!((FIRST_USER_SOB, FIRST_USER_MONITOR, FIRST_USER_CQ), (413, 289, 2));
    }

    #[test]
    fn words_match_the_driver_s() {
        assert_eq!(
            SobUpdate::add_signed(1).into_bits(),
            0x8000_0001,
            "GAUDI2_SOB_INCREMENT_BY_ONE"
        );
        assert_eq!(
            SobUpdate::add_signed(-1).into_bits(),
            0x8000_ffff,
            "the decoder monitors' -1"
        );
        assert_eq!(SobUpdate::add_signed(-5).amount(), Some(-5));
        assert_eq!(SobUpdate::set(0x7fff).amount(), None);
        assert_eq!(SobUpdate::set(0xffff).into_bits(), 0x7fff, "a value has 15 bits");
        let arm = MonArm::for_sob(2 * 8 + 3, Compare::Equal, 7);
        assert_eq!(
            arm.into_bits(),
            7 << 17 | 1 << 16 | 0xf7 << 8 | 2,
            "as gaudi2_arm_cq_monitor builds it"
        );
        assert_eq!(
            (arm.group(), arm.mask(), arm.value(), arm.compare()),
            (2, 0xf7, 7, Compare::Equal)
        );
        assert_eq!(
            MonConfig::new().with_extra_writes(2).into_bits(),
            2 << 5,
            "MON_CONFIG_WR_NUM"
        );
        assert_eq!(
            MonConfig::new().with_cq_en(true).with_lbw_en(true).into_bits(),
            0x110
        );
        assert_eq!(
            MonConfig::for_sob(8191).into_bits(),
            3 << 16,
            "group 1023 has 0x3 above its low byte"
        );
        assert_eq!(MonConfig::new().with_long_high_group(true).into_bits(), 1 << 31);
        let value = 0xfff_e000_3fff_8100;
        assert_eq!(
            long_parts(value),
            [0x100, 0x7fff, 0, 0x7fff],
            "as test_sm_long_mode splits it"
        );
        let arms = MonArm::for_long_sob(16, Compare::Equal, value);
        assert_eq!(
            arms.map(|arm| arm.into_bits()),
            [
                0x100 << 17 | 1 << 16 | 0xfe << 8 | 2,
                0x7fff << 17 | 1 << 16 | 0xfe << 8,
                1 << 16 | 0xfe << 8,
                0x7fff << 17 | 1 << 16 | 0xfe << 8,
            ]
        );
        assert_eq!(MonConfig::for_long_sob(16).into_bits(), 1 | 1 << 5);
        assert_eq!(MonConfig::for_long_sob(20).into_bits(), 1 | 1 << 5 | 1 << 31);
    }

    #[test]
    fn registers_are_where_the_header_has_them() {
        let cfg = CFG_BASE.get();
        assert_eq!(objs_address(0, SOB_OBJ, 8191), Some(DeviceVa(cfg + 0x410_7ffc)));
        assert_eq!(
            objs_address(0, MON_STATUS, 2047),
            Some(DeviceVa(cfg + 0x411_3ffc))
        );
        assert_eq!(objs_address(3, MON_ARM, 0), Some(DeviceVa(cfg + 0x470_e000)));
        assert_eq!(objs_address(4, SOB_OBJ, 0), None);
        assert_eq!(objs_address(0, MON_ARM, 2048), None);
        assert_eq!(OBJS_SIZE, MON_STATUS + MONITORS * 4);
    }
}
