//! What the driver's Gaudi2 files add to the silicon: numbers of engines and events, and the
//! commands of its signals.

use super::firmware::event;
use super::packet::{Fence, MsgShort};
use super::sync::{Compare, FIRST_USER_MONITOR, MonArm, SobUpdate};
use super::{qman, queue};
use crate::asic::{Commands, QueueEngine, QueueId, QueueRow};

/// Queues that signal: all but the NICs' and the management processor's (gaudi2.c
/// `gaudi2_set_fixed_properties`).
pub(super) const SYNC_STREAMS: u32 = NICS.start + (queue::CPU.0 - NICS.end);
const NICS: core::ops::Range<u32> = 156..252;
/// Sync objects of each (habanalabs.h `HL_RSVD_SOBS`); each has one monitor.
pub(super) const STREAM_SOBS: u32 = 2;
/// Decoders (gaudi2P.h `NUMBER_OF_DEC`).
pub(super) const DECODERS: u16 = 10;
/// A TPC's assertion (gaudi2P.h `GAUDI2_IRQ_NUM_TPC_ASSERT`).
pub(super) const TPC_ASSERT: u16 = 46;
/// An overflow of the event queue (gaudi2P.h `GAUDI2_IRQ_NUM_EQ_ERROR`).
pub(super) const EQ_ERROR: u16 = 47;
/// Events that the firmware can report (gaudi2_async_events.h `GAUDI2_EVENT_SIZE`).
pub(super) const EVENTS: u16 = 1329;
/// Of a fault in device memory the driver learns the 64 MiB around it (gaudi2.c
/// `gaudi2_handle_page_error`).
pub(super) const DRAM_FAULT_MASK: u64 = !((64 << 20) - 1);
/// PLLs (uapi `HL_GAUDI2_PLL_MAX`).
pub(super) const PLLS: u32 = 12;

// Engine numbers (uapi `enum gaudi2_engine_id`): each die core has two EDMAs, an MME, six TPCs and
// two decoders.
const DCORE: u32 = 11;
const MME: u32 = 2;
const TPC: u32 = 3;
const TPCS: u32 = 6;
const DECODER: u32 = TPC + TPCS;
const TPC_6: u32 = 4 * DCORE;
const PDMA: u32 = 45;
const ROTATOR: u32 = 47;
const NIC: u32 = 51;
/// `GAUDI2_ENGINE_ID_SIZE` of Linux 7.3.
pub(super) const ENGINES: u32 = 79;

/// The number of a queue's engine.
pub(super) fn engine_id(row: &QueueRow) -> Option<u32> {
    let nth = u32::from(row.instance);
    Some(match row.engine {
        QueueEngine::Pdma => PDMA + nth,
        QueueEngine::Edma => nth / 2 * DCORE + nth % 2,
        QueueEngine::Mme => MME + nth * DCORE,
        QueueEngine::Tpc if nth == 4 * TPCS => TPC_6,
        QueueEngine::Tpc => TPC + nth / TPCS * DCORE + nth % TPCS,
        QueueEngine::Nic => NIC + nth,
        QueueEngine::Rotator => ROTATOR + nth,
        QueueEngine::Cpu => return None,
    })
}

/// The kind of an engine that takes `HL_ENGINE_STALL` and `HL_ENGINE_RESUME` (gaudi2.c
/// `gaudi2_set_engine_modes`).
pub(super) fn stallable_engine(id: u32) -> Option<QueueEngine> {
    match id % DCORE {
        _ if id >= TPC_6 => None,
        0..MME => Some(QueueEngine::Edma),
        MME => Some(QueueEngine::Mme),
        TPC..DECODER => Some(QueueEngine::Tpc),
        _ => None,
    }
}

/// The event of an error of a queue manager (gaudi2_async_events.h `GAUDI2_EVENT_*_QM`).
pub(super) fn queue_error_event(row: &QueueRow) -> Option<u16> {
    let nth = u16::from(row.instance);
    Some(match row.engine {
        QueueEngine::Pdma => 1244 + nth,
        // HDMA 2, 3, 0, 1, 6, 7, 4, 5 in this order.
        QueueEngine::Edma => 1236 + (nth ^ 2),
        QueueEngine::Mme => 1232 + nth,
        QueueEngine::Tpc => 1206 + nth,
        QueueEngine::Rotator => 1249 + nth,
        QueueEngine::Nic | QueueEngine::Cpu => return None,
    })
}

