//! Debug mode and CoreSight: `DRM_IOCTL_HL_DEBUG`.

use crate::CStruct;
use crate::limits::HL_DEBUG_MAX_AUX_VALUES;

open_enum! {
    /// `hl_debug_args.op`, `HL_DEBUG_OP_*`.
    pub struct DebugOp(u32), "HL_DEBUG_OP_" {
        V6_1 ETR = 0,
        V6_1 ETF = 1,
        V6_1 STM = 2,
        V6_1 FUNNEL = 3,
        V6_1 BMON = 4,
        V6_1 SPMU = 5,
        V6_1 TIMESTAMP = 6,
        V6_1 SET_MODE = 7,
        Gaudi3 FETCH_TRACE = 8,
        Gaudi3 READMEM = 1024,
        Gaudi3 MEMCPY = 1025,
        Gaudi3 SCHED_SUBMIT_BUF = 1031,
        Gaudi3 READBLOCK = 1032,
    }
}

impl DebugOp {
    /// The struct that `input_ptr` leads to, if the operation takes one.
    pub const fn input(self) -> Option<&'static CStruct> {
        Some(match self {
            Self::ETR => &HlDebugParamsEtr::LAYOUT,
            Self::ETF => &HlDebugParamsEtf::LAYOUT,
            Self::STM => &HlDebugParamsStm::LAYOUT,
            Self::BMON => &HlDebugParamsBmon::LAYOUT,
            Self::SPMU => &HlDebugParamsSpmu::LAYOUT,
            Self::FETCH_TRACE => &HlDebugParamsFetchTrace::LAYOUT,
            Self::READMEM | Self::MEMCPY => &HlDebugParamsMemAccess::LAYOUT,
            Self::SCHED_SUBMIT_BUF => &HlDebugParamsScheduler::LAYOUT,
            Self::READBLOCK => &HlDebugParamsReadBlock::LAYOUT,
            _ => return None,
        })
    }
}

/// One more operation, whose name in the gaudi3 header does not begin as the others'.
pub const HL_DEBUG_ENABLE_ERR_INFO_CAPTURE: DebugOp = DebugOp(1033);

open_enum! {
    /// How FETCH_TRACE went, `HL_DEBUG_FETCH_STATUS_*`.
    pub struct DebugFetchStatus(u32), "HL_DEBUG_FETCH_STATUS_" {
        Gaudi3 OK = 0,
        Gaudi3 EMPTY = 1,
        Gaudi3 STOPPED = 2,
    }
}

open_enum! {
    /// `enum gaudi3_etrs`: trace sinks of Gaudi3.
    pub struct Gaudi3Etr(u32), "GAUDI3_" {
        Gaudi3 D0_PSOC_ETR = 0,
        Gaudi3 D0_NCH_ETR = 1,
        Gaudi3 D1_PSOC_ETR = 2,
        Gaudi3 D1_NCH_ETR = 3,
    }
}

