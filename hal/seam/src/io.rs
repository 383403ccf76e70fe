//! [`KernelIo`]: the operations of the habanalabs driver, typed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_spec::addr::{DeviceVa, HostVa};
use gaudi_spec::asic::QueueId;
use gaudi_sys::RawMapping;
use gaudi_uapi::cs::{CsFlags, CsStatus, EngineCommand, HlCsChunk};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{InfoAnswer, InfoOp};
use gaudi_uapi::memory::MemFlags;
use gaudi_uapi::wait::WaitCsFlags;
use gaudi_uapi::{Era, NodeKind};

use crate::error::{DeviceId, Error, Result};

/// What answers behind a [`KernelIo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// The real driver.
    Kernel,
    /// The driver as a model: no figure of it is a figure of hardware.
    Mock,
}

impl Backend {
    /// `kernel` or `mock`, as the spec's first word and as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Mock => "mock",
        }
    }
}

/// What is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Compute or control.
    pub kind: NodeKind,
    /// Backend and index.
    pub device: DeviceId,
    /// The ioctl numbers in use; the mock answers as the newest.
    pub era: Era,
    /// The node's path, or the mock's spec.
    pub name: String,
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);
    };
}

handle! {
    /// A device memory allocation (`hl_mem_out.handle`). The driver counts from 1 in each context.
    MemHandle(u64)
}
handle! {
    /// A command buffer (`hl_cb_out.cb_handle`): also the mmap offset of its memory.
    CbHandle(u64)
}
handle! {
    /// A timestamps buffer (`HL_MEM_OP_TS_ALLOC`): also the mmap offset of its memory.
    TsHandle(u64)
}
handle! {
    /// The sequence number of a command submission. Numbers of a context increase; 0 and `u64::MAX` are none.
    CsSeq(u64)
}
/// `HL_IOCTL_INFO`: an operation and the one argument word that some take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest {
    /// `HL_INFO_*`.
    pub op: InfoOp,
    /// `hl_info_args`' union word: `ctx_id`, `period_ms`, `pll_index`, `eventfd`, `user_buffer_actual_size`, `sec_attest_nonce`,
    /// `array_size` or `fw_sub_opcode`, as the operation asks; else 0.
    pub arg: u32,
}

impl InfoRequest {
    /// An operation that takes no argument.
    pub const fn new(op: InfoOp) -> Self {
        Self { op, arg: 0 }
    }
}

/// `HL_CB_OP_CREATE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbCreate {
    /// Bytes, rounded up to a page by the driver; at most `HL_MAX_CB_SIZE`.
    pub size: u32,
    /// `HL_CB_FLAGS_MAP`: also map it into the device's address space.
    pub map_to_device: bool,
}

/// `HL_CB_OP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbInfo {
    /// How many submissions use the buffer now; asked for without `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub usage_count: u32,
    /// Where the device sees the buffer; asked for with `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub device_va: Option<DeviceVa>,
}

/// `HL_IOCTL_CS`: chunks, or another thing that the driver's submission call does.
///
/// `flags` and [`argument`](Self::argument) say together which: see [`cs_flags`](Self::cs_flags). The constructors make each kind; a
/// struct literal can ask for a combination that the driver refuses.
#[derive(Debug, Clone, Copy, Default)]
pub struct CsRequest<'a> {
    /// Chunks of the execution phase, in the kernel's own form, so that submitting copies nothing.
    pub execute: &'a [HlCsChunk],
    /// Chunks of the restore phase, run when the context changed.
    pub restore: &'a [HlCsChunk],
    /// `HL_CS_FLAGS_*`; those of the argument are added.
    pub flags: CsFlags,
    /// Seconds, with `HL_CS_FLAGS_CUSTOM_TIMEOUT`.
    pub timeout_s: u32,
    /// What some kinds carry besides chunks.
    pub argument: CsArgument<'a>,
}

