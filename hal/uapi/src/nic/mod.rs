//! `DRM_IOCTL_HL_NIC`: gaudi3 header only; named so that traces can say what a foreign client asked
//! for.
//!
//! No kernel package ships that header. Its numbers and layouts were read from the release once;
//! `tests/abi` keeps them as a table of facts and compares this module with it.

use crate::CStruct;

mod conn;
mod port;
mod queue;

pub use conn::*;
pub use port::*;
pub use queue::*;

/// Back-pressure sync objects of an application.
pub const HL_NIC_USER_BP_OFFS_MAX: usize = 16;
/// Completion addresses of the fence-and-acknowledge fifos.
pub const HL_NIC_FNA_CMPL_ADDR_NUM: usize = 2;

open_enum! {
    /// `hl_nic_args.op`, `HL_NIC_OP_*`. 4 to 8 are deprecated; 11 to 13 are Gaudi's only, 14 and
    /// above are for Gaudi2 and newer, 28 for Gaudi3.
    pub struct NicOp(u32), "HL_NIC_OP_" {
        Gaudi3 ALLOC_CONN = 0,
        Gaudi3 SET_REQ_CONN_CTX = 1,
        Gaudi3 SET_RES_CONN_CTX = 2,
        Gaudi3 DESTROY_CONN = 3,
        Gaudi3 CQ_CREATE = 4,
        Gaudi3 CQ_DESTROY = 5,
        Gaudi3 CQ_WAIT = 6,
        Gaudi3 CQ_POLL = 7,
        Gaudi3 CQ_UPDATE_CONSUMED_CQES = 8,
        Gaudi3 USER_WQ_SET = 9,
        Gaudi3 USER_WQ_UNSET = 10,
        Gaudi3 USER_CQ_SET = 11,
        Gaudi3 USER_CQ_UNSET = 12,
        Gaudi3 USER_CQ_UPDATE_CI = 13,
        Gaudi3 ALLOC_USER_CQ_ID = 14,
        Gaudi3 SET_USER_APP_PARAMS = 15,
        Gaudi3 GET_USER_APP_PARAMS = 16,
        Gaudi3 ALLOC_USER_DB_FIFO = 17,
        Gaudi3 USER_DB_FIFO_SET = 18,
        Gaudi3 USER_DB_FIFO_UNSET = 19,
        Gaudi3 EQ_POLL = 20,
        Gaudi3 USER_ENCAP_ALLOC = 21,
        Gaudi3 USER_ENCAP_SET = 22,
        Gaudi3 USER_ENCAP_UNSET = 23,
        Gaudi3 USER_CCQ_SET = 24,
        Gaudi3 USER_CCQ_UNSET = 25,
        Gaudi3 USER_CQ_ID_SET = 26,
        Gaudi3 USER_CQ_ID_UNSET = 27,
        Gaudi3 ALLOC_COLL_CONN = 28,
        Gaudi3 DUMP_QP = 29,
    }
}

impl NicOp {
    /// The struct that `input_ptr` leads to. None for deprecated and unknown operations.
    pub const fn input(self) -> Option<&'static CStruct> {
        Some(match self {
            Self::ALLOC_CONN => &HlNicAllocConnIn::LAYOUT,
            Self::SET_REQ_CONN_CTX => &HlNicReqConnCtxIn::LAYOUT,
            Self::SET_RES_CONN_CTX => &HlNicResConnCtxIn::LAYOUT,
            Self::DESTROY_CONN => &HlNicDestroyConnIn::LAYOUT,
            Self::USER_WQ_SET => &HlNicUserWqArrSetIn::LAYOUT,
            Self::USER_WQ_UNSET => &HlNicUserWqArrUnsetIn::LAYOUT,
            Self::USER_CQ_SET => &HlNicUserCqSetIn::LAYOUT,
            Self::USER_CQ_UNSET => &HlNicUserCqUnsetIn::LAYOUT,
            Self::USER_CQ_UPDATE_CI => &HlNicUserCqUpdateCiIn::LAYOUT,
            Self::ALLOC_USER_CQ_ID => &HlNicAllocUserCqIdIn::LAYOUT,
            Self::SET_USER_APP_PARAMS => &HlNicSetUserAppParamsIn::LAYOUT,
            Self::GET_USER_APP_PARAMS => &HlNicGetUserAppParamsIn::LAYOUT,
            Self::ALLOC_USER_DB_FIFO => &HlNicAllocUserDbFifoIn::LAYOUT,
            Self::USER_DB_FIFO_SET => &HlNicUserDbFifoSetIn::LAYOUT,
            Self::USER_DB_FIFO_UNSET => &HlNicUserDbFifoUnsetIn::LAYOUT,
            Self::EQ_POLL => &HlNicEqPollIn::LAYOUT,
            Self::USER_ENCAP_ALLOC => &HlNicUserEncapAllocIn::LAYOUT,
            Self::USER_ENCAP_SET => &HlNicUserEncapSetIn::LAYOUT,
            Self::USER_ENCAP_UNSET => &HlNicUserEncapUnsetIn::LAYOUT,
            Self::USER_CCQ_SET => &HlNicUserCcqSetIn::LAYOUT,
            Self::USER_CCQ_UNSET => &HlNicUserCcqUnsetIn::LAYOUT,
            Self::USER_CQ_ID_SET => &HlNicUserCqIdSetIn::LAYOUT,
            Self::USER_CQ_ID_UNSET => &HlNicUserCqIdUnsetIn::LAYOUT,
            Self::ALLOC_COLL_CONN => &HlNicAllocCollConnIn::LAYOUT,
            Self::DUMP_QP => &HlNicDumpQpIn::LAYOUT,
            _ => return None,
        })
    }

    /// The struct that `output_ptr` leads to, if the operation fills one.
    pub const fn output(self) -> Option<&'static CStruct> {
        Some(match self {
            Self::ALLOC_CONN => &HlNicAllocConnOut::LAYOUT,
            Self::SET_REQ_CONN_CTX => &HlNicReqConnCtxOut::LAYOUT,
            Self::USER_WQ_SET => &HlNicUserWqArrSetOut::LAYOUT,
            Self::ALLOC_USER_CQ_ID => &HlNicAllocUserCqIdOut::LAYOUT,
            Self::GET_USER_APP_PARAMS => &HlNicGetUserAppParamsOut::LAYOUT,
            Self::ALLOC_USER_DB_FIFO => &HlNicAllocUserDbFifoOut::LAYOUT,
            Self::USER_DB_FIFO_SET => &HlNicUserDbFifoSetOut::LAYOUT,
            Self::EQ_POLL => &HlNicEqPollOut::LAYOUT,
            Self::USER_ENCAP_ALLOC => &HlNicUserEncapAllocOut::LAYOUT,
            Self::USER_CCQ_SET => &HlNicUserCcqSetOut::LAYOUT,
            Self::USER_CQ_ID_SET => &HlNicUserCqIdSetOut::LAYOUT,
            Self::ALLOC_COLL_CONN => &HlNicAllocCollConnOut::LAYOUT,
            _ => return None,
        })
    }
}

c_structs! {
    pub struct HlNicArgs = "struct hl_nic_args", Gaudi3 {
        /// Address of the op's input struct.
        #[print(Hex)] pub input_ptr: u64,
        /// Address of the op's output struct.
        #[print(Hex)] pub output_ptr: u64,
        /// Bytes of the input struct.
        pub input_size: u32,
        /// Bytes of the output struct.
        pub output_size: u32,
        /// Not in use.
        pub ctx_id: u32,
        /// The operation: [`NicOp`].
        pub op: NicOp,
    }
}
