//! Counters of the chip's work.

/// Counters of the chip's work since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets executed.
    pub packets: u64,
    /// LIN_DMA packets among them.
    pub lin_dma: u64,
    /// Command buffers executed to their end.
    pub command_buffers: u64,
    /// Bytes that DMA engines copied from host to device memory.
    pub host_to_device: u64,
    /// … from device to host memory.
    pub device_to_host: u64,
    /// … within device memory.
    pub device_to_device: u64,
    /// … within host memory.
    pub host_to_host: u64,
    /// Bytes that DMA engines filled.
    pub memset: u64,
    /// Monitors that fired.
    pub monitors: u64,
    /// Interrupts raised, those that met a pending one included.
    pub interrupts: u64,
    /// Streams that met an unmapped address.
    pub page_faults: u64,
    /// Streams that stopped at a packet.
    pub stops: u64,
    /// Faults of monitors that were not kept as events.
    pub events_dropped: u64,
}

impl Counters {
    /// Bytes that DMA engines copied or filled.
    pub fn bytes(&self) -> u64 {
        self.host_to_device + self.device_to_host + self.device_to_device + self.host_to_host + self.memset
    }
}