/// The unions of `hl_cs_in` that do not hold chunks. Each but `None` adds the flags that make the driver read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CsArgument<'a> {
    /// Chunks say it all.
    #[default]
    None,
    /// `seq`: a later stage of a staged submission (`STAGED_SUBMISSION`; add `STAGED_SUBMISSION_LAST` to the last).
    Stage {
        /// The number that the first stage was given.
        seq: CsSeq,
    },
    /// `encaps_sig_handle_id`: the first stage uses reserved signals (`STAGED_SUBMISSION`, `STAGED_SUBMISSION_FIRST`, `ENCAP_SIGNALS`).
    Encapsulated {
        /// [`CsReservation::handle`].
        handle: u32,
    },
    /// `encaps_signals_count` and `encaps_signals_q_idx` (`RESERVE_SIGNALS_ONLY`).
    ReserveSignals {
        /// How many.
        count: u32,
        /// The queue that will signal.
        queue: QueueId,
    },
    /// `encaps_sig_handle_id` (`UNRESERVE_SIGNALS_ONLY`).
    UnreserveSignals {
        /// [`CsReservation::handle`].
        handle: u32,
    },
    /// `engine_cores` (`ENGINE_CORE_COMMAND`). Stands where chunks stand: there are none of them.
    EngineCores {
        /// Core ids.
        cores: &'a [u32],
        /// `HL_ENGINE_CORE_HALT` or `HL_ENGINE_CORE_RUN`.
        command: EngineCommand,
    },
    /// `engines` (`ENGINES_COMMAND`). Stands where chunks stand: there are none of them.
    Engines {
        /// Engine ids of the ASIC (`enum gaudi2_engine_id`), or core ids with the commands for cores.
        engines: &'a [u32],
        /// What they shall do.
        command: EngineCommand,
    },
}

impl CsArgument<'_> {
    /// The flags that make the driver read it.
    #[inline]
    pub const fn flags(&self) -> CsFlags {
        CsFlags(match self {
            Self::None => 0,
            Self::Stage { .. } => CsFlags::STAGED_SUBMISSION.0,
            Self::Encapsulated { .. } => {
                CsFlags::STAGED_SUBMISSION.0 | CsFlags::STAGED_SUBMISSION_FIRST.0 | CsFlags::ENCAP_SIGNALS.0
            }
            Self::ReserveSignals { .. } => CsFlags::RESERVE_SIGNALS_ONLY.0,
            Self::UnreserveSignals { .. } => CsFlags::UNRESERVE_SIGNALS_ONLY.0,
            Self::EngineCores { .. } => CsFlags::ENGINE_CORE_COMMAND.0,
            Self::Engines { .. } => CsFlags::ENGINES_COMMAND.0,
        })
    }

    /// `hl_cs_in`'s second union as one word; 0 where the argument is not there.
    #[inline]
    pub const fn word(&self) -> u64 {
        match *self {
            Self::None | Self::EngineCores { .. } | Self::Engines { .. } => 0,
            Self::Stage { seq } => seq.0,
            Self::Encapsulated { handle } | Self::UnreserveSignals { handle } => handle as u64,
            Self::ReserveSignals { count, queue } => count as u64 | (queue.0 as u64) << 32,
        }
    }
}

impl<'a> CsRequest<'a> {
    /// The flags of submissions that run nothing: they answer no number to wait for, or end before they answer.
    const WITHOUT_SEQ: u32 = CsFlags::RESERVE_SIGNALS_ONLY.0
        | CsFlags::UNRESERVE_SIGNALS_ONLY.0
        | CsFlags::ENGINE_CORE_COMMAND.0
        | CsFlags::ENGINES_COMMAND.0
        | CsFlags::FLUSH_PCI_HBW_WRITES.0;

    /// Jobs.
    pub const fn jobs(execute: &'a [HlCsChunk]) -> Self {
        Self::of(execute, CsFlags::NONE, CsArgument::None)
    }

    /// `HL_CS_FLAGS_SIGNAL`: one chunk, of which the queue counts.
    pub const fn signal(chunk: &'a [HlCsChunk; 1]) -> Self {
        Self::of(chunk, CsFlags::SIGNAL, CsArgument::None)
    }

    /// `HL_CS_FLAGS_WAIT`: one chunk, which names its queue and where the signal's number lies.
    pub const fn wait(chunk: &'a [HlCsChunk; 1]) -> Self {
        Self::of(chunk, CsFlags::WAIT, CsArgument::None)
    }

    /// `HL_CS_FLAGS_COLLECTIVE_WAIT`: as [`wait`](Self::wait), of a queue that is a collective's master.
    pub const fn collective_wait(chunk: &'a [HlCsChunk; 1]) -> Self {
        Self::of(chunk, CsFlags::COLLECTIVE_WAIT, CsArgument::None)
    }

