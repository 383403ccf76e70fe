//! Debug mode and CoreSight: `DRM_IOCTL_HL_DEBUG`.

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
    /// `struct hl_debug_args` of `habanalabs_accel.h`.
    pub struct HlDebugArgs {
        /// Address of the op's input struct.
        pub input_ptr: u64,
        /// Address of the op's output struct.
        pub output_ptr: u64,
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

    /// `struct hl_debug_params_etr` of `habanalabs_accel.h`: trace into memory.
    pub struct HlDebugParamsEtr {
        /// Device address of the trace buffer.
        pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Software FIFO, hardware FIFO or circular buffer.
        pub sink_mode: u32,
        /// Zero.
        pub pad: u32,
    }

    /// `struct hl_debug_params_etf` of `habanalabs_accel.h`: trace into a FIFO.
    pub struct HlDebugParamsEtf {
        /// Device address of the trace buffer.
        pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Software FIFO, hardware FIFO or circular buffer.
        pub sink_mode: u32,
        /// Zero.
        pub pad: u32,
    }

    /// `struct hl_debug_params_stm` of `habanalabs_accel.h`: system trace macrocell.
    pub struct HlDebugParamsStm {
        /// Mask of hardware events.
        pub he_mask: u64,
        /// Mask of stimulus ports.
        pub sp_mask: u64,
        /// Trace source id.
        pub id: u32,
        /// Frequency for the timestamp register.
        pub frequency: u32,
    }

    /// `struct hl_debug_params_bmon` of `habanalabs_accel.h`: bus monitor.
    pub struct HlDebugParamsBmon {
        /// First filtered range.
        pub start_addr0: u64,
        /// Its mask.
        pub addr_mask0: u64,
        /// Second filtered range.
        pub start_addr1: u64,
        /// Its mask.
        pub addr_mask1: u64,
        /// Capture window: bandwidth.
        pub bw_win: u32,
        /// Capture window.
        pub win_capture: u32,
        /// Trace source id.
        pub id: u32,
        /// Control register.
        pub control: u32,
        /// Third filtered range.
        pub start_addr2: u64,
        /// Its end.
        pub end_addr2: u64,
        /// Fourth filtered range.
        pub start_addr3: u64,
        /// Its end.
        pub end_addr3: u64,
    }

    /// `struct hl_debug_params_spmu` of `habanalabs_accel.h`: performance counters.
    pub struct HlDebugParamsSpmu {
        /// Selected event types.
        pub event_types: [u64; HL_DEBUG_MAX_AUX_VALUES],
        /// How many.
        pub event_types_num: u32,
        /// Trace configuration register.
        pub pmtrc_val: u32,
        /// Trace control register.
        pub trc_ctrl_host_val: u32,
        /// Trace enable register.
        pub trc_en_host_val: u32,
    }

    /// `struct hl_debug_params_fetch_trace`: takes trace out of a buffer (gaudi3 header).
    pub struct HlDebugParamsFetchTrace {
        /// Device address of the trace buffer.
        pub buffer_address: u64,
        /// Its bytes.
        pub buffer_size: u64,
        /// Address of the reader's position.
        pub buffer_index_address: u64,
        /// Address to which the driver writes the number of copied bytes.
        pub copied_size_addr: u64,
        /// Which trace sink: [`Gaudi3Etr`].
        pub etr_id: u32,
        /// Milliseconds to wait.
        pub timeout_ms: u32,
    }

    /// `struct hl_debug_params_mem_access`: reads or copies registers (gaudi3 header).
    pub struct HlDebugParamsMemAccess {
        /// Device address in configuration space.
        pub cfg_address: u64,
        /// Address in the caller's process.
        pub user_address: u64,
        /// Bytes.
        pub size: u32,
        /// Not in use.
        pub reserved: u32,
    }

    /// `struct hl_debug_params_scheduler`: a buffer for a scheduler (gaudi3 header).
    pub struct HlDebugParamsScheduler {
        /// The scheduler.
        pub cpu_id: u64,
        /// Its queue.
        pub queue_id: u64,
        /// Address of the buffer.
        pub buffer: u64,
        /// Its bytes.
        pub size: u32,
        /// Not in use.
        pub reserved: u32,
    }

    /// `struct hl_debug_params_read_block`: reads a block of registers (gaudi3 header).
    pub struct HlDebugParamsReadBlock {
        /// Device address in configuration space.
        pub cfg_address: u64,
        /// Address in the caller's process.
        pub user_address: u64,
        /// Bytes.
        pub size: u32,
        /// Flags.
        pub flags: u32,
    }
}
