//! A queue manager's registers, as offsets from its own start
//! ([`QueueRow::qman`](crate::QueueRow::qman)).
//!
//! A queue manager has four submission streams, a command processor for each, and a fifth for what
//! CP_DMA and the ARC bring. Registers "per processor" are five words in a row (pdma0_qm_regs.h).

#![allow(
    clippy::missing_errors_doc,
    reason = "the checked setters that bitfield-struct writes fail only if a value does not fit"
)]

use bitfield_struct::bitfield;

use crate::addr::DeviceVa;
use crate::asic::QueueRow;

/// Command processors in a queue manager (gaudi2.h `NUM_OF_CP_PER_QMAN`).
pub const CPS: u32 = 5;
/// The processor that runs what CP_DMA brings: the fifth, the "lower" one (driver
/// gaudi2.c:gaudi2_handle_qman_err_generic).
pub const LOWER_CP: u32 = 4;
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
/// `CP_FENCE0_RDATA_0`: a write adds bits 3..0 to the counter (pdma0_qm_masks.h
/// `CP_FENCE0_RDATA_INC_VAL_MASK`).
pub const FENCE_RDATA: u32 = 0x290;
/// `CP_FENCE0_CNT_0`: the counter, 14 bits (pdma0_qm_masks.h `CP_FENCE0_CNT_VAL_MASK`).
pub const FENCE_CNT: u32 = 0x2e0;
/// From one fence's registers to the next's.
pub const FENCE_STRIDE: u32 = 0x14;
/// What one write adds to a fence counter at most.
pub const FENCE_INC_MASK: u32 = 0xf;
/// The highest value of a fence counter.
pub const FENCE_MAX: u32 = 0x3fff;
/// `CP_PRED_0`: the 32 predicates of a command processor, a bit each.
pub const PRED: u32 = 0x3a4;
/// `CP_PRED_UPEN_0`: which of them LOAD_AND_EXE may change.
pub const PRED_UPEN: u32 = 0x3b8;
/// What `CP_PRED_UPEN` holds after a reset: all but predicate 0, which LOAD_AND_EXE does not change
/// (hl-thunk test_cs_load_predicates; that the register is what keeps it is `source: inferred`).
pub const PRED_UPEN_RESET: u32 = !1;
/// `ARB_CFG_0`: the arbiter's mode ([`ArbCfg`]).
pub const ARB_CFG: u32 = 0x4a4;
/// `ARB_WRR_WEIGHT_0`: grants of a stream in a round, 8 bits; one word a stream.
pub const ARB_WRR_WEIGHT: u32 = 0x4ac;
/// `ARB_MST_QUIET_PER`: cycles between grants.
pub const ARB_MST_QUIET_PER: u32 = 0x718;
/// `QMAN_WR64_BASE_ADDR0`: sixteen 64-bit bases of WREG_64 packets, two words each
/// (gaudi2_blocks_linux_driver.h `mmPDMA0_QM_QMAN_WR64_BASE_ADDR0_BASE`).
pub const WR64_BASE: u32 = 0x900;
/// How many there are.
pub const WR64_BASES: u32 = 16;
/// Registers that WREG packets reach: the 64 KiB in which queue manager and engine lie (vendor
/// graph compiler, gaudi2 `QMAN_BLOCK_BASE` 0xa000, `DMA_BLOCK_BASE` 0xb000).
pub const WREG_WINDOW: u32 = 0x1_0000;
/// The DMA core's registers lie this far after its queue manager's (`mmPDMA0_CORE_BASE`).
pub const DMA_CORE: u32 = 0x1000;
/// `CORE_CTX_WR_COMP_ADDR_HI`, from the DMA core's start (pdma0_core_ctx_regs.h).
pub const WR_COMP_ADDR_HI: u32 = 0x8bc;
/// `CORE_CTX_WR_COMP_ADDR_LO`.
pub const WR_COMP_ADDR_LO: u32 = 0x8c0;
/// `CORE_CTX_WR_COMP_WDATA`.
pub const WR_COMP_WDATA: u32 = 0x8c4;
/// `CORE_CTX_SRC_BASE_LO`: where a transfer that `COMMIT` starts reads, or the pattern that it
/// fills with.
pub const SRC_BASE_LO: u32 = 0x8d8;
/// `CORE_CTX_SRC_BASE_HI`.
pub const SRC_BASE_HI: u32 = 0x8dc;
/// `CORE_CTX_DST_BASE_LO`: where it writes.
pub const DST_BASE_LO: u32 = 0x8e0;
/// `CORE_CTX_DST_BASE_HI`.
pub const DST_BASE_HI: u32 = 0x8e4;
/// `CORE_CTX_DST_TSIZE_0`: its bytes.
pub const DST_TSIZE_0: u32 = 0x8e8;
/// `CORE_CTX_COMMIT`: starts a transfer; the flags of [`LinDmaCtl`](super::packet::LinDmaCtl) and
/// [`COMMIT_LINEAR`].
pub const COMMIT: u32 = 0x8ec;
/// The transfer has one dimension (arc_farm_kdma_ctx_masks.h `CTX_COMMIT_LIN`).
pub const COMMIT_LINEAR: u32 = 1 << 31;

