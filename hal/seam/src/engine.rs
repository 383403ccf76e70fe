//! [`Engine`]: what the logic of a driver asks of the chip that executes its work.
//!
//! - *The driver decides, the engine does*: contexts, handles, addresses, limits and waits are
//!   above; command buffers, page tables and memory are below.
//! - *No chip is named*: constants come from the engine's row of the table of chips,
//!   [`Engine::asic`].
//! - *One owner*: methods take `&mut self` and are called under the device's lock; none waits for
//!   the chip's work.
#![expect(
    unsafe_code,
    reason = "the chip accesses host memory to which no reference may exist"
)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use gaudi_spec::addr::{DevicePa, DeviceVa};
use gaudi_spec::asic::{Asic, QueueId};
use gaudi_sys::{Errno, Memfd, RawMapping};

use crate::fault::ChipRules;

/// Memory of this process that a chip may read and write, as a kernel driver pins it for DMA.
#[derive(Debug)]
pub struct HostRange {
    start: NonNull<u8>,
    len: usize,
    // Keeps the bytes mapped while the range lives, if the range owns the mapping.
    _owner: Option<Arc<RawMapping>>,
}

// SAFETY: the range is an address and a length without thread affinity; its creator promised that
// any thread may access the memory while the range lives.
unsafe impl Send for HostRange {}

impl HostRange {
    /// Describes `len` bytes from `start`.
    ///
    /// # Safety
    ///
    /// Until the range is dropped, which is when the chip it was mapped to unmaps it, is reset
    /// hard, or is dropped:
    /// - the bytes are mapped in this process, readable and writable;
    /// - no Rust reference to them is used while the chip runs;
    /// - any thread may access them.
    ///
    /// Other threads may access the bytes by atomics at any time, as the safe operations of
    /// [`RawMapping`] do: the chip copies them by relaxed atomics too ([`gaudi_sys::shared`]).
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            _owner: None,
        }
    }

    /// Describes a whole mapping, which stays mapped while the range lives. Other holders may use
    /// its safe operations at any time.
    pub fn of_mapping(mapping: Arc<RawMapping>) -> Self {
        Self {
            start: mapping.as_ptr(),
            len: mapping.len(),
            _owner: Some(mapping),
        }
    }

    /// The first byte. The range's creator promised that `len` bytes from here are valid while the
    /// range lives.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes in the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A command buffer of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The queue that executes it.
    pub queue: QueueId,
    /// Its device address.
    pub va: DeviceVa,
    /// Bytes in it.
    pub len: u32,
}

/// How deep a reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Queues, fences, sync managers, completion registers; queued work is discarded without an
    /// event, and so are events not taken. Memory and mappings stay.
    Soft,
    /// Also the mappings and the content of memory.
    Hard,
}

/// Why a range cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The range has no bytes.
    #[error("a mapping of no bytes")]
    Empty,
    /// The range leaves the 64-bit space.
    #[error("the mapping leaves the 64-bit address space")]
    Wraps,
    /// Part of it is mapped already, by the range that starts here.
    #[error("part of the range is mapped already, from {0}")]
    Overlaps(DeviceVa),
    /// The target leaves the chip's memory.
    #[error("{0} and what follows is not the chip's memory")]
    OutsideMemory(DevicePa),
}

/// Why a queue does not take a command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The number does not name a queue.
    #[error("no such queue")]
    NoSuchQueue,
    /// The queue is not open to users on this chip.
    #[error("the queue is not enabled")]
    Disabled,
    /// The queue holds as many command buffers as it can. One that completed counts until its event
    /// is taken.
    #[error("the queue is full")]
    Full,
}

/// An error of a chip that no program causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChipError {
    /// An ECC error that the chip corrected.
    CorrectedEcc,
    /// An ECC error that it did not correct.
    Ecc,
    /// The firmware stopped answering.
    Heartbeat,
}

/// What an engine reports to the driver. Texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A command buffer was executed to its end. An engine that completes whole submissions reports
    /// all of its buffers then.
    Done {
        /// The queue.
        queue: QueueId,
        /// The submission's tag.
        tag: u64,
    },
    /// An interrupt vector was raised. Raised again before this is taken, it stays one event, as
    /// with MSI-X.
    Interrupt {
        /// The vector.
        vector: u16,
    },
    /// A queue manager reports an error. Its stream stays halted until a reset.
    QueueError {
        /// The queue.
        queue: QueueId,
        /// Whether the error is an undefined opcode.
        undefined: bool,
        /// The buffer in work, if it is one that a packet fetched: its address and bytes.
        fetched: Option<(DeviceVa, u32)>,
        /// What happened.
        text: String,
    },
    /// A stream accessed an unmapped address, and stays halted until a reset.
    PageFault {
        /// The address.
        address: DeviceVa,
        /// What happened.
        text: String,
    },
    /// A router of the chip refused a write of an engine (RAZWI). The stream stays halted until a
    /// reset.
    Razwi {
        /// The queue of the engine.
        queue: QueueId,
        /// The address.
        address: DeviceVa,
        /// What happened.
        text: String,
    },
    /// A monitor wrote to an unmapped address.
    SyncFault {
        /// The die core of its sync manager.
        dcore: u32,
        /// The address.
        address: DeviceVa,
        /// What happened.
        text: String,
    },
    /// An error of the chip, by a fault rule.
    Injected(ChipError),
    /// The engine did not do something for a reason that the chip does not have.
    Note(String),
}