/// The event of a refused access, and the engine that the driver records for it. For either PDMA
/// gaudi2.c `gaudi2_handle_qm_sei_err` records the first. An EDMA has no event of its own for it:
/// gaudi2.c `gaudi2_handle_qman_err` looks for one.
pub(super) fn razwi_event(row: &QueueRow) -> Option<(u16, u32)> {
    match row.engine {
        QueueEngine::Pdma => Some((event::PDMA0_AXI_ERROR + u16::from(row.instance), PDMA)),
        QueueEngine::Edma => Some((queue_error_event(row)?, engine_id(row)?)),
        _ => None,
    }
}

/// The number of a queue among those that signal.
pub(super) fn sync_stream(queue: QueueId) -> Option<u32> {
    match queue.0 {
        id if id < NICS.start => Some(id),
        id if (NICS.end..queue::CPU.0).contains(&id) => Some(id - (NICS.end - NICS.start)),
        _ => None,
    }
}

/// gaudi2.c `gaudi2_gen_signal_cb`.
pub(super) fn signal_commands(sob: u32) -> Option<Commands> {
    let packet = MsgShort::sob(sob, SobUpdate::add_signed(1))?
        .with_engine_barrier(true)
        .with_message_barrier(true);
    Commands::of(&[packet.to_bytes()])
}

/// gaudi2.c `gaudi2_gen_wait_cb`: the stream's monitor writes to fence 2 of the queue, which waits
/// for it.
pub(super) fn wait_commands(queue: &QueueRow, stream: u32, sob: u32, value: u32) -> Option<Commands> {
    let monitor = FIRST_USER_MONITOR - SYNC_STREAMS + stream;
    let arm = MonArm::for_sob(sob, Compare::AtLeast, u16::try_from(value).ok()?);
    let fence = qman::fence_address(queue, 2)?;
    Commands::of(&[
        MsgShort::monitor_address_low(monitor, fence)?.to_bytes(),
        MsgShort::monitor_address_high(monitor, fence)?.to_bytes(),
        MsgShort::monitor_data(monitor, 1)?.to_bytes(),
        MsgShort::monitor_arm(monitor, arm)?
            .with_message_barrier(true)
            .to_bytes(),
        Fence::new(2, 1, 1)?.to_bytes(),
    ])
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn rows() -> impl Iterator<Item = QueueRow> {
        (0..queue::CPU.0)
            .step_by(queue::STREAMS as usize)
            .filter_map(|id| queue::row(QueueId(id)))
    }

    #[test]
    fn engines_have_the_numbers_of_the_header() {
        let of = |queue: QueueId| engine_id(&queue::row(queue).unwrap());
        assert_eq!(of(queue::PDMA_1_0), Some(46), "PDMA_1");
        assert_eq!(of(queue::edma(7, 0).unwrap()), Some(34), "DCORE3_EDMA_1");
        assert_eq!(of(QueueId(92)), Some(24), "DCORE2_MME");
        assert_eq!(of(QueueId(20 + 6 * 4)), Some(44), "DCORE0_TPC_6");
        assert_eq!(of(QueueId(132 + 5 * 4)), Some(41), "DCORE3_TPC_5");
        assert_eq!(of(QueueId(256)), Some(48), "ROT_1");
        assert_eq!(of(queue::CPU), None, "the management processor is not an engine");
        let mut all: Vec<_> = rows().filter_map(|row| engine_id(&row)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 65, "every queue manager has a number of its own");
    }

    #[test]
    fn qmans_have_the_headers_events() {
        let of = |queue: QueueId| queue_error_event(&queue::row(queue).unwrap());
        // GAUDI2_EVENT_HDMA0_QM … HDMA7_QM
        let edma: Vec<_> = (0..8)
            .map(|nth| of(queue::edma(nth, 0).unwrap()).unwrap())
            .collect();
        assert_eq!(edma, [1238, 1239, 1236, 1237, 1242, 1243, 1240, 1241]);
        assert_eq!(of(queue::PDMA_1_0), Some(1245));
        assert_eq!(of(QueueId(156)), None, "NICs report theirs in another way");
    }

    #[test]
    fn razwi_of_either_pdma_names_first() {
        let of = |queue: QueueId| razwi_event(&queue::row(queue).unwrap());
        assert_eq!(of(queue::PDMA_0_0), Some((540, 45)), "PDMA_0");
        assert_eq!(of(queue::PDMA_1_0), Some((541, 45)), "PDMA_0, too");
        let edma = queue::edma(7, 0).unwrap();
        assert_eq!(of(edma), Some((1241, 34)), "HDMA7_QM, DCORE3_EDMA_1");
    }

    #[test]
    fn sync_streams_leave_out_nics() {
        assert_eq!(SYNC_STREAMS, 164);
        assert_eq!(sync_stream(QueueId(155)), Some(155));
        assert_eq!(sync_stream(QueueId(252)), Some(156));
        assert_eq!([156, 251, 260].map(|id| sync_stream(QueueId(id))), [None; 3]);
    }
}
