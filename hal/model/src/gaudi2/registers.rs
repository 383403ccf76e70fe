//! Maps an offset in the configuration space to its block of registers.

use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::{DCORE_STRIDE, PCIE_MSIX, qman, queue, sync};
use gaudi_spec::{DevicePa, QueueId};

use crate::gaudi2::stream::Cp;

/// A register that the model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("register {0} is not modelled")]
pub struct UnknownRegister(pub DevicePa);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Sync objects and monitors of a die core.
    Objs { dcore: u32, offset: u32 },
    /// Completion queues of a die core.
    Glbl { dcore: u32, offset: u32 },
    /// A fence's counter; `add` where a write adds to it.
    Fence { cp: Cp, fence: u32, add: bool },
    /// Half of a MSG_SHORT base.
    MessageBase { cp: Cp, base: u32, high: bool },
    /// A processor's predicates, or which of them packets may load.
    Predicates { cp: Cp, loadable: bool },
    /// Half of a WREG_64 base of a queue manager, by its first queue.
    WideBase { queue: QueueId, base: u32, high: bool },
    /// A register of a queue manager's arbiter: the manager's first queue, and the offset.
    Arbiter { queue: QueueId, offset: u32 },
    /// A register of the DMA core behind a queue manager: the manager's first queue, and the
    /// offset.
    Dma { queue: QueueId, offset: u32 },
    /// The word of the MSI-X block that raises an interrupt.
    Doorbell,
}

/// Queue managers by the start of their registers, and whether each has a DMA core.
#[derive(Debug)]
pub(crate) struct Registers {
    qmans: Vec<(u32, QueueId, bool)>,
}

impl Registers {
    pub(crate) fn new() -> Self {
        let mut qmans: Vec<_> = (0..queue::COUNT)
            .step_by(queue::STREAMS as usize)
            .filter_map(|id| queue::row(QueueId(id)))
            .filter(|row| row.qman != 0)
            .map(|row| {
                let dma = matches!(row.engine, QueueEngine::Pdma | QueueEngine::Edma);
                (row.qman, row.id, dma)
            })
            .collect();
        qmans.sort_unstable();
        Self { qmans }
    }

    /// The block of an aligned offset; `None` where nothing is modelled.
    pub(crate) fn block(&self, register: u32) -> Option<Block> {
        if register % 4 != 0 {
            return None;
        }
        if let Some(offset) = register.checked_sub(sync::OBJS) {
            let (dcore, offset) = (offset / DCORE_STRIDE, offset % DCORE_STRIDE);
            if dcore < sync::DCORES {
                if offset < sync::OBJS_SIZE {
                    return Some(Block::Objs { dcore, offset });
                }
                let glbl = offset.checked_sub(sync::GLBL - sync::OBJS);
                if let Some(offset) = glbl.filter(|&offset| offset < sync::GLBL_SIZE) {
                    return Some(Block::Glbl { dcore, offset });
                }
            }
        }
        // guess: the block's other words do nothing; programs ring its first.
        if register == PCIE_MSIX {
            return Some(Block::Doorbell);
        }
        let after = self.qmans.partition_point(|&(base, ..)| base <= register);
        let &(base, first, dma) = self.qmans.get(after.checked_sub(1)?)?;
        queue_manager(first, register - base).filter(|block| dma || !matches!(block, Block::Dma { .. }))
    }

    /// Whether a write to the register starts a transfer, of a queue manager's DMA core or of the
    /// kernel's.
    pub(crate) fn is_commit(&self, register: u32) -> bool {
        let of_a_queue = matches!(
            self.block(register),
            Some(Block::Dma {
                offset: qman::COMMIT,
                ..
            })
        );
        of_a_queue || register == qman::KDMA + qman::COMMIT
    }
}

