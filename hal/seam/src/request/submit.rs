//! Submissions and waits.

use std::time::Duration;

use gaudi_spec::addr::HostVa;
use gaudi_spec::asic::QueueId;
use gaudi_uapi::cs::{CsFlags, CsStatus, EngineCommand, HlCsChunk};
use gaudi_uapi::wait::WaitCsFlags;

use super::{CbHandle, CsSeq, TsHandle};

/// `HL_IOCTL_CS`: chunks, or one of the ioctl's other commands.
///
/// `flags` and [`argument`](Self::argument) together select the command: see
/// [`cs_flags`](Self::cs_flags). There is a constructor for each command; a struct literal can hold
/// a combination that the driver rejects.
#[derive(Debug, Clone, Copy, Default)]
pub struct CsRequest<'a> {
    /// Chunks of the execution phase, in the kernel's form, so that submitting copies nothing.
    pub execute: &'a [HlCsChunk],
    /// Chunks of the restore phase, run when the context changed.
    pub restore: &'a [HlCsChunk],
    /// `HL_CS_FLAGS_*`; those of the argument are added.
    pub flags: CsFlags,
    /// Seconds, with `HL_CS_FLAGS_CUSTOM_TIMEOUT`.
    pub timeout_s: u32,
    /// What some commands have besides chunks.
    pub argument: CsArgument<'a>,
}