    /// The first stage of a staged submission; its number is what later stages name.
    pub const fn first_stage(execute: &'a [HlCsChunk]) -> Self {
        let flags = CsFlags(CsFlags::STAGED_SUBMISSION.0 | CsFlags::STAGED_SUBMISSION_FIRST.0);
        Self::of(execute, flags, CsArgument::None)
    }

    /// The first stage of a staged submission that uses reserved signals.
    pub const fn encapsulated(execute: &'a [HlCsChunk], handle: u32) -> Self {
        Self::of(execute, CsFlags::NONE, CsArgument::Encapsulated { handle })
    }

    /// A later stage of the staged submission `seq`.
    pub const fn stage(execute: &'a [HlCsChunk], seq: CsSeq) -> Self {
        Self::of(execute, CsFlags::NONE, CsArgument::Stage { seq })
    }

    /// The last stage of the staged submission `seq`.
    pub const fn last_stage(execute: &'a [HlCsChunk], seq: CsSeq) -> Self {
        Self::of(
            execute,
            CsFlags::STAGED_SUBMISSION_LAST,
            CsArgument::Stage { seq },
        )
    }

    /// Reserves signals of a queue: see [`CsAnswer::reservation`].
    pub const fn reserve_signals(count: u32, queue: QueueId) -> Self {
        Self::of(&[], CsFlags::NONE, CsArgument::ReserveSignals { count, queue })
    }

    /// Gives reserved signals back.
    pub const fn unreserve_signals(handle: u32) -> Self {
        Self::of(&[], CsFlags::NONE, CsArgument::UnreserveSignals { handle })
    }

    /// A command to engine cores.
    pub const fn engine_cores(cores: &'a [u32], command: EngineCommand) -> Self {
        Self::of(&[], CsFlags::NONE, CsArgument::EngineCores { cores, command })
    }

    /// A command to engines.
    pub const fn engines(engines: &'a [u32], command: EngineCommand) -> Self {
        Self::of(&[], CsFlags::NONE, CsArgument::Engines { engines, command })
    }

    /// Has all posted PCI writes arrive before the call returns.
    pub const fn flush_pci_hbw_writes() -> Self {
        Self::of(&[], CsFlags::FLUSH_PCI_HBW_WRITES, CsArgument::None)
    }

    const fn of(execute: &'a [HlCsChunk], flags: CsFlags, argument: CsArgument<'a>) -> Self {
        Self {
            execute,
            restore: &[],
            flags,
            timeout_s: 0,
            argument,
        }
    }

    /// The same with more flags.
    pub const fn with_flags(mut self, flags: CsFlags) -> Self {
        self.flags.0 |= flags.0;
        self
    }

    /// The same with a limit of its own, in seconds.
    pub const fn with_timeout(mut self, seconds: u32) -> Self {
        self.timeout_s = seconds;
        self.with_flags(CsFlags::CUSTOM_TIMEOUT)
    }

    /// `hl_cs_in.cs_flags`: what was asked for, and what the argument adds.
    #[inline]
    pub const fn cs_flags(&self) -> CsFlags {
        CsFlags(self.flags.0 | self.argument.flags().0)
    }

    /// Whether the first union holds what the flags make the driver read there: chunks, or the ids of engines of one kind and no
    /// chunks. What is not sound cannot be sent: the driver would read the one as the other.
    #[inline]
    pub const fn is_sound(&self) -> bool {
        const ENGINES: u32 = CsFlags::ENGINE_CORE_COMMAND.0 | CsFlags::ENGINES_COMMAND.0;
        let holds = self.argument.flags().0 & ENGINES;
        let empty = self.execute.is_empty() && self.restore.is_empty();
        self.cs_flags().0 & ENGINES == holds && (holds == 0 || empty)
    }

    /// Whether the answer's `seq` is a number to wait for: not of reservations, commands to engines, and flushes.
    pub const fn is_numbered(&self) -> bool {
        self.cs_flags().0 & Self::WITHOUT_SEQ == 0
    }
}

