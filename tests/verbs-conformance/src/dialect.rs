//! Where NICs may answer differently, and which answer is whose.

use gaudi_verbs::WcStatus;

/// Whose answers are expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The architecture's (IBA 1.7), which hardware and the software NIC follow.
    Iba,
    /// Linux's rdma_rxe.
    Rxe,
}

/// A question to which the answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// A send, write or read whose own key, bounds or rights are wrong, at the end that posted it.
    LocalProtection,
    /// A bind that the window or the region does not allow.
    Bind,
    /// An invalidation of a key that names nothing.
    LocalInvalidate,
    /// A receive whose key, bounds or rights are wrong, at the end that posted it.
    ReceiveProtection,
    /// A receive that is shorter than its message, at the end that posted it.
    ReceiveLength,
    /// The same, at the end that sent it.
    SendLength,
    /// A write through a window, outside it and inside its region.
    WindowBounds,
}

/// One row of [`DIFFERENCES`].
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The question.
    pub answer: Answer,
    /// The architecture's answer.
    pub iba: WcStatus,
    /// rdma_rxe's.
    pub rxe: WcStatus,
    /// Why rdma_rxe's is another, and where.
    pub reason: &'static str,
}

const FLUSHED: &str = "the requester notes the status and puts the queue pair into error; its completer then flushes the whole queue \
                       without looking at it (rxe_req.c, label err; rxe_comp.c, flush_send_queue)";

/// Every answer in which rdma_rxe of Linux 7.3 differs from the architecture. The software NIC
/// gives the architecture's, because hardware does: a program that was only ever run against it
/// must not be surprised there.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        answer: Answer::LocalProtection,
        iba: WcStatus::LOC_PROT_ERR,
        rxe: WcStatus::WR_FLUSH_ERR,
        reason: FLUSHED,
    },
    Difference {
        answer: Answer::Bind,
        iba: WcStatus::MW_BIND_ERR,
        rxe: WcStatus::WR_FLUSH_ERR,
        reason: FLUSHED,
    },
    Difference {
        answer: Answer::LocalInvalidate,
        iba: WcStatus::LOC_QP_OP_ERR,
        rxe: WcStatus::WR_FLUSH_ERR,
        reason: FLUSHED,
    },
    Difference {
        answer: Answer::ReceiveProtection,
        iba: WcStatus::LOC_PROT_ERR,
        rxe: WcStatus::LOC_QP_OP_ERR,
        reason: "a failed copy into a receive counts as a malformed work request (rxe_resp.c, send_data_in)",
    },
    Difference {
        answer: Answer::ReceiveLength,
        iba: WcStatus::LOC_LEN_ERR,
        rxe: WcStatus::LOC_QP_OP_ERR,
        reason: "more bytes than the receive has are EINVAL and not ENOSPC to the copy (rxe_mr.c, copy_data), which counts as a malformed \
                 work request",
    },
    Difference {
        answer: Answer::SendLength,
        iba: WcStatus::REM_INV_REQ_ERR,
        rxe: WcStatus::REM_OP_ERR,
        reason: "a malformed receive is reported as its failure (rxe_resp.c, RESPST_ERR_MALFORMED_WQE)",
    },
    Difference {
        answer: Answer::WindowBounds,
        iba: WcStatus::REM_ACCESS_ERR,
        rxe: WcStatus::SUCCESS,
        reason: "the range is checked against the region below the window and not against the window (rxe_resp.c, check_rkey)",
    },
];

impl Dialect {
    /// The status that answers a question.
    pub fn status(self, answer: Answer) -> WcStatus {
        let row = DIFFERENCES.iter().find(|row| row.answer == answer);
        match (row, self) {
            (Some(row), Self::Iba) => row.iba,
            (Some(row), Self::Rxe) => row.rxe,
            (None, _) => WcStatus::GENERAL_ERR,
        }
    }
}