fn queue_manager(first: QueueId, offset: u32) -> Option<Block> {
    // Each table is rows of one word a command processor.
    let row = |start: u32, stride: u32, rows: u32, words: u32| {
        let offset = offset.checked_sub(start)?;
        let (row, word) = (offset / stride, offset % stride / 4);
        (row < rows && word < words).then_some((row, word))
    };
    let cp = |word: u32| Cp::in_qman(first, word);
    for (table, add) in [(qman::FENCE_RDATA, true), (qman::FENCE_CNT, false)] {
        if let Some((fence, word)) = row(table, qman::FENCE_STRIDE, qman::FENCES, qman::CPS) {
            let cp = cp(word);
            return Some(Block::Fence { cp, fence, add });
        }
    }
    let words = 2 * qman::CPS;
    if let Some((base, word)) = row(qman::MSG_BASE_LO, qman::MSG_BASE_STRIDE, qman::MSG_BASES, words) {
        let (cp, high) = (cp(word % qman::CPS), word >= qman::CPS);
        return Some(Block::MessageBase { cp, base, high });
    }
    for (table, loadable) in [(qman::PRED, false), (qman::PRED_UPEN, true)] {
        if let Some((_, word)) = row(table, 4 * qman::CPS, 1, qman::CPS) {
            let cp = cp(word);
            return Some(Block::Predicates { cp, loadable });
        }
    }
    if let Some((base, word)) = row(qman::WR64_BASE, 8, qman::WR64_BASES, 2) {
        return Some(Block::WideBase {
            queue: first,
            base,
            high: word == 1,
        });
    }
    let weights = qman::ARB_WRR_WEIGHT..qman::ARB_WRR_WEIGHT + 4 * queue::STREAMS;
    if matches!(offset, qman::ARB_CFG | qman::ARB_MST_QUIET_PER) || weights.contains(&offset) {
        return Some(Block::Arbiter { queue: first, offset });
    }
    match offset.checked_sub(qman::DMA_CORE)? {
        offset @ (qman::WR_COMP_ADDR_HI..=qman::WR_COMP_WDATA | qman::SRC_BASE_LO..=qman::COMMIT) => {
            Some(Block::Dma { queue: first, offset })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_match_the_headers() {
        let registers = Registers::new();
        let queue = |id| QueueId(id);
        let known = [
            (
                0x410_7ffc,
                Block::Objs {
                    dcore: 0,
                    offset: 0x7ffc,
                },
                "SOB_OBJ_8191",
            ),
            (
                0x471_3ffc,
                Block::Objs {
                    dcore: 3,
                    offset: 0x1_3ffc,
                },
                "MON_STATUS_2047 of die core 3",
            ),
            (
                0x431_e050,
                Block::Glbl {
                    dcore: 1,
                    offset: 0x50,
                },
                "CQ_BASE_ADDR_L_0 of die core 1",
            ),
            (
                0x4c8_a2bc,
                Block::Fence {
                    cp: Cp(1),
                    fence: 2,
                    add: true,
                },
                "PDMA0 CP_FENCE2_RDATA_1",
            ),
            (
                0x4c9_a2e0,
                Block::Fence {
                    cp: Cp(4),
                    fence: 0,
                    add: false,
                },
                "PDMA1 CP_FENCE0_CNT_0",
            ),
            (
                0x41d_a2d8,
                Block::Fence {
                    cp: Cp(15),
                    fence: 3,
                    add: true,
                },
                "EDMA1 CP_FENCE3_RDATA_3",
            ),
            (
                0x4c8_a210,
                Block::MessageBase {
                    cp: Cp(3),
                    base: 0,
                    high: true,
                },
                "CP_MSG_BASE0_ADDR_HI_3",
            ),
            (
                0x4c8_a268,
                Block::MessageBase {
                    cp: Cp(0),
                    base: 3,
                    high: false,
                },
                "CP_MSG_BASE3_ADDR_LO_0",
            ),
            (
                0x4c8_a2a0,
                Block::Fence {
                    cp: Cp(0).lower(),
                    fence: 0,
                    add: true,
                },
                "PDMA0 CP_FENCE0_RDATA_4",
            ),
            (
                0x4c9_a3b4,
                Block::Predicates {
                    cp: Cp(4).lower(),
                    loadable: false,
                },
                "PDMA1 CP_PRED_4",
            ),
            (
                0x4c8_a3bc,
                Block::Predicates {
                    cp: Cp(1),
                    loadable: true,
                },
                "PDMA0 CP_PRED_UPEN_1",
            ),
            (
                0x4c8_a97c,
                Block::WideBase {
                    queue: queue(0),
                    base: 15,
                    high: true,
                },
                "PDMA0 QMAN_WR64_BASE_ADDR15, upper word",
            ),
            (
                0x4c8_a4b8,
                Block::Arbiter {
                    queue: queue(0),
                    offset: 0x4b8,
                },
                "PDMA0 ARB_WRR_WEIGHT_3",
            ),
            (
                0x41c_b8ec,
                Block::Dma {
                    queue: queue(8),
                    offset: 0x8ec,
                },
                "EDMA0 CORE_CTX_COMMIT",
            ),
            (
                0x4c8_b8c4,
                Block::Dma {
                    queue: queue(0),
                    offset: 0x8c4,
                },
                "PDMA0_CORE_CTX_WR_COMP_WDATA",
            ),
            (0x4c1_7000, Block::Doorbell, "PCIE_MSIX"),
        ];
        for (register, block, name) in known {
            assert_eq!(registers.block(register), Some(block), "{name} at {register:#x}");
        }
        for (register, why) in [
            (0x4c8_a2be, "not a multiple of 4"),
            (0x400_b8ec, "a TPC has no DMA core"),
            (0x4c8_a980, "sixteen bases"),
            (0x411_4000, "SM_SEC_0 is the driver's"),
            (0x490_0000, "there is no die core 4"),
            (0, "below everything"),
        ] {
            assert_eq!(registers.block(register), None, "{why}: {register:#x}");
        }
    }
}
