//! Gaudi2's queues: 65 queue managers of four streams each, and the management processor's queue.
//!
//! Numbers: uapi `enum gaudi2_queue_id`. All but the last are `QUEUE_TYPE_HW` and take user command
//! buffers only (driver gaudi2.c:gaudi2_set_fixed_properties). A user may submit to PDMA_0_0,
//! PDMA_0_1 and PDMA_1_0 of the PCI engines (driver gaudi2.c:gaudi2_is_queue_enabled; the other
//! four streams belong to the ARC), and to every stream of an enabled EDMA, MME, TPC or rotator.
//! NIC queues open only with the NIC driver.

use crate::asic::{QueueEngine, QueueId, QueueRow, QueueType};

/// Stream 0 of PDMA 0 (`GAUDI2_QUEUE_ID_PDMA_0_0`).
pub const PDMA_0_0: QueueId = QueueId(0);
/// Stream 1 of PDMA 0 (`GAUDI2_QUEUE_ID_PDMA_0_1`).
pub const PDMA_0_1: QueueId = QueueId(1);
/// Stream 0 of PDMA 1 (`GAUDI2_QUEUE_ID_PDMA_1_0`).
pub const PDMA_1_0: QueueId = QueueId(4);
/// The management processor's queue (`GAUDI2_QUEUE_ID_CPU_PQ`).
pub const CPU: QueueId = QueueId(260);
/// All numbers are below (`GAUDI2_QUEUE_ID_SIZE`).
pub const COUNT: u32 = 261;
/// Streams of one queue manager (gaudi2.h `NUM_OF_PQ_PER_QMAN`).
pub const STREAMS: u32 = 4;
/// Internal DMA engines, two a die core (gaudi2.h `NUM_OF_EDMA_PER_DCORE`).
pub const EDMAS: u8 = 8;

/// A stream of an internal DMA engine (`GAUDI2_QUEUE_ID_DCOREx_EDMA_y_z`), or `None` where there is
/// none.
pub const fn edma(instance: u8, stream: u8) -> Option<QueueId> {
    if instance >= EDMAS || stream as u32 >= STREAMS {
        return None;
    }
    let first = DCORES[instance as usize / 2].edma;
    Some(QueueId(first + (instance % 2) as u32 * STREAMS + stream as u32))
}

struct Dcore {
    edma: u32,
    mme: u32,
    tpc: u32,
    end: u32,
}

// First queue numbers of each die core (uapi `enum gaudi2_queue_id`). Die core 0 has a seventh TPC.
const DCORES: [Dcore; 4] = [
    Dcore {
        edma: 8,
        mme: 16,
        tpc: 20,
        end: 48,
    },
    Dcore {
        edma: 48,
        mme: 56,
        tpc: 60,
        end: 84,
    },
    Dcore {
        edma: 84,
        mme: 92,
        tpc: 96,
        end: 120,
    },
    Dcore {
        edma: 120,
        mme: 128,
        tpc: 132,
        end: 156,
    },
];
const NIC: u32 = 156;
const ROTATOR: u32 = 252;

// Queue managers' registers (gaudi2_blocks_linux_driver.h `mm*_QM_BASE`), the same in each die core
// at a distance of `DCORE_STRIDE`.
const QM_PDMA: u32 = 0x4c8_a000;
const QM_EDMA: u32 = 0x41c_a000;
const QM_MME: u32 = 0x40c_a000;
const QM_TPC: u32 = 0x400_a000;
const QM_ROTATOR: u32 = 0x4e0_a000;
const QM_STEP: u32 = 0x1_0000;
// `mmNIC0_QM0_BASE`; a macro has two, 0x20000 apart; macros are 0x80000 apart.
const QM_NIC: u32 = 0x541_a000;

/// The rows, by number.
static ROWS: [QueueRow; COUNT as usize] = {
    let mut rows = [make(QueueId(0)); COUNT as usize];
    let mut id = 0;
    while id < COUNT {
        rows[id as usize] = make(QueueId(id));
        id += 1;
    }
    rows
};

/// The row of a queue, or `None` where the number names none.
pub fn row(id: QueueId) -> Option<QueueRow> {
    ROWS.get(usize::try_from(id.0).ok()?).copied()
}

/// The place of a queue behind the first of a run: its queue manager and its stream.
const fn place(id: QueueId, first: u32) -> (u32, u8) {
    ((id.0 - first) / STREAMS, ((id.0 - first) % STREAMS) as u8)
}

