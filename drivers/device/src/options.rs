//! Options of an open device.

use std::time::Duration;

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_spec::Asic;

/// Options of an open device. The defaults suit copies of any size.
// guess: none of these figures was measured on a card. One packet of the default length takes 1 to
// 2 ms on the bus; a submission of them stays a hundred times below the driver's timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Maximum length of a LIN_DMA packet, in bytes: 256 to the chip's limit (4 GiB - 1). Rounded
    /// down to whole cache lines.
    pub packet_bytes: u64,
    /// Maximum number of LIN_DMA packets in one submission of
    /// [`Device::copy`](crate::Device::copy). The next submission is built while one runs.
    pub packets_per_submission: u32,
    /// Command buffers of each queue, and so its maximum number of submissions in flight. The
    /// driver allows 64 for each process.
    pub command_buffers: u32,
    /// Bytes in each command buffer: a multiple of 128. A queue's buffers have at most
    /// `HL_MAX_CB_SIZE` together.
    pub command_buffer_bytes: u32,
    /// How long a call waits for room before it fails with `TimedOut`. Longer than the driver's own
    /// timeout (30 s), so that a hung engine is reported as `Hung`.
    pub timeout: Duration,
    /// Bytes in each staging buffer of [`Device::write`](crate::Device::write) and
    /// [`Device::read`](crate::Device::read). At most four exist.
    pub staging_bytes: usize,
    /// Minimum number of bytes for each engine when a copy within the device is spread over
    /// several. One engine copies less than twice as many.
    pub stripe_bytes: u64,
    /// Maximum number of unused host mappings in the cache ([`Device::map`](crate::Device::map)). 0
    /// switches the cache off.
    pub cached_mappings: usize,
    /// Maximum number of bytes in them. 0 switches the cache off.
    pub cached_bytes: u64,
    /// Where the driver is asked to map device memory: this many bytes or more after its first
    /// address. 0 leaves the choice to the driver. Devices with different offsets have no address
    /// in common, so that an address names its device.
    pub memory_offset: u64,
    /// Empty allocations of the driver that stay for the next buffers, until
    /// [`Device::trim`](crate::Device::trim). The chip's page has 768 MiB.
    pub kept_allocations: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            packet_bytes: 32 << 20,
            packets_per_submission: 8,
            command_buffers: 64,
            command_buffer_bytes: 4096,
            timeout: Duration::from_secs(60),
            staging_bytes: 1 << 20,
            stripe_bytes: 8 << 20,
            cached_mappings: 1024,
            cached_bytes: 1 << 30,
            memory_offset: 0,
            kept_allocations: 0,
        }
    }
}

impl Options {
    /// Rejects invalid options, and rounds `packet_bytes` down.
    pub(crate) fn checked(mut self, asic: &Asic) -> Result<Self> {
        let invalid = |what: &str, seen: u64, wanted: String| {
            Err(Error::new(ErrorKind::InvalidInput, "open")
                .because(format!("invalid option {what}"))
                .saw(seen, wanted))
        };
        if self.packet_bytes < 256 || self.packet_bytes > asic.max_dma {
            return invalid(
                "packet_bytes",
                self.packet_bytes,
                format!("256 to {}", asic.max_dma),
            );
        }
        self.packet_bytes -= self.packet_bytes % u64::from(asic.cache_line);
        let bytes = u64::from(self.command_buffer_bytes);
        if bytes == 0 || bytes % 128 != 0 {
            return invalid("command_buffer_bytes", bytes, "a multiple of 128".into());
        }
        for (name, value) in [
            ("packets_per_submission", self.packets_per_submission.into()),
            ("staging_bytes", self.staging_bytes as u64),
            ("stripe_bytes", self.stripe_bytes),
        ] {
            if value == 0 {
                return invalid(name, 0, "at least 1".into());
            }
        }
        Ok(self)
    }
}
