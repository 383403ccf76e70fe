//! What happened: the notifier's events and the driver's records of the last errors.
//!
//! A record whose `timestamp` is 0 is empty.

use crate::limits::{HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR, MAX_QMAN_STREAMS_INFO, OPCODE_INFO_MAX_ADDR_SIZE};

flags! {
    /// Events of the notifier (`HL_INFO_GET_EVENTS`), `HL_NOTIFIER_EVENT_*`. Two names lack a
    /// letter in the header.
    pub struct NotifierEvents(u64), "HL_NOTIFIER_EVENT_" {
        V6_1 TPC_ASSERT = 0x1,
        V6_1 UNDEFINED_OPCODE = 0x2,
        V6_1 DEVICE_RESET = 0x4,
        V6_1 CS_TIMEOUT = 0x8,
        V6_1 DEVICE_UNAVAILABLE = 0x10,
        V6_1 USER_ENGINE_ERR = 0x20,
        V6_1 GENERAL_HW_ERR = 0x40,
        V7 RAZWI = 0x80,
        V7 PAGE_FAULT = 0x100,
        V7 CRITICL_HW_ERR = 0x200,
        V7 CRITICL_FW_ERR = 0x400,
    }
}

flags! {
    /// `hl_info_razwi_event.flags`, `HL_RAZWI_*`.
    pub struct RazwiFlags(u8), "HL_RAZWI_" {
        V7 READ = 0x1,
        V7 WRITE = 0x2,
        V7 LBW = 0x4,
        V7 HBW = 0x8,
        V7 RR = 0x10,
        V7 ADDR_DEC = 0x20,
    }
}

open_enum! {
    /// `enum hl_info_fw_err_type`.
    pub struct FwErrType(u16), "HL_INFO_FW_" {
        V7 HEARTBEAT_ERR = 0,
        V7 REPORTED_ERR = 1,
    }
}

c_structs! {
    pub struct HlInfoLastErrOpenDevTime = "struct hl_info_last_err_open_dev_time" {
        /// When the device was opened whose session then failed.
        pub timestamp: i64,
    }

    pub struct HlInfoCsTimeoutEvent = "struct hl_info_cs_timeout_event" {
        /// When.
        pub timestamp: i64,
        /// Which submission.
        pub seq: u64,
    }

    /// 280 bytes; in Linux 6.1 24 bytes, and another meaning behind `addr`.
    pub struct HlInfoRazwiEvent = "struct hl_info_razwi_event", 6.1: 24 {
        /// When.
        pub timestamp: i64,
        /// The address that was refused.
        #[print(Hex)] pub addr: u64,
        /// The engines that may have made the access.
        #[since(V7)] #[counted_by(num_of_possible_engines)]
        pub engine_id: [u16; HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR],
        /// How many of them count. Do not trust it as an index.
        #[since(V7)] pub num_of_possible_engines: u16,
        /// What kind of access.
        #[since(V7)] pub flags: RazwiFlags,
        /// Zero.
        #[since(V7)] pub pad: [u8; 5],
    }

    /// The answer to `HL_INFO_GET_EVENTS`, which C reads as a number.
    pub struct HlInfoEvents = "__u64" of "linux/types.h" {
        /// What happened since the last such question.
        #[c()] pub events: NotifierEvents,
    }

    pub struct HlInfoUndefinedOpcodeEvent = "struct hl_info_undefined_opcode_event" {
        /// When.
        pub timestamp: i64,
        /// Command-buffer addresses in each stream's queue.
        #[print(Hex)]
        pub cb_addr_streams: [[u64; OPCODE_INFO_MAX_ADDR_SIZE]; MAX_QMAN_STREAMS_INFO],
        /// The command buffer in work.
        #[print(Hex)] pub cq_addr: u64,
        /// Its bytes.
        pub cq_size: u32,
        /// Streams that count: 1 for the upper command processor, 4 for the lower.
        pub cb_addr_streams_len: u32,
        /// The engine.
        pub engine_id: u32,
        /// The stream; 4 means the lower command processor.
        pub stream_id: u32,
    }

    pub struct HlInfoHwErrEvent = "struct hl_info_hw_err_event", V7 {
        /// When.
        pub timestamp: i64,
        /// The chip's event number.
        pub event_id: u16,
        /// Zero.
        pub pad: [u16; 3],
    }

    pub struct HlInfoFwErrEvent = "struct hl_info_fw_err_event", V7 {
        /// When.
        pub timestamp: i64,
        /// What kind.
        pub err_type: FwErrType,
        /// The chip's event number, for a reported error.
        pub event_id: u16,
        /// Zero.
        pub pad: u32,
    }

    pub struct HlInfoEngineErrEvent = "struct hl_info_engine_err_event", V7 {
        /// When.
        pub timestamp: i64,
        /// The engine.
        pub engine_id: u16,
        /// How often.
        pub error_count: u16,
        /// Zero.
        pub pad: u32,
    }

    pub struct HlPageFaultInfo = "struct hl_page_fault_info", V7 {
        /// When.
        pub timestamp: i64,
        /// The address without a mapping.
        #[print(Hex)] pub addr: u64,
        /// The engine (Gaudi3).
        pub engine_id: u16,
        /// Zero.
        pub pad: [u8; 6],
    }

    /// An element of what `HL_INFO_USER_MAPPINGS` returns.
    pub struct HlUserMapping = "struct hl_user_mapping", V7 {
        /// Device address.
        #[print(Hex)] pub dev_va: u64,
        /// Bytes.
        pub size: u64,
    }
}
