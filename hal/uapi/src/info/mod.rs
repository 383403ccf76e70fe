//! Questions about device and driver: `DRM_IOCTL_HL_INFO`.
//!
//! The argument carries the address and size of an answer struct. The driver copies at most that
//! many bytes and does not say how many it copied: zero the struct first.

mod attest;
mod device;
mod events;
mod gaudi3;
mod mock;

use zerocopy::{FromBytes, IntoBytes};

use crate::CStruct;

pub use attest::{HlInfoSecAttest, HlInfoSigned};
pub use device::*;
pub use events::*;
pub use gaudi3::*;
pub use mock::MockFault;

open_enum! {
    /// `hl_info_args.op`, `HL_INFO_*`.
    pub struct InfoOp(u32), "HL_INFO_" {
        V6_1 HW_IP_INFO = 0,
        V6_1 HW_EVENTS = 1,
        V6_1 DRAM_USAGE = 2,
        V6_1 HW_IDLE = 3,
        V6_1 DEVICE_STATUS = 4,
        V6_1 DEVICE_UTILIZATION = 6,
        V6_1 HW_EVENTS_AGGREGATE = 7,
        V6_1 CLK_RATE = 8,
        V6_1 RESET_COUNT = 9,
        V6_1 TIME_SYNC = 10,
        V6_1 CS_COUNTERS = 11,
        V6_1 PCI_COUNTERS = 12,
        V6_1 CLK_THROTTLE_REASON = 13,
        V6_1 SYNC_MANAGER = 14,
        V6_1 TOTAL_ENERGY = 15,
        V6_1 PLL_FREQUENCY = 16,
        V6_1 POWER = 17,
        V6_1 OPEN_STATS = 18,
        Gaudi3 HABANA_LINK_STATE = 19,
        Gaudi3 HABANA_LINK_COUNTERS = 20,
        V6_1 DRAM_REPLACED_ROWS = 21,
        V6_1 DRAM_PENDING_ROWS = 22,
        V6_1 LAST_ERR_OPEN_DEV_TIME = 23,
        V6_1 CS_TIMEOUT_EVENT = 24,
        V6_1 RAZWI_EVENT = 25,
        V6_1 DEV_MEM_ALLOC_PAGE_SIZES = 26,
        V6_1 SECURED_ATTESTATION = 27,
        V6_1 REGISTER_EVENTFD = 28,
        V6_1 UNREGISTER_EVENTFD = 29,
        V6_1 GET_EVENTS = 30,
        V6_1 UNDEFINED_OPCODE_EVENT = 31,
        V6_1 ENGINE_STATUS = 32,
        V7 PAGE_FAULT_EVENT = 33,
        V7 USER_MAPPINGS = 34,
        V7 FW_GENERIC_REQ = 35,
        V7 HW_ERR_EVENT = 36,
        V7 FW_ERR_EVENT = 37,
        V7 USER_ENGINE_ERR_EVENT = 38,
        Gaudi3 TIME_SYNC_PER_DIE = 39,
        V7 DEV_SIGNED = 40,
        Gaudi3 MODULE_PARAMS = 255,
    }
}

c_structs! {
    pub struct HlInfoArgs = "struct hl_info_args" {
        /// Address of the answer.
        #[print(Hex)] pub return_pointer: u64,
        /// Bytes at `return_pointer`.
        pub return_size: u32,
        /// The question.
        pub op: InfoOp,
        /// The union of `u32`s: `dcore_id`, `ctx_id`, `period_ms`, `pll_index`, `eventfd`,
        /// `sec_attest_nonce`, `fw_sub_opcode` and, in the gaudi3 header, `habana_link_id` go in;
        /// `user_buffer_actual_size` and `array_size` come out.
        #[c(
            "dcore_id", "ctx_id", "period_ms", "pll_index", "eventfd", "user_buffer_actual_size",
            "sec_attest_nonce", V7 "array_size", V7 "fw_sub_opcode", Gaudi3 "habana_link_id"
        )]
        pub arg: u32,
        /// Zero.
        pub pad: u32,
    }
}

impl HlInfoArgs {
    /// A question whose answer of `return_size` bytes goes to `return_pointer`.
    pub fn new(op: InfoOp, return_pointer: u64, return_size: u32, arg: u32) -> Self {
        Self {
            return_pointer,
            return_size,
            op,
            arg,
            pad: 0,
        }
    }
}

/// A struct that one INFO question fills.
pub trait InfoAnswer: FromBytes + IntoBytes {
    /// The question.
    const OP: InfoOp;
}

macro_rules! answers {
    ($($type:ident = $op:ident;)*) => {
        $(impl InfoAnswer for $type {
            const OP: InfoOp = InfoOp::$op;
        })*

        impl InfoOp {
            /// The struct that answers the question; none if the answer is a text, an array, or
            /// only the argument word.
            pub const fn answer(self) -> Option<&'static CStruct> {
                match self {
                    $(Self::$op => Some(&$type::LAYOUT),)*
                    _ => None,
                }
            }
        }
    };
}

answers! {
    HlInfoHwIpInfo = HW_IP_INFO;
    HlInfoDramUsage = DRAM_USAGE;
    HlInfoHwIdle = HW_IDLE;
    HlInfoDeviceStatus = DEVICE_STATUS;
    HlInfoDeviceUtilization = DEVICE_UTILIZATION;
    HlInfoClkRate = CLK_RATE;
    HlInfoResetCount = RESET_COUNT;
    HlInfoTimeSync = TIME_SYNC;
    HlInfoCsCounters = CS_COUNTERS;
    HlInfoPciCounters = PCI_COUNTERS;
    HlInfoClkThrottle = CLK_THROTTLE_REASON;
    HlInfoSyncManager = SYNC_MANAGER;
    HlInfoEnergy = TOTAL_ENERGY;
    HlPllFrequencyInfo = PLL_FREQUENCY;
    HlPowerInfo = POWER;
    HlOpenStatsInfo = OPEN_STATS;
    HlInfoDevMemallocPageSizes = DEV_MEM_ALLOC_PAGE_SIZES;
    HlInfoLastErrOpenDevTime = LAST_ERR_OPEN_DEV_TIME;
    HlInfoCsTimeoutEvent = CS_TIMEOUT_EVENT;
    HlInfoRazwiEvent = RAZWI_EVENT;
    HlInfoEvents = GET_EVENTS;
    HlInfoUndefinedOpcodeEvent = UNDEFINED_OPCODE_EVENT;
    HlInfoHwErrEvent = HW_ERR_EVENT;
    HlInfoFwErrEvent = FW_ERR_EVENT;
    HlInfoEngineErrEvent = USER_ENGINE_ERR_EVENT;
    HlPageFaultInfo = PAGE_FAULT_EVENT;
    HlInfoHabanaLinkState = HABANA_LINK_STATE;
    HlInfoModuleParams = MODULE_PARAMS;
    HlInfoSecAttest = SECURED_ATTESTATION;
    HlInfoSigned = DEV_SIGNED;
}
