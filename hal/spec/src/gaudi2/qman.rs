//! A queue manager's registers, as offsets from its own start ([`QueueRow::qman`](crate::QueueRow::qman)).
//!
//! A queue manager has four submission streams and five command processors; the fifth serves the ARC. Registers "per processor" are
//! five words in a row (pdma0_qm_regs.h).

use crate::addr::DeviceVa;
use crate::asic::QueueRow;

/// Command processors in a queue manager (gaudi2.h `NUM_OF_CP_PER_QMAN`).
pub const CPS: u32 = 5;
/// Fence counters of a command processor.
pub const FENCES: u32 = 4;
/// Address bases of MSG_SHORT packets.
pub const MSG_BASES: u32 = 4;

/// `CP_MSG_BASE0_ADDR_LO_0`: five words low, five words high, then the next base.
pub const MSG_BASE_LO: u32 = 0x1f0;
/// From one base's registers to the next's.
pub const MSG_BASE_STRIDE: u32 = 0x28;
/// From a base's low words to its high words.
pub const MSG_BASE_HI: u32 = 0x14;
/// `CP_FENCE0_RDATA_0`: a write adds bits 3..0 to the counter (pdma0_qm_masks.h `CP_FENCE0_RDATA_INC_VAL_MASK`).
pub const FENCE_RDATA: u32 = 0x290;
/// `CP_FENCE0_CNT_0`: the counter, 14 bits (pdma0_qm_masks.h `CP_FENCE0_CNT_VAL_MASK`).
pub const FENCE_CNT: u32 = 0x2e0;
/// From one fence's registers to the next's.
pub const FENCE_STRIDE: u32 = 0x14;
/// What one write adds to a fence counter at most.
pub const FENCE_INC_MASK: u32 = 0xf;
/// The highest value of a fence counter.
pub const FENCE_MAX: u32 = 0x3fff;
/// The DMA core's registers lie this far after its queue manager's (`mmPDMA0_CORE_BASE`).
pub const DMA_CORE: u32 = 0x1000;
/// `CORE_CTX_WR_COMP_ADDR_HI`, from the DMA core's start (pdma0_core_ctx_regs.h).
pub const WR_COMP_ADDR_HI: u32 = 0x8bc;
/// `CORE_CTX_WR_COMP_ADDR_LO`.
pub const WR_COMP_ADDR_LO: u32 = 0x8c0;
/// `CORE_CTX_WR_COMP_WDATA`.
pub const WR_COMP_WDATA: u32 = 0x8c4;

/// Where a monitor writes to release fence `fence` of a queue's stream (driver gaudi2.c:11446). `None` where there is no such fence.
pub fn fence_address(queue: &QueueRow, fence: u32) -> Option<DeviceVa> {
    if fence >= FENCES || queue.qman == 0 {
        return None;
    }
    let register = queue.qman + FENCE_RDATA + fence * FENCE_STRIDE + u32::from(queue.stream) * 4;
    super::CFG_BASE
        .checked_add(u64::from(register))
        .map(|address| DeviceVa(address.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaudi2::queue;

    #[test]
    fn fence_two_of_pdma_0_1_is_where_the_header_has_it() {
        let row = queue::row(queue::PDMA_0_1).unwrap();
        assert_eq!(
            fence_address(&row, 2),
            Some(DeviceVa(0x1000_007f_f800_0000 + 0x4c8_a2bc)),
            "mmPDMA0_QM_CP_FENCE2_RDATA_1"
        );
        assert_eq!(fence_address(&row, 4), None);
    }
}