/// `hl_cs_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsAnswer {
    /// What to wait for.
    pub seq: CsSeq,
    /// `HL_CS_STATUS_*`.
    pub status: CsStatus,
    /// Of a signal or a reservation.
    pub sob_base_addr_offset: u32,
    /// Of a signal or an encapsulated one.
    pub sob_count_before_submission: u16,
}

/// What a reservation of signals answers, in place of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CsReservation {
    /// `hl_cs_out.handle_id`.
    pub handle: u32,
    /// `hl_cs_out.count`: the value that the sync object has after the signals.
    pub count: u32,
}

impl CsAnswer {
    /// The answer to [`CsRequest::reserve_signals`], which lies where the number of other submissions lies.
    pub const fn reservation(&self) -> CsReservation {
        CsReservation {
            handle: self.seq.0 as u32,
            count: (self.seq.0 >> 32) as u32,
        }
    }
}

/// `HL_WAIT_CS_STATUS_*`, as far as a wait that succeeded can tell it: a submission that the driver gave up is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitStatus {
    /// All of it is done.
    Completed,
    /// It is still running; the timeout passed.
    Busy,
}

/// `hl_wait_cs_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitAnswer {
    /// Done or not.
    pub status: WaitStatus,
    /// `HL_WAIT_CS_STATUS_FLAG_GONE`: the driver no longer keeps the submission's own record; it was done long ago.
    pub gone: bool,
    /// `CLOCK_MONOTONIC`-like nanoseconds of completion, where the submission asked for a timestamp.
    pub timestamp_ns: Option<i64>,
}

/// `hl_wait_cs_out` of `HL_WAIT_CS_FLAGS_MULTI_CS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiWaitAnswer {
    /// Whether any was done in time.
    pub status: WaitStatus,
    /// Bit n: the nth of the list is done.
    pub completion_map: u32,
    /// Nanoseconds of the first completion, where known.
    pub timestamp_ns: Option<i64>,
}

/// A user interrupt's number, of twelve bits: a decoder's from 0, a completion queue's from `first_available_interrupt_id` of
/// `HL_INFO_HW_IP_INFO`, or one of the two that stand for all of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterruptId(pub u16);

impl InterruptId {
    /// `HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT`: of any completion queue.
    pub const ANY_CQ: Self = Self((WaitCsFlags::ANY_CQ_INTERRUPT >> 20) as u16);
    /// `HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT`: of any decoder.
    pub const ANY_DECODER: Self = Self((WaitCsFlags::ANY_DEC_INTERRUPT >> 20) as u16);
}

/// A 64-bit counter in a command buffer of the driver, which the device counts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqCounter {
    /// `cq_counters_handle`: made by [`KernelIo::cb_create`].
    pub handle: CbHandle,
    /// `cq_counters_offset`: in counters of 8 bytes, not in bytes.
    pub offset: u64,
}

/// The word that a wait for an interrupt looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InterruptWord {
    /// A word in this process's memory.
    User(HostVa),
    /// A counter of the driver (`HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ`).
    KernelCq(CqCounter),
}

/// `HL_WAIT_CS_FLAGS_INTERRUPT`: wait until a 64-bit word reaches a value, woken by a user interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptWait {
    /// Who wakes the wait.
    pub interrupt: InterruptId,
    /// What it looks at.
    pub word: InterruptWord,
    /// Reached when the word is at least this.
    pub target: u64,
    /// How long at most.
    pub timeout: Duration,
}

/// `HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT`: have the time written down when a counter reaches a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimestampRegistration {
    /// At which interrupt the driver looks.
    pub interrupt: InterruptId,
    /// What it looks at.
    pub counter: CqCounter,
    /// Reached when the counter is at least this. The driver keeps its low 32 bits only (common/command_submission.c:3215).
    pub target: u64,
    /// `timestamp_handle`.
    pub buffer: TsHandle,
    /// `timestamp_offset`: in timestamps of 8 bytes, not in bytes.
    pub index: u64,
}

