//! Command submission: `DRM_IOCTL_HL_CS`.

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

c_structs! {
    /// One job, 64 bytes for ever.
    pub struct HlCsChunk = "struct hl_cs_chunk" {
        /// Handle or device address of the command buffer. In C also `signal_seq_arr` (address of
        /// `u64` sequence numbers) and `encaps_signal_seq`, for waits on signals.
        #[c("cb_handle", "signal_seq_arr", "encaps_signal_seq")] #[print(Hex)] pub cb_handle: u64,
        /// The queue that the job goes to.
        pub queue_index: u32,
        /// Bytes of packets. In C also `num_signal_seq_arr` and `encaps_signal_offset`, for waits
        /// on signals.
        #[c("cb_size", "num_signal_seq_arr", "encaps_signal_offset")] pub cb_size: u32,
        /// Flags.
        pub cs_chunk_flags: CsChunkFlags,
        /// Engine of a collective wait.
        pub collective_engine_id: u32,
        /// Zero.
        pub pad: [u32; 10],
    }
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

c_structs! {
    pub struct HlCsIn = "struct hl_cs_in" {
        /// The first union: [`HlCsInChunks`], [`HlCsInEngineCores`] or [`HlCsInEngines`].
        #[c()] pub arg: [u64; 2],
        /// The second union: `seq` of a staged submission, `encaps_sig_handle_id`, or
        /// [`HlCsInReserve`].
        #[c("seq")] pub signal: [u64; 1],
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
    pub struct HlCsInChunks in HlCsIn.arg {
        /// Address of the restore phase's [`HlCsChunk`]s.
        #[print(Hex)] pub chunks_restore: u64,
        /// Address of the execution phase's [`HlCsChunk`]s.
        #[print(Hex)] pub chunks_execute: u64,
    }

    /// The variant of [`HlCsIn::arg`] for [`CsFlags::ENGINE_CORE_COMMAND`]: anonymous in `struct
    /// hl_cs_in`.
    pub struct HlCsInEngineCores in HlCsIn.arg {
        /// Address of `u32` core ids.
        #[print(Hex)] pub engine_cores: u64,
        /// How many.
        pub num_engine_cores: u32,
        /// What they shall do.
        pub core_command: EngineCommand,
    }

    /// The variant of [`HlCsIn::arg`] for [`CsFlags::ENGINES_COMMAND`]: anonymous in `struct
    /// hl_cs_in`.
    pub struct HlCsInEngines in HlCsIn.arg, V7 {
        /// Address of `u32` engine ids.
        #[print(Hex)] pub engines: u64,
        /// How many.
        pub num_engines: u32,
        /// What they shall do.
        pub engine_command: EngineCommand,
    }

    /// The variant of [`HlCsIn::signal`] for [`CsFlags::RESERVE_SIGNALS_ONLY`]: anonymous in
    /// `struct hl_cs_in`.
    pub struct HlCsInReserve in HlCsIn.signal {
        /// How many signals.
        pub encaps_signals_count: u32,
        /// The queue that will signal.
        pub encaps_signals_q_idx: u32,
    }
}

c_structs! {
    /// The variant of [`HlCsIn::signal`] for [`CsFlags::UNRESERVE_SIGNALS_ONLY`] and for jobs with
    /// [`CsFlags::ENCAP_SIGNALS`]: anonymous in `struct hl_cs_in`.
    pub struct HlCsInEncapsulated in HlCsIn.signal {
        /// The reservation: [`HlCsOutReserve::handle_id`].
        #[print(Hex)] pub encaps_sig_handle_id: u32,
    }
}

impl HlCsIn {
    /// A command to `count` engine cores whose `u32` ids lie at `cores`.
    #[inline]
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
    #[inline]
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

    /// Sets the job arrays' addresses.
    #[inline]
    pub fn set_chunks(&mut self, chunks: HlCsInChunks) {
        self.arg = words::from_view(&chunks);
    }
}

c_structs! {
    pub struct HlCsOut = "struct hl_cs_out" {
        /// The union: the sequence number `seq` (never 0 or all ones), or [`HlCsOutReserve`].
        #[c("seq")] pub arg: [u64; 1],
        /// `HL_CS_STATUS_*`.
        pub status: CsStatus,
        /// Offset of the sync object, after SIGNAL and RESERVE_SIGNALS_ONLY.
        #[print(Hex)] pub sob_base_addr_offset: u32,
        /// Signals that the sync object had seen before, after SIGNAL and staged encapsulated
        /// signals.
        pub sob_count_before_submission: u16,
        /// Zero.
        pub pad: [u16; 3],
    }

    /// The variant of [`HlCsOut::arg`] after RESERVE_SIGNALS_ONLY: anonymous in `struct hl_cs_out`.
    pub struct HlCsOutReserve in HlCsOut.arg {
        /// The reservation's handle.
        #[print(Hex)] pub handle_id: u32,
        /// Signals reserved.
        pub count: u32,
    }
}

impl HlCsOut {
    /// The sequence number to wait for.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.arg[0]
    }
}

args_union! {
    pub struct HlCsArgs[6] = "union hl_cs_args" { in: HlCsIn, out: HlCsOut }
}