/// The unions of `hl_cs_in` that do not hold chunks. Each but `None` adds the flags that make the
/// driver read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CsArgument<'a> {
    /// Chunks only.
    #[default]
    None,
    /// `seq`: a later stage of a staged submission (`STAGED_SUBMISSION`; add
    /// `STAGED_SUBMISSION_LAST` to the last).
    Stage {
        /// The number of the first stage.
        seq: CsSeq,
    },
    /// `encaps_sig_handle_id`: the first stage uses reserved signals (`STAGED_SUBMISSION`,
    /// `STAGED_SUBMISSION_FIRST`, `ENCAP_SIGNALS`).
    Encapsulated {
        /// [`CsReservation::handle`].
        handle: u32,
    },
    /// `encaps_signals_count` and `encaps_signals_q_idx` (`RESERVE_SIGNALS_ONLY`).
    ReserveSignals {
        /// The number of signals.
        count: u32,
        /// The queue that will signal.
        queue: QueueId,
    },
    /// `encaps_sig_handle_id` (`UNRESERVE_SIGNALS_ONLY`).
    UnreserveSignals {
        /// [`CsReservation::handle`].
        handle: u32,
    },
    /// `engine_cores` (`ENGINE_CORE_COMMAND`). It takes the place of chunks.
    EngineCores {
        /// Core ids.
        cores: &'a [u32],
        /// `HL_ENGINE_CORE_HALT` or `HL_ENGINE_CORE_RUN`.
        command: EngineCommand,
    },
    /// `engines` (`ENGINES_COMMAND`). It takes the place of chunks.
    Engines {
        /// Engine ids of the ASIC (`enum gaudi2_engine_id`), or core ids with the commands for
        /// cores.
        engines: &'a [u32],
        /// The command.
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

    /// The second union of `hl_cs_in` as one word; 0 for arguments in the first union.
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
    const SYNC_STREAM: u32 = CsFlags::SIGNAL.0 | CsFlags::WAIT.0 | CsFlags::COLLECTIVE_WAIT.0;

    /// The flags of commands without a number to wait for.
    const WITHOUT_SEQ: u32 = CsFlags::RESERVE_SIGNALS_ONLY.0
        | CsFlags::UNRESERVE_SIGNALS_ONLY.0
        | CsFlags::ENGINE_CORE_COMMAND.0
        | CsFlags::ENGINES_COMMAND.0
        | CsFlags::FLUSH_PCI_HBW_WRITES.0;

    /// Jobs.
    pub const fn jobs(execute: &'a [HlCsChunk]) -> Self {
        Self::of(execute, CsFlags::NONE, CsArgument::None)
    }

    /// `HL_CS_FLAGS_SIGNAL`: one chunk, whose queue signals.
    pub const fn signal(chunk: &'a [HlCsChunk; 1]) -> Self {
        Self::of(chunk, CsFlags::SIGNAL, CsArgument::None)
    }

    /// `HL_CS_FLAGS_WAIT`: one chunk, with its queue and the address of the signal's number.
    pub const fn wait(chunk: &'a [HlCsChunk; 1]) -> Self {
        Self::of(chunk, CsFlags::WAIT, CsArgument::None)
    }

    /// Reserves signals of a queue: see [`CsAnswer::reservation`].
    pub const fn reserve_signals(count: u32, queue: QueueId) -> Self {
        Self::of(&[], CsFlags::NONE, CsArgument::ReserveSignals { count, queue })
    }

    /// Releases reserved signals.
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

    /// Waits until all posted PCI writes have arrived.
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

    /// Adds flags.
    pub const fn with_flags(mut self, flags: CsFlags) -> Self {
        self.flags.0 |= flags.0;
        self
    }

    /// Sets a timeout, in seconds.
    pub const fn with_timeout(mut self, seconds: u32) -> Self {
        self.timeout_s = seconds;
        self.with_flags(CsFlags::CUSTOM_TIMEOUT)
    }

    /// `hl_cs_in.cs_flags`: the flags, and those of the argument.
    #[inline]
    pub const fn cs_flags(&self) -> CsFlags {
        CsFlags(self.flags.0 | self.argument.flags().0)
    }

    /// `HL_CS_FLAGS_TYPE_MASK` of the flags: the commands that exclude one another. 0 are jobs.
    #[inline]
    pub const fn types(&self) -> u32 {
        const TYPES: u32 = CsRequest::SYNC_STREAM | CsRequest::WITHOUT_SEQ;
        self.cs_flags().0 & TYPES
    }

    /// Whether the driver writes the packets: a signal, or a wait for one.
    #[inline]
    pub const fn is_sync_stream(&self) -> bool {
        self.cs_flags().0 & Self::SYNC_STREAM != 0
    }

    /// Whether the first union holds what the flags make the driver read there: chunks, or the ids
    /// of engines of one kind. The driver would misread an unsound request.
    #[inline]
    pub const fn is_sound(&self) -> bool {
        const ENGINES: u32 = CsFlags::ENGINE_CORE_COMMAND.0 | CsFlags::ENGINES_COMMAND.0;
        let holds = self.argument.flags().0 & ENGINES;
        let empty = self.execute.is_empty() && self.restore.is_empty();
        self.cs_flags().0 & ENGINES == holds && (holds == 0 || empty)
    }

    /// The chunks of both phases.
    pub fn chunks(&self) -> impl Iterator<Item = &'a HlCsChunk> {
        self.execute.iter().chain(self.restore)
    }

    /// The driver's timeout of a submission without one of its own, in seconds (habanalabs_drv.c
    /// `timeout_locked`).
    pub const TIMEOUT_S: u64 = 30;

    /// The seconds after which the driver ends the submission.
    pub fn driver_timeout_s(&self) -> u64 {
        match self.flags.contains(CsFlags::CUSTOM_TIMEOUT) {
            true => u64::from(self.timeout_s),
            false => Self::TIMEOUT_S,
        }
    }

    /// Whether the answer's `seq` is a number to wait for. It is not for reservations, commands to
    /// engines and flushes.
    pub const fn is_numbered(&self) -> bool {
        self.cs_flags().0 & Self::WITHOUT_SEQ == 0
    }
}

/// `hl_cs_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsAnswer {
    /// The number to wait for.
    pub seq: CsSeq,
    /// `HL_CS_STATUS_*`.
    pub status: CsStatus,
    /// The offset of the sync object, for a signal or a reservation.
    pub sob_base_addr_offset: u32,
    /// The sync object's value before the submission, for signals.
    pub sob_count_before_submission: u16,
}