/// `HL_MEM_OP_ALLOC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAlloc {
    /// Bytes; the driver rounds up to its page.
    pub size: u64,
    /// 0 takes the default (`device_mem_alloc_default_page_size`).
    pub page_size: u64,
    /// `HL_MEM_CONTIGUOUS`, `HL_MEM_SHARED`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapDevice {
    /// What to map.
    pub handle: MemHandle,
    /// Where, if possible; `HL_MEM_FORCE_HINT` in `flags` insists.
    pub hint: Option<DeviceVa>,
    /// `HL_MEM_*`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of host memory (`HL_MEM_USERPTR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapHost {
    /// First byte; any alignment.
    pub address: HostVa,
    /// Bytes; any size above 0.
    pub size: u64,
    /// Where, if possible; `HL_MEM_FORCE_HINT` in `flags` insists.
    pub hint: Option<DeviceVa>,
    /// `HL_MEM_*`; `HL_MEM_USERPTR` is added.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP_BLOCK`: how to mmap a block of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockMapping {
    /// The mmap offset.
    pub handle: u64,
    /// Bytes.
    pub size: u32,
}

/// `HL_MEM_OP_EXPORT_DMABUF_FD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportRequest {
    /// The address that MAP returned: its start, not one inside (Gaudi: a physical address).
    pub address: DeviceVa,
    /// Bytes; a multiple of 4096.
    pub size: u64,
    /// From the start of the mapping; a multiple of 4096.
    pub offset: u64,
    /// `O_CLOEXEC`, `O_RDWR`, …
    pub flags: u32,
}

/// `HL_MEM_OP_REG_DMABUF_FD` of the Gaudi3 header.
#[derive(Debug, Clone, Copy)]
pub struct RegisterDmabuf<'a> {
    /// What to map into the device's address space.
    pub dmabuf: BorrowedFd<'a>,
    /// All its bytes.
    pub len: u64,
}

/// `HL_IOCTL_DEBUG`.
#[derive(Debug)]
pub struct DebugRequest<'a> {
    /// `HL_DEBUG_OP_*`.
    pub op: DebugOp,
    /// Register index in the component.
    pub reg_idx: u32,
    /// On or off.
    pub enable: bool,
    /// The operation's input struct.
    pub input: &'a [u8],
    /// The operation's output struct.
    pub output: &'a mut [u8],
}

/// `HL_IOCTL_NIC` of the Gaudi3 header.
#[derive(Debug)]
pub struct NicRequest<'a> {
    /// `HL_NIC_OP_*`.
    pub op: u32,
    /// The operation's input struct.
    pub input: &'a [u8],
    /// The operation's output struct.
    pub output: &'a mut [u8],
}

/// mmap(2) of a command buffer, a timestamps buffer or a block of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmapRequest {
    /// The handle, which is the offset.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// What a process may ask of the habanalabs driver.
