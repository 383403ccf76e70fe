//! Command submission: `DRM_IOCTL_HL_CS`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::words;

flags! {
    /// `hl_cs_in.cs_flags`, `HL_CS_FLAGS_*`. Types of submission exclude one another.
    pub struct CsFlags(u32), "HL_CS_FLAGS_" {
        V6_1 FORCE_RESTORE = 0x1,
        V6_1 SIGNAL = 0x2,
        V6_1 WAIT = 0x4,
        V6_1 COLLECTIVE_WAIT = 0x8,
        V6_1 TIMESTAMP = 0x20,
        V6_1 STAGED_SUBMISSION = 0x40,
        V6_1 STAGED_SUBMISSION_FIRST = 0x80,
        V6_1 STAGED_SUBMISSION_LAST = 0x100,
        V6_1 CUSTOM_TIMEOUT = 0x200,
        V6_1 SKIP_RESET_ON_TIMEOUT = 0x400,
        V6_1 ENCAP_SIGNALS = 0x800,
        V6_1 RESERVE_SIGNALS_ONLY = 0x1000,
        V6_1 UNRESERVE_SIGNALS_ONLY = 0x2000,
        V6_1 ENGINE_CORE_COMMAND = 0x4000,
        V7 FLUSH_PCI_HBW_WRITES = 0x8000,
        V7 ENGINES_COMMAND = 0x1_0000,
    }
}

flags! {
    /// `hl_cs_chunk.cs_chunk_flags`, `HL_CS_CHUNK_FLAGS_*`.
    pub struct CsChunkFlags(u32), "HL_CS_CHUNK_FLAGS_" {
        V6_1 USER_ALLOC_CB = 0x1,
    }
}

open_enum! {
    /// `hl_cs_out.status`, `HL_CS_STATUS_*`.
    pub struct CsStatus(u32), "HL_CS_STATUS_" {
        V6_1 SUCCESS = 0,
    }
}

open_enum! {
    /// `enum hl_engine_command`, `HL_ENGINE_*`.
    pub struct EngineCommand(u32), "HL_ENGINE_" {
        V6_1 CORE_HALT = 1,
        V6_1 CORE_RUN = 2,
        V7 STALL = 3,
        V7 RESUME = 4,
    }
}

/// `struct hl_cs_chunk` of `habanalabs_accel.h`: one job, 64 bytes for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsChunk {
    /// Handle or device address of the command buffer. In C also `signal_seq_arr` (address of `u64`
    /// sequence numbers) and `encaps_signal_seq`, for waits on signals.
    pub cb_handle: u64,
    /// The queue that the job goes to.
    pub queue_index: u32,
    /// Bytes of packets. In C also `num_signal_seq_arr` and `encaps_signal_offset`, for waits on
    /// signals.
    pub cb_size: u32,
    /// Flags.
    pub cs_chunk_flags: CsChunkFlags,
    /// Engine of a collective wait.
    pub collective_engine_id: u32,
    /// Zero.
    pub pad: [u32; 10],
}

impl HlCsChunk {
    /// A job whose command buffer lies at a device address that the user mapped (Gaudi2: the only
    /// kind).
    pub fn user(queue_index: u32, device_va: u64, cb_size: u32) -> Self {
        let cs_chunk_flags = CsChunkFlags::USER_ALLOC_CB;
        Self {
            cb_handle: device_va,
            queue_index,
            cb_size,
            cs_chunk_flags,
            ..Self::default()
        }
    }

    /// A job whose command buffer belongs to the kernel.
    pub fn kernel(queue_index: u32, cb_handle: u64, cb_size: u32) -> Self {
        Self {
            cb_handle,
            queue_index,
            cb_size,
            ..Self::default()
        }
    }
}

/// `struct hl_cs_in` of `habanalabs_accel.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsIn {
    /// The first union: [`HlCsInChunks`], [`HlCsInEngineCores`] or [`HlCsInEngines`].
    pub arg: [u64; 2],
    /// The second union: `seq` of a staged submission, `encaps_sig_handle_id`, or
    /// [`HlCsInReserve`].
    pub signal: [u64; 1],
    /// Chunks of the restore phase, at most [`crate::limits::HL_MAX_JOBS_PER_CS`].
    pub num_chunks_restore: u32,
    /// Chunks of the execution phase, at most [`crate::limits::HL_MAX_JOBS_PER_CS`].
    pub num_chunks_execute: u32,
    /// Seconds; counts only with [`CsFlags::CUSTOM_TIMEOUT`].
    pub timeout: u32,
    /// Flags.
    pub cs_flags: CsFlags,
    /// Not in use.
    pub ctx_id: u32,
    /// Zero, or the driver answers EINVAL.
    pub pad: [u8; 4],
}

/// The variant of [`HlCsIn::arg`] for jobs: anonymous in `struct hl_cs_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsInChunks {
    /// Address of the restore phase's [`HlCsChunk`]s.
    pub chunks_restore: u64,
    /// Address of the execution phase's [`HlCsChunk`]s.
    pub chunks_execute: u64,
}

/// The variant of [`HlCsIn::arg`] for [`CsFlags::ENGINE_CORE_COMMAND`]: anonymous in `struct
/// hl_cs_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsInEngineCores {
    /// Address of `u32` core ids.
    pub engine_cores: u64,
    /// How many.
    pub num_engine_cores: u32,
    /// What they shall do.
    pub core_command: EngineCommand,
}

/// The variant of [`HlCsIn::arg`] for [`CsFlags::ENGINES_COMMAND`]: anonymous in `struct hl_cs_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsInEngines {
    /// Address of `u32` engine ids.
    pub engines: u64,
    /// How many.
    pub num_engines: u32,
    /// What they shall do.
    pub engine_command: EngineCommand,
}