/// The answer to a reservation of signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CsReservation {
    /// `hl_cs_out.handle_id`.
    pub handle: u32,
    /// `hl_cs_out.count`: the value that the sync object has after the signals.
    pub count: u32,
}

impl CsAnswer {
    /// The answer to [`CsRequest::reserve_signals`]. It takes the place of the number.
    pub const fn reservation(&self) -> CsReservation {
        CsReservation {
            handle: self.seq.0 as u32,
            count: (self.seq.0 >> 32) as u32,
        }
    }
}

/// `HL_WAIT_CS_STATUS_*` of a successful wait. A submission that timed out or was aborted is an
/// error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitStatus {
    /// The submission completed.
    Completed,
    /// The timeout passed; the submission still runs.
    Busy,
}

/// `hl_wait_cs_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitAnswer {
    /// Whether the submission completed.
    pub status: WaitStatus,
    /// `HL_WAIT_CS_STATUS_FLAG_GONE`: the submission completed, and the driver has dropped its
    /// record.
    pub gone: bool,
    /// The time of completion in nanoseconds, if the submission requested a timestamp.
    pub timestamp_ns: Option<i64>,
}

/// `hl_wait_cs_out` of `HL_WAIT_CS_FLAGS_MULTI_CS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiWaitAnswer {
    /// Whether any submission completed in time.
    pub status: WaitStatus,
    /// Bit n: the nth of the list completed.
    pub completion_map: u32,
    /// The time of the first completion in nanoseconds, if known.
    pub timestamp_ns: Option<i64>,
}

/// A user interrupt's number, of twelve bits: a decoder's from 0, a completion queue's from
/// `first_available_interrupt_id` of `HL_INFO_HW_IP_INFO`, or one of the two for all of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterruptId(pub u16);

impl InterruptId {
    /// `HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT`: any completion queue.
    pub const ANY_CQ: Self = Self((WaitCsFlags::ANY_CQ_INTERRUPT >> 20) as u16);
    /// `HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT`: any decoder.
    pub const ANY_DECODER: Self = Self((WaitCsFlags::ANY_DEC_INTERRUPT >> 20) as u16);
}

/// A 64-bit counter in a command buffer of the driver, which the device increments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqCounter {
    /// `cq_counters_handle`: created by [`KernelIo::cb_create`](crate::KernelIo::cb_create).
    pub handle: CbHandle,
    /// `cq_counters_offset`: in counters of 8 bytes, not in bytes.
    pub offset: u64,
}

/// The word that a wait for an interrupt compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InterruptWord {
    /// A word in this process's memory.
    User(HostVa),
    /// A counter of the driver (`HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ`).
    KernelCq(CqCounter),
}

/// `HL_WAIT_CS_FLAGS_INTERRUPT`: a wait until a 64-bit word reaches a value. A user interrupt wakes
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptWait {
    /// The interrupt that wakes the wait.
    pub interrupt: InterruptId,
    /// The word that is compared.
    pub word: InterruptWord,
    /// The wait ends when the word is at least this.
    pub target: u64,
    /// The longest wait. Zero polls.
    pub timeout: Duration,
}

/// `HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT`: the driver writes the time when a counter reaches a
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimestampRegistration {
    /// The interrupt at which the driver compares.
    pub interrupt: InterruptId,
    /// The word that is compared.
    pub counter: CqCounter,
    /// Reached when the counter is at least this. The driver uses the low 32 bits only
    /// (common/command_submission.c:_hl_interrupt_ts_reg_ioctl).
    pub target: u64,
    /// `timestamp_handle`.
    pub buffer: TsHandle,
    /// `timestamp_offset`: in timestamps of 8 bytes, not in bytes.
    pub index: u64,
}
