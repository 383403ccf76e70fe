//! The one table: what this crate needs to know of a chip, by its PCI device id.

use gaudi_seam::{DeviceId, Error, QueueId, Result};
use gaudi_spec::Asic;
use gaudi_spec::gaudi2;
use gaudi_uapi::info::HlInfoHwIpInfo;

/// The log's target for packets, at level `TRACE`.
pub(crate) const PACKETS: &str = "gaudi::packet";

/// The ASICs that copies and queues know.
const KNOWN: [&Asic; 1] = [&gaudi2::ASIC];

/// The row of a device id.
pub(crate) fn find(device_id: u32) -> Result<&'static Asic> {
    KNOWN
        .into_iter()
        .find(|asic| u32::from(asic.device) == device_id)
        .ok_or_else(|| {
            let known: Vec<_> = KNOWN.iter().map(|asic| asic.name).collect();
            Error::unsupported("open", "no table for this chip")
                .saw(format!("PCI device {device_id:#06x}"), known.join(", "))
        })
}

/// Bytes of the page in which device memory is allocated: a card with a broken memory stack has a smaller one, and an older driver
/// does not tell.
pub(crate) fn page_bytes(hw: &HlInfoHwIpInfo) -> u64 {
    [hw.device_mem_alloc_default_page_size, hw.dram_page_size]
        .into_iter()
        .find(|&page| page != 0)
        .or_else(|| find(hw.device_id).ok().map(|asic| asic.dram_page))
        .unwrap_or(0)
}

/// Logs the packets of a command buffer, one a line.
#[cold]
#[inline(never)]
pub(crate) fn log_packets(device: DeviceId, queue: QueueId, bytes: &[u8]) {
    for packet in gaudi2::packet::Packets::new(bytes) {
        match packet {
            Ok((offset, packet)) => {
                tracing::trace!(target: PACKETS, "{device}: queue {queue} +{offset:#x}: {packet:x?}");
            }
            Err(error) => tracing::trace!(target: PACKETS, "{device}: queue {queue}: {error}"),
        }
    }
}

/// The queues of [`Device::copy`](crate::Device::copy).
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyQueues {
    pub(crate) to_device: QueueId,
    pub(crate) to_host: QueueId,
    pub(crate) in_device: QueueId,
}

impl CopyQueues {
    /// One PCI engine a direction, as the vendor's tests use them, so that both directions run at once; within the device the first
    /// internal engine that works. Where none does, the engine to the host moves device memory too.
    pub(crate) fn of(hw: &HlInfoHwIpInfo) -> Self {
        use gaudi2::queue::{PDMA_0_0, PDMA_1_0, edma};
        let first = u8::try_from(hw.edma_enabled_mask.trailing_zeros()).unwrap_or(u8::MAX);
        Self {
            to_device: PDMA_0_0,
            to_host: PDMA_1_0,
            in_device: edma(first, 0).unwrap_or(PDMA_1_0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_queue_is_one_that_users_may_use() {
        use gaudi_seam::QueueId;
        use zeros::hw_with_edma;
        for mask in [0xff, 0x02, 0x80, 0] {
            let queues = CopyQueues::of(&hw_with_edma(mask));
            for QueueId(id) in [queues.to_device, queues.to_host, queues.in_device] {
                let row = (gaudi2::ASIC.queue)(QueueId(id)).expect("the queue exists");
                assert!(row.user, "queue {id} of EDMA mask {mask:#x} is open to users");
            }
        }
        assert_eq!(
            CopyQueues::of(&hw_with_edma(2)).in_device,
            QueueId(12),
            "the first engine that works"
        );
    }

    mod zeros {
        use super::HlInfoHwIpInfo;
        use gaudi_seam::{
            Backend, DeviceId, Era, InfoRequest, KernelIo, KernelIoExt as _, Node, NodeKind, Result,
        };

        struct Zeros(Node);

        impl KernelIo for Zeros {
            fn node(&self) -> &Node {
                &self.0
            }

            fn info(&self, _: InfoRequest, _: &mut [u8]) -> Result<u32> {
                Ok(0)
            }
        }

        /// A struct of zeros is made where the answers are: in a query.
        pub(super) fn hw_with_edma(mask: u32) -> HlInfoHwIpInfo {
            let io = Zeros(Node {
                kind: NodeKind::Control,
                device: DeviceId::new(Backend::Mock, 0),
                era: Era::AccelDrm,
                name: String::new(),
            });
            HlInfoHwIpInfo {
                edma_enabled_mask: mask,
                ..io.query().expect("zeros")
            }
        }
    }
}