/// `GLBL_CFG0`: bit n enables the fetcher of stream n (pdma0_qm_masks.h `GLBL_CFG0_PQF_EN`), 0 to
/// 3.
pub const GLBL_CFG0: u32 = 0x0;
/// `GLBL_STS0`: fetchers of rings, fetchers of buffers and processors that are idle ([`IDLE`]).
pub const GLBL_STS0: u32 = 0x1c;
/// What [`GLBL_STS0`] reads of an idle queue manager (driver gaudi2_masks.h `QM_IDLE_MASK`).
pub const IDLE: u32 = 0x3fff;
/// Processor n is idle when bit n from here is set (`GLBL_STS0_CP_IDLE`).
pub const CP_IDLE_SHIFT: u32 = 9;
/// `GLBL_STS1`, and what it reads when the ARC is idle (`QM_ARC_IDLE_MASK`).
pub const GLBL_STS1: (u32, u32) = (0x20, 1);
/// `CGM_STS`, and what it reads of an idle queue manager (`CGM_IDLE_MASK`).
pub const CGM_STS: (u32, u32) = (0xd84, 0x100);
/// `GLBL_ERR_STS_0`: what stopped a processor; a word a processor (driver gaudi2.c
/// `gaudi2_qman_error_cause`).
pub const GLBL_ERR_STS: u32 = 0x24;
/// The processor met an opcode that it does not know.
pub const ERR_UNDEFINED: u32 = 1 << 3;
/// It met a STOP.
pub const ERR_STOP: u32 = 1 << 4;
/// A register that it wrote with WREG is none.
pub const ERR_WREG: u32 = 1 << 6;
/// `CQ_TSIZE_STS_0`: bytes of the buffer that a processor runs; a word a processor
/// (pdma0_qm_regs.h).
pub const CQ_TSIZE_STS: u32 = 0x1a0;
/// `CQ_PTR_LO_STS_0`: where it lies.
pub const CQ_PTR_LO_STS: u32 = 0x1b4;
/// `CQ_PTR_HI_STS_0`.
pub const CQ_PTR_HI_STS: u32 = 0x1c8;
/// `PQ_BASE_LO_0`: where a stream's ring lies; a word a stream, as all of the ring's.
pub const PQ_BASE_LO: u32 = 0x50;
/// `PQ_BASE_HI_0`.
pub const PQ_BASE_HI: u32 = 0x60;
/// `PQ_SIZE_0`: log2 of its entries.
pub const PQ_SIZE: u32 = 0x70;
/// `PQ_PI_0`: entries written, modulo twice their number: the doorbell.
pub const PQ_PI: u32 = 0x80;
/// `PQ_CI_0`: entries done.
pub const PQ_CI: u32 = 0x90;
/// Bytes of an entry (driver habanalabs.h `struct hl_bd`): address, bytes, control word.
pub const PQ_ENTRY: u64 = 16;
/// `PQC_LBW_WDATA_0`: what is written when an entry is done.
pub const PQC_LBW_WDATA: u32 = 0x45c;
/// `PQC_LBW_BASE_LO_0`: where to, less the words that the entry's control word counts in bits
/// 27..16 (driver habanalabs.h `BD_CTL_COMP_OFFSET_MASK`).
pub const PQC_LBW_BASE_LO: u32 = 0x46c;
/// `PQC_LBW_BASE_HI_0`.
pub const PQC_LBW_BASE_HI: u32 = 0x47c;
/// `PQC_CFG`: bit 0 enables that write.
pub const PQC_CFG: u32 = 0x48c;
/// `AXUSER_NONSECURED_HB_ASID`: the context in which a queue manager reads and writes, bits 9..0;
/// `MMU_BP` is the next word.
pub const AXUSER: u32 = 0xb80;
/// The same of the DMA core behind it (`CORE_CTX_AXUSER_HB_ASID`).
pub const CORE_AXUSER: u32 = DMA_CORE + 0x800;
/// From `HB_ASID` to `HB_MMU_BP`: bits 0 and 4 set bypass the MMU.
pub const AXUSER_MMU_BP: u32 = 4;
/// What bypasses it for reads and writes.
pub const MMU_BYPASS: u32 = 0x11;
/// The kernel's own DMA engine, which no queue manager feeds (`mmARC_FARM_KDMA_BASE`); its
/// registers are a DMA core's.
pub const KDMA: u32 = 0x4e8_b000;