/// A chip that executes the work of one driver. Dropping it ends its work and drops its mappings.
pub trait Engine: fmt::Debug + Send + 'static {
    /// The constants of the chip.
    fn asic(&self) -> &'static Asic;

    /// Prepares the chip for a user's context: maps the interrupt doorbell.
    ///
    /// # Errors
    /// [`MapError::Overlaps`] if something is mapped there.
    fn open_context(&mut self) -> Result<(), MapError>;

    /// Clears what the driver clears between two contexts, and unmaps the doorbell: sync objects,
    /// monitors and completion queues of users, fence counters, arbiters.
    fn close_context(&mut self);

    /// Maps device memory in the user's context.
    ///
    /// # Errors
    /// A [`MapError`]; nothing is mapped then.
    fn map_device(&mut self, va: DeviceVa, pa: DevicePa, len: u64) -> Result<(), MapError>;

    /// Maps host memory in the user's context. The engine holds `memory` until
    /// [`unmap`](Self::unmap) or a hard reset.
    ///
    /// # Errors
    /// A [`MapError`]; `memory` is dropped then.
    fn map_host(&mut self, va: DeviceVa, memory: HostRange) -> Result<(), MapError>;

    /// Unmaps the range that starts at `va`: the chip no longer accesses it when the call returns.
    /// A range that a hard reset has unmapped is left alone.
    fn unmap(&mut self, va: DeviceVa);

    /// Frees a range of device memory, which reads as zeros afterwards.
    ///
    /// # Errors
    /// `EFAULT` if the range leaves the memory.
    fn discard(&mut self, pa: DevicePa, len: u64) -> Result<(), Errno>;

    /// The file that holds device memory, whose byte 0 is the first of it; `None` if the memory
    /// cannot be shared.
    fn memory_file(&self) -> Option<&Memfd>;

    /// Records that holders of the file may write a range of device memory until it is
    /// [discarded](Self::discard) or a hard reset.
    fn expose(&mut self, pa: DevicePa, len: u64);

    /// Queues the command buffers of a submission: all of them or none.
    ///
    /// # Errors
    /// A [`PushError`] of the first queue that does not take its command buffer.
    fn submit(&mut self, tag: u64, jobs: &[Job]) -> Result<(), PushError>;

    /// Works for a slice: `budget` packets and monitors at most, where 4 KiB that a DMA engine
    /// moves count as one. Returns whether more can be done at once. An engine that works by itself
    /// returns false.
    fn run(&mut self, budget: u64) -> bool;

    /// Executes one packet of one stream. Returns the bytes that it moved; `None` if no stream can
    /// execute.
    fn step(&mut self) -> Option<u64>;

    /// Takes the oldest event.
    fn next_event(&mut self) -> Option<EngineEvent>;

    /// Whether the queue has completed all its work. True of a number that names no queue.
    fn is_idle(&self, queue: QueueId) -> bool;

    /// Whether every queue has completed all its work.
    fn has_completed(&mut self) -> bool;

    /// Sets a sync object of the first die core to 0, and carries out the monitors that watch it.
    ///
    /// # Errors
    /// `EINVAL` if there is no such sync object.
    fn clear_sob(&mut self, sob: u32) -> Result<(), Errno>;

    /// Injects the faults of rules for the chip's events, until their layer closes. Returns whether
    /// the engine does so.
    fn attach_faults(&mut self, rules: &Arc<ChipRules>) -> bool {
        let _ = rules;
        false
    }

    /// Makes the chip as a new one: a hard reset, after which counters and random numbers start
    /// again. `order` is the seed that orders the streams; without one they run in rounds.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    fn restart(&mut self, order: Option<u64>) -> Result<(), Errno>;

    /// Resets the chip.
    ///
    /// # Errors
    /// The errno of the host if it does not take memory back.
    fn reset(&mut self, depth: Reset) -> Result<(), Errno>;
}
