//! The row that every ASIC fills in: what code above needs without naming a chip.

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

/// Prints a packet; returns whether the next one is wanted.
pub type PrintPacket<'a> = dyn FnMut(&dyn fmt::Display) -> bool + 'a;

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
    /// The card's name before firmware reports another.
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
    /// Device addresses there that an allocation takes only on request.
    pub dram_va_reserved: Range<u64>,
    /// Device addresses whose page faults the MMUs of device memory report.
    pub dram_fault_range: Range<DeviceVa>,
    /// The bits of such an address that the driver learns.
    pub dram_fault_mask: u64,
    /// Where host memory is mapped in small pages.
    pub host_va: VaRange,
    /// Device addresses there that a mapping takes only on request.
    pub host_va_reserved: Range<u64>,
    /// Where host memory is mapped in huge pages.
    pub host_huge_va: VaRange,
    /// Device addresses there that a mapping takes only on request.
    pub host_huge_va_reserved: Range<u64>,
    /// All queues are below this number.
    pub queue_count: u32,
    /// Streams of one queue manager, which are queues in a row.
    pub queue_streams: u32,
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
    /// PLLs that the driver reports.
    pub plls: u32,
    /// Sync-manager dimensions and what of them is the user's.
    pub sync: SyncRow,
    /// The driver's own use of the sync manager: signals between queues.
    pub sync_stream: SyncStreamRow,
    /// MSI-X vectors of the function.
    pub interrupts: u16,
    /// Vectors that a user waits on.
    pub user_interrupts: Range<u16>,
    /// Decoders; each has two vectors from 1 on, of which the first is the normal one.
    pub decoders: u16,
    /// The vector of a TPC's assertion.
    pub tpc_assert_interrupt: u16,
    /// The vector of an error of the event queue.
    pub eq_error_interrupt: u16,
    /// The engines of a full card.
    pub enabled: EnabledRow,
    /// The engines as the driver's answers number them.
    pub engines: EngineTable,
    /// The events that firmware reports.
    pub events: EventTable,
    /// Register blocks that a user may map.
    pub blocks: BlockTable,
    /// Trace components.
    pub debug: DebugRow,
    /// Passes each packet of a command buffer to the function, for it to print, until the function
    /// returns false. Returns how many bytes were packets.
    pub packets: fn(&[u8], &mut PrintPacket<'_>) -> usize,
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

/// How the driver signals between queues: two sync objects and a monitor for each queue that takes
/// part.
#[derive(Clone, Copy, Debug)]
pub struct SyncStreamRow {
    /// Queues that take part.
    pub queues: u32,
    /// The number of a queue among them.
    pub stream: fn(QueueId) -> Option<u32>,
    /// The first sync object; those of a stream are in a row, and streams in their order.
    pub first_sob: u32,
    /// The commands that increment a sync object.
    pub signal: fn(sob: u32) -> Option<Commands>,
    /// The commands that wait on a queue until a stream's sync object has a value.
    pub wait: fn(queue: &QueueRow, stream: u32, sob: u32, value: u32) -> Option<Commands>,
}

/// A short command buffer that the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commands {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Commands {
    /// Bytes at most.
    pub const MOST: usize = 64;

    /// Returns the commands made of these packets; `None` if they are longer than
    /// [`MOST`](Self::MOST).
    pub fn of<const LEN: usize>(packets: &[[u8; LEN]]) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        let packets = packets.as_flattened();
        bytes.get_mut(..packets.len())?.copy_from_slice(packets);
        let len = packets.len();
        Some(Self { bytes, len })
    }

    /// The packets' bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // `of` is the only constructor.
        &self.bytes[..self.len]
    }
}

/// Masks of enabled engines (`hl_info_hw_ip_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledRow {
    /// Decoders.
    pub decoders: u32,
    /// Tensor processor cores.
    pub tpcs: u64,
    /// Internal DMA engines.
    pub edmas: u32,
    /// Rotators.
    pub rotators: u32,
}

/// The engines as the driver numbers them (uapi `enum *_engine_id`).
#[derive(Clone, Copy, Debug)]
pub struct EngineTable {
    /// All numbers are below.
    pub count: u32,
    /// Processors in engines, which commands run and halt.
    pub cores: u32,
    /// The number of a queue's engine; `None` for the management processor.
    pub id: fn(&QueueRow) -> Option<u32>,
    /// The kind of an engine that can be stalled; `None` for every other.
    pub stallable: fn(u32) -> Option<QueueEngine>,
}

/// The events that firmware reports to the driver.
#[derive(Clone, Copy, Debug)]
pub struct EventTable {
    /// All numbers are below.
    pub count: u16,
    /// An error of a queue's manager; `None` where the chip has no such event.
    pub queue_error: fn(&QueueRow) -> Option<u16>,
    /// An access of the engine that a router refused (RAZWI): the event, and the engine that the
    /// driver records for it; `None` where the chip reports it in another way.
    pub razwi: fn(&QueueRow) -> Option<(u16, u32)>,
    /// A page fault of an MMU of device memory.
    pub dram_page_fault: u16,
    /// A page fault of the MMU of host memory.
    pub host_page_fault: u16,
    /// An error of the first die core's sync manager; those of the others follow.
    pub sync_error: u16,
    /// An error of one bit in a memory, which the chip corrected.
    pub corrected_error: u16,
    /// An error of two bits in a memory, for which the driver resets the chip.
    pub uncorrected_error: u16,
    /// The clocks are throttled because of the temperature.
    pub thermal_start: u16,
    /// They no longer are.
    pub thermal_end: u16,
}

/// Register blocks that a user may map.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable {
    /// The block that begins at an address.
    pub at: fn(u64) -> Option<Block>,
    /// The block of a number.
    pub block: fn(u32) -> Option<Block>,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Memory of an ARC processor, by its number.
    Dccm(u32),
    /// The ACP engine of an ARC, which user-mode rings are pushed through.
    Acp(u32),
    /// An unsecure doorbell of a NIC.
    Doorbell {
        /// The NIC, 0..24.
        nic: u32,
        /// The doorbell, 0..15.
        doorbell: u32,
    },
    /// A decoder's command registers.
    Decoder(u32),
    /// Sync objects and monitors of a die core: none but the first's are kept back.
    SyncObjects(u32),
    /// Completion queues of a die core.
    SyncGlobal(u32),
}

/// A block that a user may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its place in the driver's table.
    pub number: u32,
    /// What it is.
    pub kind: BlockKind,
    /// Where it lies.
    pub address: DevicePa,
    /// Bytes; it is mapped whole.
    pub size: u32,
}

/// Trace components of a kind: their count, and those among them that the chip lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Components(pub u32, pub Range<u32>);

/// Trace components (driver `*_coresight.c`, `debug_*_regs`). Configuring one that the chip lacks
/// does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugRow {
    /// System trace macrocells.
    pub stms: Components,
    /// Trace FIFOs.
    pub etfs: Components,
    /// Funnels.
    pub funnels: Components,
    /// Bus monitors.
    pub bmons: Components,
    /// Performance monitors.
    pub spmus: Components,
    /// Kinds of events that a performance monitor counts.
    pub spmu_counters: u32,
}
