//! Gaudi2's packets.

use gaudi_seam::{DeviceId, QueueId};
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgShort, Nop, Packets};
use gaudi_spec::gaudi2::qman::fence_address;
use gaudi_spec::gaudi2::sync::{Compare, MonArm, MonConfig, SOB_MAX, SobUpdate};
use gaudi_spec::{Asic, QueueRow, gaudi2};

use super::{Command, PACKETS, Sizes};

pub(super) const ROW: &Asic = &gaudi2::ASIC;

pub(super) static SIZES: Sizes = Sizes {
    transfer: LinDma::LEN,
    barrier: Nop::LEN,
    wait: WAIT,
    sob_max: SOB_MAX,
};

const WAIT: usize = 5 * MsgShort::LEN + Fence::LEN;

/// The fence counter of waits. The driver's own signal and wait submissions use another
/// (`gaudi2.c:gaudi2_gen_wait_cb`).
const FENCE: u8 = 0;

#[inline(always)]
pub(super) fn encode<R>(command: Command, put: impl FnOnce(&[u8]) -> R) -> Option<R> {
    Some(match command {
        Command::Copy { dst, src, len } => put(&LinDma::copy(dst, src, len).to_bytes()),
        Command::Fill { dst, pattern, len } => put(&LinDma::memset(dst, pattern, len).to_bytes()),
        // guess: it is not documented whether a queue entry completes before its last transfer. A
        // barrier is correct in both cases; it costs a gap between two submissions.
        Command::Barrier => {
            let nop = Nop::EMPTY.with_engine_barrier(true).with_message_barrier(true);
            put(&nop.to_bytes())
        }
        Command::Set { sob, value } => put(&update(sob, SobUpdate::set(value))?),
        Command::Add { sob, amount } => put(&update(sob, SobUpdate::add_signed(amount))?),
        Command::Wait {
            queue,
            monitor,
            sob,
            value,
        } => put(&wait(&queue, monitor, sob, value)?),
    })
}

fn update(sob: u32, update: SobUpdate) -> Option<[u8; MsgShort::LEN]> {
    let packet = MsgShort::sob(sob, update)?
        .with_engine_barrier(true)
        .with_message_barrier(true);
    Some(packet.to_bytes())
}

/// The monitor writes 1 to the queue's fence counter; the fence waits for it.
fn wait(queue: &QueueRow, monitor: u32, sob: u32, value: u16) -> Option<[u8; WAIT]> {
    let address = fence_address(queue, FENCE.into())?;
    let messages = [
        MsgShort::monitor_config(monitor, MonConfig::for_sob(sob))?,
        MsgShort::monitor_address_low(monitor, address)?,
        MsgShort::monitor_address_high(monitor, address)?,
        MsgShort::monitor_data(monitor, 1)?,
        MsgShort::monitor_arm(monitor, MonArm::for_sob(sob, Compare::AtLeast, value))?,
    ];
    let fence = Fence::new(FENCE, 1, 1)?.with_message_barrier(true);
    let mut bytes = [0; WAIT];
    let (start, end) = bytes.split_at_mut(WAIT - Fence::LEN);
    for (slot, message) in start.chunks_exact_mut(MsgShort::LEN).zip(messages) {
        slot.copy_from_slice(&message.to_bytes());
    }
    end.copy_from_slice(&fence.to_bytes());
    Some(bytes)
}

pub(super) fn log(device: DeviceId, queue: QueueId, bytes: &[u8]) {
    for packet in Packets::new(bytes) {
        match packet {
            Ok((offset, packet)) => {
                tracing::trace!(target: PACKETS, "{device}: queue {queue} +{offset:#x}: {packet:x?}");
            }
            Err(error) => tracing::trace!(target: PACKETS, "{device}: queue {queue}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CopyQueues;
    use super::*;

    #[test]
    fn first_enabled_edma_orders_copies() {
        use gaudi2::queue::{PDMA_0_0, PDMA_1_0, edma};
        let queues = CopyQueues::new(ROW, 0b110);
        assert_eq!((queues.to_device, queues.to_host), (PDMA_0_0, PDMA_1_0));
        let enabled = [edma(1, 0), edma(2, 0)].map(|id| id.expect("the engine exists"));
        assert_eq!(queues.in_device, enabled);
        assert_eq!(CopyQueues::new(ROW, 2).in_device, [QueueId(12)]);
        assert_eq!(CopyQueues::new(ROW, 0).in_device, [PDMA_1_0]);
    }
}