/// Makes the row of a queue whose number is below [`COUNT`].
const fn make(id: QueueId) -> QueueRow {
    let (engine, instance, stream, qman) = match id.0 {
        0..8 => {
            let (n, stream) = place(id, 0);
            (QueueEngine::Pdma, n, stream, QM_PDMA + n * QM_STEP)
        }
        8..NIC => {
            let mut d = 0;
            while id.0 >= DCORES[d as usize].end {
                d += 1;
            }
            let dcore = &DCORES[d as usize];
            let shift = d * super::map::DCORE_STRIDE;
            if id.0 < dcore.mme {
                let (n, stream) = place(id, dcore.edma);
                (
                    QueueEngine::Edma,
                    d * 2 + n,
                    stream,
                    QM_EDMA + n * QM_STEP + shift,
                )
            } else if id.0 < dcore.tpc {
                (QueueEngine::Mme, d, place(id, dcore.mme).1, QM_MME + shift)
            } else {
                let (n, stream) = place(id, dcore.tpc);
                // The seventh TPC of die core 0 counts last (driver gaudi2P.h
                // `TPC_ID_DCORE0_TPC6`).
                let instance = if n == 6 { 24 } else { d * 6 + n };
                (QueueEngine::Tpc, instance, stream, QM_TPC + n * QM_STEP + shift)
            }
        }
        NIC..ROTATOR => {
            let (n, stream) = place(id, NIC);
            (
                QueueEngine::Nic,
                n,
                stream,
                QM_NIC + (n / 2) * 0x8_0000 + (n % 2) * 0x2_0000,
            )
        }
        ROTATOR..260 => {
            let (n, stream) = place(id, ROTATOR);
            (QueueEngine::Rotator, n, stream, QM_ROTATOR + n * QM_STEP)
        }
        _ => (QueueEngine::Cpu, 0, 0, 0),
    };
    QueueRow {
        id,
        engine,
        instance: instance as u8,
        stream,
        kind: if id.0 == CPU.0 {
            QueueType::Cpu
        } else {
            QueueType::Hardware
        },
        user: match engine {
            QueueEngine::Pdma => id.0 == PDMA_0_0.0 || id.0 == PDMA_0_1.0 || id.0 == PDMA_1_0.0,
            QueueEngine::Nic | QueueEngine::Cpu => false,
            _ => true,
        },
        qman,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asic::QueueEngine::{Cpu, Edma, Mme, Nic, Pdma, Rotator, Tpc};

    #[test]
    fn rows_agree_with_the_headers() {
        // (queue, engine, instance, stream, user, queue manager) from the uapi enum and
        // gaudi2_blocks_linux_driver.h.
        let known = [
            (0, Pdma, 0, 0, true, 0x4c8_a000),
            (2, Pdma, 0, 2, false, 0x4c8_a000),
            (4, Pdma, 1, 0, true, 0x4c9_a000),
            (5, Pdma, 1, 1, false, 0x4c9_a000),
            (8, Edma, 0, 0, true, 0x41c_a000),
            (19, Mme, 0, 3, true, 0x40c_a000),
            (47, Tpc, 24, 3, true, 0x406_a000),
            (52, Edma, 3, 0, true, 0x43d_a000),
            (83, Tpc, 11, 3, true, 0x425_a000),
            (84, Edma, 4, 0, true, 0x45c_a000),
            (96, Tpc, 12, 0, true, 0x440_a000),
            (127, Edma, 7, 3, true, 0x47d_a000),
            (155, Tpc, 23, 3, true, 0x465_a000),
            (156, Nic, 0, 0, false, 0x541_a000),
            (251, Nic, 23, 3, false, 0x59b_a000),
            (256, Rotator, 1, 0, true, 0x4e1_a000),
            (260, Cpu, 0, 0, false, 0),
        ];
        for (id, engine, instance, stream, user, qman) in known {
            let row = row(QueueId(id)).expect("the queue exists");
            let seen = (row.engine, row.instance, row.stream, row.user, row.qman);
            assert_eq!(seen, (engine, instance, stream, user, qman), "row of queue {id}");
        }
        assert_eq!(row(QueueId(COUNT)), None, "no queue past the last");
    }

    #[test]
    fn internal_dma_queues_are_found_by_instance() {
        for instance in 0..EDMAS {
            let row = row(edma(instance, 2).expect("eight engines")).expect("a row");
            assert_eq!((row.engine, row.instance, row.stream), (Edma, instance, 2));
        }
        assert_eq!(edma(8, 0), None);
        assert_eq!(edma(0, 4), None);
    }
}