/// The variant of [`HlCsIn::signal`] for [`CsFlags::RESERVE_SIGNALS_ONLY`]: anonymous in `struct
/// hl_cs_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsInReserve {
    /// How many signals.
    pub encaps_signals_count: u32,
    /// The queue that will signal.
    pub encaps_signals_q_idx: u32,
}

impl HlCsIn {
    /// A submission of `count` jobs that lie at `chunks`.
    #[inline]
    pub fn execute(chunks: u64, count: u32, cs_flags: CsFlags) -> Self {
        let view = HlCsInChunks {
            chunks_restore: 0,
            chunks_execute: chunks,
        };
        Self {
            arg: words::from_view(&view),
            num_chunks_execute: count,
            cs_flags,
            ..Self::default()
        }
    }

    /// The same submission with a timeout of its own, in seconds.
    pub fn with_timeout(mut self, seconds: u32) -> Self {
        self.timeout = seconds;
        self.cs_flags |= CsFlags::CUSTOM_TIMEOUT;
        self
    }

    /// The same submission as a later stage of the staged submission `seq`.
    pub fn with_stage(mut self, seq: u64) -> Self {
        self.signal = [seq];
        self.cs_flags |= CsFlags::STAGED_SUBMISSION;
        self
    }

    /// A command to `count` engine cores whose `u32` ids lie at `cores`.
    pub fn engine_cores(cores: u64, count: u32, command: EngineCommand) -> Self {
        let view = HlCsInEngineCores {
            engine_cores: cores,
            num_engine_cores: count,
            core_command: command,
        };
        Self {
            arg: words::from_view(&view),
            cs_flags: CsFlags::ENGINE_CORE_COMMAND,
            ..Self::default()
        }
    }

    /// A command to `count` engines whose `u32` ids lie at `engines`.
    pub fn engines(engines: u64, count: u32, command: EngineCommand) -> Self {
        let view = HlCsInEngines {
            engines,
            num_engines: count,
            engine_command: command,
        };
        Self {
            arg: words::from_view(&view),
            cs_flags: CsFlags::ENGINES_COMMAND,
            ..Self::default()
        }
    }

    /// Reserves `count` encapsulated signals of a queue.
    pub fn reserve_signals(count: u32, queue_index: u32) -> Self {
        let view = HlCsInReserve {
            encaps_signals_count: count,
            encaps_signals_q_idx: queue_index,
        };
        Self {
            signal: words::from_view(&view),
            cs_flags: CsFlags::RESERVE_SIGNALS_ONLY,
            ..Self::default()
        }
    }

    /// Gives reserved signals back.
    pub fn unreserve_signals(handle_id: u32) -> Self {
        let signal = words::from_view(&handle_id);
        Self {
            signal,
            cs_flags: CsFlags::UNRESERVE_SIGNALS_ONLY,
            ..Self::default()
        }
    }

    /// Reads all posted PCI writes back. Blocks; the answer's sequence number means nothing.
    pub fn flush_pci_hbw_writes() -> Self {
        Self {
            cs_flags: CsFlags::FLUSH_PCI_HBW_WRITES,
            ..Self::default()
        }
    }

    /// Sets the job arrays' addresses.
    #[inline]
    pub fn set_chunks(&mut self, chunks: HlCsInChunks) {
        self.arg = words::from_view(&chunks);
    }

    /// The job arrays.
    #[inline]
    pub fn chunks(&self) -> HlCsInChunks {
        words::to_view(&self.arg)
    }

    /// The core command.
    pub fn engine_core_view(&self) -> HlCsInEngineCores {
        words::to_view(&self.arg)
    }

    /// The engine command.
    pub fn engine_view(&self) -> HlCsInEngines {
        words::to_view(&self.arg)
    }

    /// The staged submission that this one continues.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.signal[0]
    }

    /// The handle of reserved signals.
    pub fn encaps_sig_handle_id(&self) -> u32 {
        words::to_view(&self.signal)
    }

    /// The reservation asked for.
    pub fn reserve_view(&self) -> HlCsInReserve {
        words::to_view(&self.signal)
    }
}

/// `struct hl_cs_out` of `habanalabs_accel.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsOut {
    /// The union: the sequence number `seq` (never 0 or all ones), or [`HlCsOutReserve`].
    pub arg: [u64; 1],
    /// `HL_CS_STATUS_*`.
    pub status: CsStatus,
    /// Offset of the sync object, after SIGNAL and RESERVE_SIGNALS_ONLY.
    pub sob_base_addr_offset: u32,
    /// Signals that the sync object had seen before, after SIGNAL and staged encapsulated signals.
    pub sob_count_before_submission: u16,
    /// Zero.
    pub pad: [u16; 3],
}

/// The variant of [`HlCsOut::arg`] after RESERVE_SIGNALS_ONLY: anonymous in `struct hl_cs_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlCsOutReserve {
    /// The reservation's handle.
    pub handle_id: u32,
    /// Signals reserved.
    pub count: u32,
}

impl HlCsOut {
    /// An answer with a sequence number.
    pub fn of_seq(seq: u64) -> Self {
        Self {
            arg: [seq],
            ..Self::default()
        }
    }

    /// The sequence number to wait for.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.arg[0]
    }

    /// The reservation, after RESERVE_SIGNALS_ONLY.
    pub fn reserve_view(&self) -> HlCsOutReserve {
        words::to_view(&self.arg)
    }
}

args_union! {
    /// `union hl_cs_args` of `habanalabs_accel.h`.
    pub struct HlCsArgs[6] { in: HlCsIn, out: HlCsOut }
}