///
/// All methods take `&self`; an implementation is shared as `Arc<dyn KernelIo>`, and a layer owns the one below it. Dropping the last
/// `Arc` closes the node; the driver releases whatever the context still holds, and keeps the device busy while an export lives.
///
/// A backend that does not serve a method keeps its default, which answers [`ErrorKind::Unsupported`](crate::ErrorKind) by name. On a
/// control node everything but [`info`](Self::info) is refused.
pub trait KernelIo: Send + Sync + 'static {
    /// What is open.
    fn node(&self) -> &Node;

    /// Information. `answer` is zeroed, then filled as far as the driver knows its struct: an older driver fills less, a newer one is
    /// cut. Returns the argument word as the driver left it.
    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        let _ = (request, answer);
        Err(self.not_served("HL_IOCTL_INFO"))
    }

    /// Makes a command buffer. Map its memory with [`mmap`](Self::mmap), offset [`CbHandle`].
    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        let _ = request;
        Err(self.not_served("HL_CB_OP_CREATE"))
    }

    /// Destroys a command buffer; its memory lives on while it is mapped or in use.
    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        let _ = handle;
        Err(self.not_served("HL_CB_OP_DESTROY"))
    }

    /// Usage count of a command buffer, or, with `device_va`, where the device sees it.
    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        let _ = (handle, device_va);
        Err(self.not_served("HL_CB_OP_INFO"))
    }

    /// Submits work. Returns once it is queued; `WouldBlock` where the driver has no room.
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_CS"))
    }

    /// Waits for one submission. Zero polls. `Hung` where the driver gave it up, `DeviceLost` where it was aborted by a reset.
    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        let _ = (seq, timeout);
        Err(self.not_served("HL_IOCTL_WAIT_CS"))
    }

    /// Waits until at least one of up to 32 submissions is done.
    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        let _ = (seqs, timeout);
        Err(self.not_served("HL_WAIT_CS_FLAGS_MULTI_CS"))
    }

    /// Waits for a user interrupt.
    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        let _ = request;
        Err(self.not_served("HL_WAIT_CS_FLAGS_INTERRUPT"))
    }

    /// Has the driver write a time (nanoseconds of `CLOCK_MONOTONIC`) into a timestamps buffer once a counter has reached a value: at
    /// once where it has. Does not wait. A slot that is registered already is registered anew.
    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT"))
    }

    /// Allocates device memory, not yet mapped.
    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_ALLOC"))
    }

    /// Frees device memory. `InvalidInput` (`EINVAL`) while it is mapped.
    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        let _ = handle;
        Err(self.not_served("HL_MEM_OP_FREE"))
    }

    /// Maps device memory into the device's address space.
    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_MAP"))
    }

    /// Pins host memory and maps it into the device's address space. The returned address points at the first byte.
    ///
    /// # Safety
    /// From this call until [`mem_unmap`](Self::mem_unmap) of the returned address has returned, or the node is closed:
    /// - the range stays mapped in this process, readable and writable (a backend in this process reads and writes it directly);
    /// - no Rust reference to it is made or used while work that touches it may run: the device writes to it at any time.
    #[expect(
        unsafe_code,
        reason = "the one operation whose promise outlives the call: a device writes to the range"
    )]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_MAP (HL_MEM_USERPTR)"))
    }

    /// Unmaps device or host memory. `InvalidInput` (`EINVAL`) while it is exported.
    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        let _ = address;
        Err(self.not_served("HL_MEM_OP_UNMAP"))
    }

    /// Makes a timestamps buffer of so many elements.
    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        let _ = elements;
        Err(self.not_served("HL_MEM_OP_TS_ALLOC"))
    }

    /// Asks how to mmap a block of registers: the way to user-mode rings and sync objects.
    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        let _ = address;
        Err(self.not_served("HL_MEM_OP_MAP_BLOCK"))
    }

    /// Exports mapped device memory as a dma-buf. While it lives, the mapping cannot go and the device stays open.
    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_EXPORT_DMABUF_FD"))
    }

    /// Maps a dma-buf, of whatever exporter, into the device's address space; [`mem_unmap`](Self::mem_unmap) undoes it. Drivers of the
    /// Gaudi3 header have it, mainline has not.
    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_REG_DMABUF_FD"))
    }

    /// Debug and profiling components.
    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_DEBUG"))
    }

    /// The chip's own NIC (Gaudi3 header).
    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_NIC"))
    }

    /// Maps a command buffer, timestamps buffer or block.
    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        let _ = request;
        Err(self.not_served("mmap"))
    }

    /// Has device events counted into an eventfd (`HL_INFO_REGISTER_EVENTFD`); read which with `HL_INFO_GET_EVENTS`.
    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        let _ = eventfd;
        Err(self.not_served("HL_INFO_REGISTER_EVENTFD"))
    }

    /// Ends what [`register_events`](Self::register_events) began.
    fn unregister_events(&self) -> Result<()> {
        Err(self.not_served("HL_INFO_UNREGISTER_EVENTFD"))
    }

    /// The answer of a method that this backend does not serve.
    fn not_served(&self, operation: &'static str) -> Error {
        let node = self.node();
        Error::unsupported(
            operation,
            format!("the {} backend does not serve it", node.device.backend.name()),
        )
        .on(node.device)
    }
}

/// Typed information over any [`KernelIo`].
pub trait KernelIoExt: KernelIo {
    /// Asks for the struct of one INFO operation.
    fn query<T: InfoAnswer>(&self) -> Result<T> {
        self.query_with(0)
    }

    /// Asks for the struct of one INFO operation that takes an argument word.
    fn query_with<T: InfoAnswer>(&self, arg: u32) -> Result<T> {
        let mut answer = T::new_zeroed();
        self.info(InfoRequest { op: T::OP, arg }, answer.as_mut_bytes())?;
        Ok(answer)
    }
}

impl<K: KernelIo + ?Sized> KernelIoExt for K {}

/// How a backend is shared.
pub type SharedIo = Arc<dyn KernelIo>;
