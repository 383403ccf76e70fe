//! A queue manager: its arbiter, and the DMA core behind it.

use gaudi_spec::QueueId;
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::{qman, queue};

use crate::gaudi2::arbiter::Arbiter;

/// The state of a queue manager besides its processors.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    /// Whether a DMA engine is behind it.
    pub(crate) has_dma: bool,
    /// Where the registers start that its packets write by offset, in the configuration space.
    pub(crate) window: u32,
    pub(crate) arbiter: Arbiter,
    /// Bases of WREG_64 packets.
    pub(crate) wide: [u64; qman::WR64_BASES as usize],
    /// The DMA core behind it.
    pub(crate) core: Core,
}

impl Manager {
    /// The one of a queue, as after power-on.
    pub(crate) fn new(first: QueueId) -> Self {
        let row = queue::row(first);
        let engine = row.map(|row| row.engine);
        Self {
            has_dma: matches!(engine, Some(QueueEngine::Pdma | QueueEngine::Edma)),
            window: row.map_or(0, |row| row.qman & !(qman::WREG_WINDOW - 1)),
            ..Self::default()
        }
    }
}

// A DMA core's registers: where a write completion goes, and a transfer that `COMMIT` starts.
#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) completion: (u64, u32),
    pub(crate) source: u64,
    pub(crate) destination: u64,
    pub(crate) size: u32,
}
