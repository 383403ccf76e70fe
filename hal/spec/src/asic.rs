//! The row that every ASIC fills in: what code above needs to know without naming a chip.

use core::fmt;
use core::ops::Range;

use crate::addr::{DevicePa, DeviceVa};

/// A hardware queue's number, as a command submission names it (uapi `hl_cs_chunk.queue_index`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A range of device addresses; the end is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaRange {
    /// The first address.
    pub start: DeviceVa,
    /// The address after the last.
    pub end: DeviceVa,
    /// Bytes in the page that the MMU maps here.
    pub page: u64,
}

impl VaRange {
    /// Bytes in the range.
    pub const fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the range holds no address.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `len` bytes from `va` lie inside.
    pub const fn contains(&self, va: DeviceVa, len: u64) -> bool {
        match va.checked_add(len) {
            Some(end) => va.0 >= self.start.0 && end.0 <= self.end.0,
            None => false,
        }
    }
}

/// What a queue feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueEngine {
    /// A DMA engine beside PCI: host memory from and to the device.
    Pdma,
    /// A DMA engine inside: device memory from and to device memory.
    Edma,
    /// A matrix engine.
    Mme,
    /// A tensor processor core.
    Tpc,
    /// A network port.
    Nic,
    /// A rotator.
    Rotator,
    /// The management processor; the driver's alone.
    Cpu,
}

/// The driver's view of how a queue takes work (driver `enum hl_queue_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueType {
    /// Command buffers go to the hardware as they are, by device address.
    Hardware,
    /// The queue to the management processor.
    Cpu,
}

/// One queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The number in a submission.
    pub id: QueueId,
    /// What executes.
    pub engine: QueueEngine,
    /// Which of the engines of that kind, from 0 over the whole chip.
    pub instance: u8,
    /// Which of the queue manager's streams, 0..4.
    pub stream: u8,
    /// How the driver treats it.
    pub kind: QueueType,
    /// Whether the driver accepts a user's job on it while all engines of its kind are enabled.
    pub user: bool,
    /// The registers of its queue manager: an offset from the start of the configuration space.
    pub qman: u32,
}

/// What is fixed about one ASIC.
#[derive(Debug)]
#[non_exhaustive]
pub struct Asic {
    /// The name in specs, messages and JSON: `gaudi2`.
    pub name: &'static str,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// PCI revisions that the driver binds to.
    pub revisions: Range<u8>,
    /// The card's name before firmware tells another.
    pub card_name: &'static str,
    /// Start of the configuration space.
    pub cfg_base: DevicePa,
    /// Bytes in the configuration space.
    pub cfg_size: u64,
    /// Start of the SRAM.
    pub sram_base: DevicePa,
    /// Bytes in the SRAM.
    pub sram_size: u64,
    /// Start of the DRAM.
    pub dram_base: DevicePa,
    /// Bytes in the DRAM, the driver's part included.
    pub dram_size: u64,
    /// Bytes at the start of the DRAM that no user gets.
    pub dram_reserved: u64,
    /// Bytes in the page in which device memory is allocated and mapped.
    pub dram_page: u64,
    /// Where device memory is mapped for a user; `page` is the MMU's own, after address scrambling.
    pub dram_va: VaRange,
    /// Where host memory is mapped in small pages.
    pub host_va: VaRange,
    /// Where host memory is mapped in huge pages.
    pub host_huge_va: VaRange,
    /// All queues are below this number.
    pub queue_count: u32,
    /// The row of a queue.
    pub queue: fn(QueueId) -> Option<QueueRow>,
    /// Jobs that a queue holds at once.
    pub queue_depth: u32,
    /// Command submissions in flight at once.
    pub max_pending_cs: u32,
    /// Bytes in one LIN_DMA packet's transfer at most.
    pub max_dma: u64,
    /// Bytes in a cache line of the device.
    pub cache_line: u32,
    /// Sync-manager dimensions and what of them is the user's.
    pub sync: SyncRow,
    /// MSI-X vectors of the function.
    pub interrupts: u16,
    /// Vectors that a user waits on.
    pub user_interrupts: Range<u16>,
}

impl Asic {
    /// Bytes of device memory for users on a full card.
    pub const fn dram_user_size(&self) -> u64 {
        self.dram_size - self.dram_reserved
    }

    /// Where the users' device memory starts.
    pub const fn dram_user_base(&self) -> DevicePa {
        DevicePa(self.dram_base.0 + self.dram_reserved)
    }
}

/// The sync manager's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRow {
    /// Sync managers on the chip, one a die core.
    pub dcores: u32,
    /// Sync objects in each.
    pub sobs: u32,
    /// Monitors in each.
    pub monitors: u32,
    /// Completion queues in each.
    pub cqs: u32,
    /// The first sync object of die core 0 that a user may use, as `HL_INFO_SYNC_MANAGER` answers.
    pub first_user_sob: u32,
    /// The first such monitor.
    pub first_user_monitor: u32,
    /// The first such completion queue.
    pub first_user_cq: u32,
}