c_structs! {
    pub struct HlDebugArgs = "struct hl_debug_args" {
        /// Address of the op's input struct.
        #[print(Hex)] pub input_ptr: u64,
        /// Address of the op's output struct.
        #[print(Hex)] pub output_ptr: u64,
        /// Bytes of the input struct.
        pub input_size: u32,
        /// Bytes of the output struct.
        pub output_size: u32,
        /// The operation.
        pub op: DebugOp,
        /// Index of the component's registers.
        pub reg_idx: u32,
        /// 1 to enable, 0 to disable.
        pub enable: u32,
        /// Not in use.
        pub ctx_id: u32,
    }

    /// Trace into memory.
    pub struct HlDebugParamsEtr = "struct hl_debug_params_etr" {
        /// Device address of the trace buffer.
        #[print(Hex)] pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Software FIFO, hardware FIFO or circular buffer.
        pub sink_mode: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Trace into a FIFO.
    pub struct HlDebugParamsEtf = "struct hl_debug_params_etf" {
        /// Device address of the trace buffer.
        #[print(Hex)] pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Software FIFO, hardware FIFO or circular buffer.
        pub sink_mode: u32,
        /// Zero.
        pub pad: u32,
    }

    /// System trace macrocell.
    pub struct HlDebugParamsStm = "struct hl_debug_params_stm" {
        /// Mask of hardware events.
        #[print(Hex)] pub he_mask: u64,
        /// Mask of stimulus ports.
        #[print(Hex)] pub sp_mask: u64,
        /// Trace source id.
        pub id: u32,
        /// Frequency for the timestamp register.
        pub frequency: u32,
    }

    /// Bus monitor.
    pub struct HlDebugParamsBmon = "struct hl_debug_params_bmon" {
        /// First filtered range.
        #[print(Hex)] pub start_addr0: u64,
        /// Its mask.
        #[print(Hex)] pub addr_mask0: u64,
        /// Second filtered range.
        #[print(Hex)] pub start_addr1: u64,
        /// Its mask.
        #[print(Hex)] pub addr_mask1: u64,
        /// Capture window: bandwidth.
        pub bw_win: u32,
        /// Capture window.
        pub win_capture: u32,
        /// Trace source id.
        pub id: u32,
        /// Control register.
        #[print(Hex)] pub control: u32,
        /// Third filtered range.
        #[print(Hex)] pub start_addr2: u64,
        /// Its end.
        #[print(Hex)] pub end_addr2: u64,
        /// Fourth filtered range.
        #[print(Hex)] pub start_addr3: u64,
        /// Its end.
        #[print(Hex)] pub end_addr3: u64,
    }

    /// Performance counters.
    pub struct HlDebugParamsSpmu = "struct hl_debug_params_spmu" {
        /// Selected event types.
        pub event_types: [u64; HL_DEBUG_MAX_AUX_VALUES],
        /// How many.
        pub event_types_num: u32,
        /// Trace configuration register.
        #[print(Hex)] pub pmtrc_val: u32,
        /// Trace control register.
        #[print(Hex)] pub trc_ctrl_host_val: u32,
        /// Trace enable register.
        #[print(Hex)] pub trc_en_host_val: u32,
    }

    /// Takes trace out of a buffer.
    pub struct HlDebugParamsFetchTrace = "struct hl_debug_params_fetch_trace", Gaudi3 {
        /// Device address of the trace buffer.
        #[print(Hex)] pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Address of the reader's position.
        #[print(Hex)] pub buffer_index_address: u64,
        /// Address to which the driver writes the number of copied bytes.
        #[print(Hex)] pub copied_size_addr: u64,
        /// Which trace sink: [`Gaudi3Etr`].
        pub etr_id: u32,
        /// Milliseconds to wait.
        pub timeout_ms: u32,
    }

    /// Reads or copies registers.
    pub struct HlDebugParamsMemAccess = "struct hl_debug_params_mem_access", Gaudi3 {
        /// Device address in configuration space.
        #[print(Hex)] pub cfg_address: u64,
        /// Address in the caller's process.
        #[print(Hex)] pub user_address: u64,
        /// Bytes.
        pub size: u32,
        /// Not in use.
        pub reserved: u32,
    }

    /// A buffer for a scheduler.
    pub struct HlDebugParamsScheduler = "struct hl_debug_params_scheduler", Gaudi3 {
        /// The scheduler.
        pub cpu_id: u64,
        /// Its queue.
        pub queue_id: u64,
        /// Address of the buffer.
        #[print(Hex)] pub buffer: u64,
        /// Its bytes.
        pub size: u32,
        /// Not in use.
        pub reserved: u32,
    }

    /// Reads a block of registers.
    pub struct HlDebugParamsReadBlock = "struct hl_debug_params_read_block", Gaudi3 {
        /// Device address in configuration space.
        #[print(Hex)] pub cfg_address: u64,
        /// Address in the caller's process.
        #[print(Hex)] pub user_address: u64,
        /// Bytes.
        pub size: u32,
        /// Flags.
        pub flags: u32,
    }
}