/// A word written to `ARB_CFG_0` (pdma0_qm_masks.h `ARB_CFG_0_*`).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ArbCfg {
    /// Streams take turns by weight, instead of by the priority in their ARB_POINT (hl-thunk
    /// gaudi2_add_arb_en_pkt).
    pub by_weight: bool,
    #[bits(3)]
    __: u8,
    /// Decides itself, instead of waiting for another queue manager's decision.
    pub is_master: bool,
    #[bits(3)]
    __: u8,
    /// ARB_POINT waits for grants.
    pub enable: bool,
    /// Does not wait for messages.
    pub no_stall: bool,
    #[bits(22)]
    __: u32,
}

// The address of a word of a table with one word a command processor.
fn word_of(qman: u32, table: u32, cp: u32) -> Option<DeviceVa> {
    super::map::CFG_BASE
        .checked_add(u64::from(qman) + u64::from(table) + u64::from(cp) * 4)
        .map(|address| DeviceVa(address.get()))
}

/// Where a monitor writes to release fence `fence` of the lower command processor of a queue's
/// queue manager (hl-thunk gaudi2_get_fence_addr). `None` where there is no such fence.
pub fn lower_fence_address(queue: &QueueRow, fence: u32) -> Option<DeviceVa> {
    if fence >= FENCES || queue.qman == 0 {
        return None;
    }
    word_of(queue.qman, FENCE_RDATA + fence * FENCE_STRIDE, LOWER_CP)
}

/// A register of a queue's queue manager, by its offset. `None` where the queue has no registers.
pub fn address(queue: &QueueRow, register: u32) -> Option<DeviceVa> {
    if queue.qman == 0 {
        return None;
    }
    word_of(queue.qman, register, 0)
}

/// Where a monitor writes to release fence `fence` of a queue's stream (driver
/// gaudi2.c:gaudi2_gen_wait_cb). `None` where there is no such fence.
pub fn fence_address(queue: &QueueRow, fence: u32) -> Option<DeviceVa> {
    if fence >= FENCES || queue.qman == 0 {
        return None;
    }
    word_of(
        queue.qman,
        FENCE_RDATA + fence * FENCE_STRIDE,
        u32::from(queue.stream),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaudi2::queue;

    #[test]
    fn pdma_fence_matches_the_header() {
        let row = queue::row(queue::PDMA_0_1).unwrap();
        assert_eq!(
            fence_address(&row, 2),
            Some(DeviceVa(0x1000_007f_f800_0000 + 0x4c8_a2bc)),
            "mmPDMA0_QM_CP_FENCE2_RDATA_1"
        );
        assert_eq!(fence_address(&row, 4), None);
    }

    #[test]
    fn cp_registers_match_the_header() {
        let cfg = 0x1000_007f_f800_0000_u64;
        let row = queue::row(queue::PDMA_0_1).unwrap();
        assert_eq!(
            lower_fence_address(&row, 3),
            Some(DeviceVa(cfg + 0x4c8_a2dc)),
            "mmPDMA0_QM_CP_FENCE3_RDATA_4"
        );
        assert_eq!(lower_fence_address(&row, 4), None);
        assert_eq!(
            address(&row, ARB_MST_QUIET_PER),
            Some(DeviceVa(cfg + 0x4c8_a718)),
            "mmPDMA0_QM_ARB_MST_QUIET_PER"
        );
        assert_eq!(
            ArbCfg::new()
                .with_by_weight(true)
                .with_is_master(true)
                .with_enable(true)
                .into_bits(),
            1 | 1 << 4 | 1 << 8,
            "as gaudi2_add_arb_en_pkt builds it"
        );
        let cpu = queue::row(queue::CPU).unwrap();
        assert_eq!(address(&cpu, ARB_CFG), None, "no queue manager");
    }
}
