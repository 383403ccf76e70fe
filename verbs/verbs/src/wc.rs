//! Completions: `struct ibv_wc`.

use crate::open_enum::open_enum;
use crate::wr::{Qpn, Rkey};

open_enum! {
    named
    /// `enum ibv_wc_status` (infiniband/verbs.h), open.
    WcStatus(u32) {
        0 SUCCESS "Done.",
        1 LOC_LEN_ERR "A message longer than the receive, or than the port allows.",
        2 LOC_QP_OP_ERR "An operation that the queue pair cannot do.",
        3 LOC_EEC_OP_ERR "An end-to-end context error.",
        4 LOC_PROT_ERR "A local key, its domain, its bounds or its rights do not allow the access.",
        5 WR_FLUSH_ERR "Not done: the queue pair was in error before.",
        6 MW_BIND_ERR "A memory window was not bound.",
        7 BAD_RESP_ERR "The peer answered what the protocol does not allow.",
        8 LOC_ACCESS_ERR "Access was refused at the receiver of a write with immediate.",
        9 REM_INV_REQ_ERR "The peer does not accept the request, for example a message longer than its receive.",
        10 REM_ACCESS_ERR "The remote key, its domain, its bounds or its rights do not allow the access.",
        11 REM_OP_ERR "The peer failed to do it.",
        12 RETRY_EXC_ERR "The peer did not answer.",
        13 RNR_RETRY_EXC_ERR "The peer had no receive posted for too long.",
        14 LOC_RDD_VIOL_ERR "The domain of a reliable datagram differs.",
        15 REM_INV_RD_REQ_ERR "An invalid reliable-datagram request.",
        16 REM_ABORT_ERR "The peer aborted.",
        17 INV_EECN_ERR "An unknown end-to-end context number.",
        18 INV_EEC_STATE_ERR "An end-to-end context in the wrong state.",
        19 FATAL_ERR "The device failed.",
        20 RESP_TIMEOUT_ERR "No response in time.",
        21 GENERAL_ERR "Something else.",
        22 TM_ERR "Tag matching failed.",
        23 TM_RNDV_INCOMPLETE "A tag-matching rendezvous was not finished.",
    }
}

open_enum! {
    named
    /// `enum ibv_wc_opcode` (infiniband/verbs.h), open. Only valid in a completion that succeeded.
    WcOpcode(u32) {
        0 SEND "A send is done.",
        1 RDMA_WRITE "A write is done.",
        2 RDMA_READ "A read is done.",
        3 COMP_SWAP "A compare-and-swap is done.",
        4 FETCH_ADD "A fetch-and-add is done.",
        5 BIND_MW "A memory window is bound.",
        6 LOCAL_INV "A key is invalid now.",
        7 TSO "A segmented send is done.",
        128 RECV "A message arrived.",
        129 RECV_RDMA_WITH_IMM "A write with immediate arrived.",
    }
}

/// A completion. Only `wr_id`, `status` and `qp_num` are valid unless `status` is `SUCCESS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Result.
    pub status: WcStatus,
    /// Operation.
    pub opcode: WcOpcode,
    /// Received bytes (receives and reads).
    pub byte_len: u32,
    /// Immediate data.
    pub imm_data: Option<u32>,
    /// Queue pair of this end.
    pub qp_num: Qpn,
    /// The sender's queue pair, of a datagram.
    pub src_qp: Option<Qpn>,
    /// Whether the first 40 bytes of a datagram's receive are a global route header (`IBV_WC_GRH`).
    pub grh: bool,
    /// Key that a message invalidated (`IBV_WC_WITH_INV`).
    pub invalidated_rkey: Option<Rkey>,
    /// Error code of the provider.
    pub vendor_err: u32,
}

impl WorkCompletion {
    /// Initial value of a polling array.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::GENERAL_ERR,
        opcode: WcOpcode::SEND,
        byte_len: 0,
        imm_data: None,
        qp_num: Qpn(0),
        src_qp: None,
        grh: false,
        invalidated_rkey: None,
        vendor_err: 0,
    };

    /// Returns whether the work succeeded.
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::SUCCESS
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_print_rdma_core_names() {
        assert_eq!(WcStatus::REM_ACCESS_ERR.to_string(), "REM_ACCESS_ERR");
        assert_eq!(WcStatus(99).to_string(), "Unknown(0x63)");
        assert_eq!(WcOpcode(129), WcOpcode::RECV_RDMA_WITH_IMM);
    }
}
