//! Blocks of registers that a user may map (driver gaudi2.c:gaudi2_user_mapped_blocks_init):
//! the way to user-mode rings.
//!
//! The order is the driver's: a block's number is part of its mmap handle.

use super::map::{CFG_BASE, DCORE_STRIDE};
use super::sync::{DCORES, OBJS, OBJS_SIZE};
use crate::addr::DevicePa;
pub use crate::asic::{Block, BlockKind};

/// ARC processors (gaudi2.h `NUM_ARC_CPUS`): their numbers are `CPU_ID_*` of
/// gaudi2_arc_common_packets.h.
pub const ARCS: u32 = 69;
/// Blocks in all (driver gaudi2P.h `NUM_USER_MAPPED_BLOCKS`).
pub const COUNT: u32 = SYNC_FIRST + 2 * (DCORES - 1);

const ACPS: u32 = 8;
const NICS: u32 = 24;
/// Unsecure doorbells of a NIC (driver gaudi2P.h `NUM_OF_USER_NIC_UMR_BLOCKS`).
const DOORBELLS: u32 = 15;
const DECODERS: u32 = 10;
const DECODERS_FIRST: u32 = ARCS + ACPS + NICS * DOORBELLS;
const SYNC_FIRST: u32 = DECODERS_FIRST + DECODERS;

/// Bytes of an ARC's memory (gaudi2.h `ARC_DCCM_BLOCK_SIZE`); the four of the farm have two of it.
const DCCM: u32 = 0x8000;
/// Bytes of every other block but the sync objects' (driver habanalabs.h `HL_BLOCK_SIZE`).
const PAGE: u32 = 0x1000;
// Strides: of engines of a kind in a die core, of ARCs in the farm, of NIC macros and of the two
// NICs in one.
const ENGINE: u32 = 0x1_0000;
const FARM: u32 = 0x2_0000;
const MACRO: u32 = 0x8_0000;
const NIC: u32 = 0x2_0000;

/// The block of a number; `None` from [`COUNT`] on.
pub const fn block(number: u32) -> Option<Block> {
    let (kind, offset, size) = if number < ARCS {
        let size = if number < 4 { 2 * DCCM } else { DCCM };
        (BlockKind::Dccm(number), dccm(number), size)
    } else if number < ARCS + ACPS {
        let nth = number - ARCS;
        let offset = if nth < 4 {
            0x4e8_f000 + nth * FARM
        } else {
            0x40c_f000 + (nth - 4) * DCORE_STRIDE
        };
        (BlockKind::Acp(nth), offset, PAGE)
    } else if number < DECODERS_FIRST {
        let nth = number - ARCS - ACPS;
        let (nic, doorbell) = (nth / DOORBELLS, nth % DOORBELLS);
        let offset = 0x540_0000 + nic / 2 * MACRO + nic % 2 * NIC + doorbell * PAGE;
        (BlockKind::Doorbell { nic, doorbell }, offset, PAGE)
    } else if number < SYNC_FIRST {
        let nth = number - DECODERS_FIRST;
        let offset = if nth < 8 {
            0x41e_0000 + nth / 2 * DCORE_STRIDE + nth % 2 * ENGINE
        } else {
            0x4f0_0000 + (nth - 8) * ENGINE
        };
        (BlockKind::Decoder(nth), offset, PAGE)
    } else if number < COUNT {
        let nth = number - SYNC_FIRST;
        let dcore = nth / 2 + 1;
        let base = OBJS + dcore * DCORE_STRIDE;
        match nth % 2 {
            0 => (BlockKind::SyncObjects(dcore), base, OBJS_SIZE),
            _ => (BlockKind::SyncGlobal(dcore), base + 0x1_e000, PAGE),
        }
    } else {
        return None;
    };
    Some(Block {
        number,
        kind,
        address: DevicePa(CFG_BASE.0 + offset as u64),
        size,
    })
}

/// The block that begins at an address.
pub fn at(address: u64) -> Option<Block> {
    (0..COUNT)
        .filter_map(block)
        .find(|block| block.address.0 == address)
}

/// Where an ARC's memory lies (driver gaudi2.c `gaudi2_arc_dccm_bases`).
const fn dccm(arc: u32) -> u32 {
    match arc {
        0..4 => 0x4e9_0000 + arc * FARM,
        4 | 5 => 0x42c_0000 + (arc - 4) * 2 * DCORE_STRIDE,
        6..30 => 0x400_0000 + (arc - 6) / 6 * DCORE_STRIDE + (arc - 6) % 6 * ENGINE,
        30 => 0x406_0000,
        31 | 32 => 0x40c_0000 + (arc - 31) * 2 * DCORE_STRIDE,
        33..41 => 0x41c_0000 + (arc - 33) / 2 * DCORE_STRIDE + (arc - 33) % 2 * ENGINE,
        41 | 42 => 0x4c8_0000 + (arc - 41) * ENGINE,
        43 | 44 => 0x4e0_0000 + (arc - 43) * ENGINE,
        _ => 0x541_0000 + (arc - 45) / 2 * MACRO + (arc - 45) % 2 * NIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_where_the_drivers_headers_say() {
        let offset = |number| block(number).unwrap().address.0 - CFG_BASE.0;
        // mmARC_FARM_ARC3_DCCM0, mmDCORE3_MME_QM_ARC_DCCM, mmDCORE3_TPC5_QM_DCCM,
        // mmDCORE2_MME_QM_ARC_DCCM, mmDCORE3_EDMA1_QM_DCCM, mmROT1_QM_ARC_DCCM, mmNIC11_QM_DCCM1,
        // mmARC_FARM_ARC3_ACP_ENG, mmDCORE3_MME_QM_ARC_ACP_ENG
        let numbers = [3, 5, 29, 32, 40, 44, 68, 72, 76];
        assert_eq!(
            numbers.map(offset),
            [
                0x4ef_0000, 0x46c_0000, 0x465_0000, 0x44c_0000, 0x47d_0000, 0x4e1_0000, 0x59b_0000,
                0x4ee_f000, 0x46c_f000
            ]
        );
        // mmNIC0_UMR0_0_UNSECURE_DOORBELL0, mmDCORE3_DEC1_CMD, mmPCIE_DEC1_CMD, and the sync
        // managers of die cores 1 and 3.
        assert_eq!(
            [77, 437 + 7, 437 + 9, 447, 448, 452].map(offset),
            [
                0x540_0000, 0x47f_0000, 0x4f1_0000, 0x430_0000, 0x431_e000, 0x471_e000
            ]
        );
        assert_eq!(COUNT, 0x1c5, "as the driver counts them");
    }

    #[test]
    fn blocks_are_disjoint_and_found() {
        for one in (0..COUNT).filter_map(block) {
            assert_eq!(at(one.address.0), Some(one));
            assert_eq!(at(one.address.0 + 4), None, "a block is found by its start");
            let end = one.address.0 + u64::from(one.size);
            for other in (0..COUNT)
                .filter(|&number| number != one.number)
                .filter_map(block)
            {
                let other_end = other.address.0 + u64::from(other.size);
                assert!(
                    end <= other.address.0 || other_end <= one.address.0,
                    "{one:?} and {other:?}"
                );
            }
        }
        assert_eq!(block(COUNT), None);
    }
}
