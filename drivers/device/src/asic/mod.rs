//! The chips that this crate supports: the row and the packet encoder of each.
//!
//! Each chip has one module here. All other files read the [`Asic`] row or call the [`Encoder`].

mod gaudi2;

use gaudi_seam::{DeviceId, DeviceVa, Error, QueueId, Result};
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::{Asic, QueueRow};
use gaudi_uapi::info::HlInfoHwIpInfo;

/// The log target of packets, at level `TRACE`.
pub(crate) const PACKETS: &str = "gaudi::packet";

/// The supported chips.
const KNOWN: [(&Asic, Encoder); 1] = [(gaudi2::ROW, Encoder::Gaudi2)];

/// Returns the row and the encoder for a PCI device id.
///
/// # Errors
/// `Unsupported`: no row has this device id.
pub(crate) fn find(device_id: u32) -> Result<(&'static Asic, Encoder)> {
    KNOWN
        .into_iter()
        .find(|(asic, _)| u32::from(asic.device) == device_id)
        .ok_or_else(|| {
            let known: Vec<_> = KNOWN.iter().map(|(asic, _)| asic.name).collect();
            Error::unsupported("open", "no table for this chip")
                .saw(format!("PCI device {device_id:#06x}"), known.join(", "))
        })
}

/// Returns the size of the page in which the driver allocates device memory, in bytes; 0 if neither
/// the driver nor a row has it.
///
/// A card with a broken memory stack has a smaller page than its row. An older driver does not
/// report the page.
pub(crate) fn page_bytes(hw: &HlInfoHwIpInfo) -> u64 {
    [hw.device_mem_alloc_default_page_size, hw.dram_page_size]
        .into_iter()
        .find(|&page| page != 0)
        .or_else(|| find(hw.device_id).ok().map(|(asic, _)| asic.dram_page))
        .unwrap_or(0)
}

/// Whether the card's engine behind a queue is enabled. Only internal DMA engines can be disabled.
pub(crate) fn is_enabled(row: &QueueRow, edma_mask: u32) -> bool {
    row.engine != QueueEngine::Edma || edma_mask & 1_u32.wrapping_shl(row.instance.into()) != 0
}

/// Stream 0 of each engine that takes a user's work, by queue number.
fn streams(asic: &Asic) -> impl Iterator<Item = QueueRow> {
    let ids = (0..asic.queue_count).step_by(asic.queue_streams as usize);
    ids.filter_map(|id| (asic.queue)(QueueId(id)))
        .filter(|row| row.user)
}

/// The queues of [`Device::copy`](crate::Device::copy).
#[derive(Debug, Clone)]
pub(crate) struct CopyQueues {
    pub(crate) to_device: QueueId,
    pub(crate) to_host: QueueId,
    /// The first orders the copies within the device. The others help with large ones.
    pub(crate) in_device: Vec<QueueId>,
}

impl CopyQueues {
    /// Each direction has its own PCI engine, as in the vendor's tests, so that both run at once.
    /// Within the device, copies use the enabled internal engines, or the engine to the host if
    /// none is enabled.
    pub(crate) fn new(asic: &Asic, edma_mask: u32) -> Self {
        let (mut pci, mut in_device) = (None, Vec::new());
        for row in streams(asic) {
            match row.engine {
                // The first and the last.
                QueueEngine::Pdma => pci = Some((pci.map_or(row.id, |(first, _)| first), row.id)),
                QueueEngine::Edma if is_enabled(&row, edma_mask) => in_device.push(row.id),
                _ => {}
            }
        }
        let Some((to_device, to_host)) = pci else {
            unreachable!("the row of {} has no PCI DMA queue", asic.name);
        };
        if in_device.is_empty() {
            in_device.push(to_host);
        }
        Self {
            to_device,
            to_host,
            in_device,
        }
    }
}

/// Bytes of one chip's packets, and the range of its sync objects.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// A copy or a fill.
    pub(crate) transfer: usize,
    pub(crate) barrier: usize,
    /// All packets of a wait.
    pub(crate) wait: usize,
    /// The highest value of a sync object.
    pub(crate) sob_max: u32,
}

/// Commands of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    /// Copies `len` bytes.
    Copy { dst: DeviceVa, src: DeviceVa, len: u32 },
    /// Fills `len` bytes with a 32-bit pattern.
    Fill { dst: DeviceVa, pattern: u32, len: u32 },
    /// Waits until the engine has finished what came before and its messages have arrived.
    Barrier,
    /// Sets a sync object after a barrier.
    Set { sob: u32, value: u16 },
    /// Adds to a sync object after a barrier.
    Add { sob: u32, amount: i16 },
    /// Blocks the queue until a sync object is at least `value`.
    Wait {
        queue: QueueRow,
        monitor: u32,
        sob: u32,
        value: u16,
    },
}

/// Encodes the packets of one chip. An enum and not a trait object: encoding is on the hot path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Encoder {
    Gaudi2,
}

impl Encoder {
    #[inline]
    pub(crate) fn sizes(self) -> &'static Sizes {
        match self {
            Self::Gaudi2 => &gaudi2::SIZES,
        }
    }

    /// Passes the packets of a command to `put`; `None` if the chip has no register for the queue,
    /// monitor or sync object.
    #[inline(always)]
    pub(crate) fn encode<R>(self, command: Command, put: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Gaudi2 => gaudi2::encode(command, put),
        }
    }

    /// Logs the packets of a command buffer, one per line.
    #[cold]
    #[inline(never)]
    pub(crate) fn log(self, device: DeviceId, queue: QueueId, bytes: &[u8]) {
        match self {
            Self::Gaudi2 => gaudi2::log(device, queue, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_queues_are_open_to_users() {
        for (asic, _) in KNOWN {
            for mask in [0xff, 0x02, 0x80, 0] {
                let queues = CopyQueues::new(asic, mask);
                for id in [queues.to_device, queues.to_host]
                    .into_iter()
                    .chain(queues.in_device)
                {
                    let row = (asic.queue)(id).expect("the queue exists");
                    assert!(row.user, "queue {id} of EDMA mask {mask:#x} is open to users");
                }
            }
        }
    }
}
