//! The routers between engines and the rest of the chip: what they record of an access that they
//! refuse (RAZWI: reads as zero, writes are ignored).

use crate::asic::{QueueEngine, QueueRow};

/// The first router of the first die core, to which both PDMAs are connected
/// (dcore0_rtr0_mstr_if_rr_shrd_hbw_regs.h; driver gaudi2.c `gaudi2_pdma_initiator_hbw_rtr_id`).
const PDMA_ROUTER: u32 = 0x414_2000;
/// The first interface of the first die core's SFT router (gaudi2_blocks_linux_driver.h
/// `mmSFT0_HBW_RTR_IF0_MSTR_IF_RR_SHRD_HBW_BASE`), the next one, and the next die core's.
const SFT: u32 = 0x4e4_2000;
const SFT_INTERFACE: u32 = 0x4000;
const SFT_STRIDE: u32 = 0x1_0000;

/// `AW_RAZWI_HI`: bits 63..32 of the address of a refused write.
pub const WRITE_ADDRESS_63_32: u32 = 0x158;
/// `AW_RAZWI_LO`: bits 31..0.
pub const WRITE_ADDRESS_31_0: u32 = 0x15c;
/// `AW_RAZWI_HAPPENED`: bit 0 holds the address until 1 is written to the bit.
pub const WRITE_REFUSED: u32 = 0x170;

/// The block of the router that an engine's accesses to memory pass; `None` for engines that the
/// table does not know (driver gaudi2.c `gaudi2_edma_initiator_hbw_sft`).
pub fn of(row: &QueueRow) -> Option<u32> {
    let nth = u32::from(row.instance);
    match row.engine {
        QueueEngine::Pdma => Some(PDMA_ROUTER),
        QueueEngine::Edma => {
            let (dcore, odd) = (nth / 2, nth % 2);
            let interface = if dcore < 2 { 1 - odd } else { odd };
            Some(SFT + dcore * SFT_STRIDE + interface * SFT_INTERFACE)
        }
        _ => None,
    }
}

/// Whether a register is the [`WRITE_REFUSED`] of a router.
pub fn is_write_refused(register: u32) -> bool {
    let block = register.wrapping_sub(WRITE_REFUSED);
    let in_sft = block.wrapping_sub(SFT);
    block == PDMA_ROUTER || in_sft < 4 * SFT_STRIDE && matches!(in_sft % SFT_STRIDE, 0 | SFT_INTERFACE)
}
