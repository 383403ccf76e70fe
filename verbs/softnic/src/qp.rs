//! A queue pair's two halves: the requester that sends what was posted, the responder that does what the peer asks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_verbs::{Access, Qpn, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion};

use crate::MAX_SGE;
use crate::cq::SoftCq;
use crate::wire::{Header, NakCode};

/// `enum ibv_qp_state`, as far as an RC queue pair here has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

/// Elements of a work request, kept in place so that posting allocates nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sges {
    list: [Sge; MAX_SGE as usize],
    count: usize,
    /// Bytes of all; may be more than a message can have.
    pub(crate) total: u64,
}

impl Sges {
    /// `None` where there are more than `limit`.
    pub(crate) fn new(sges: &[Sge], limit: u32) -> Option<Self> {
        if sges.len() > limit as usize {
            return None;
        }
        let mut list = [Sge::default(); MAX_SGE as usize];
        for (place, sge) in list.iter_mut().zip(sges) {
            *place = *sge;
        }
        Some(Self {
            list,
            count: sges.len(),
            total: sges.iter().map(|sge| u64::from(sge.length)).sum(),
        })
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        self.list.get(..self.count).unwrap_or(&self.list)
    }
}

/// One posted send.
#[derive(Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) sges: Sges,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Bytes that a read has delivered.
    pub(crate) done: u32,
    /// Found wrong before it was sent; told once everything before it is complete.
    pub(crate) failed: Option<WcStatus>,
}

impl SendEntry {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read(_))
    }

    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RDMA_WRITE,
            SendOp::Read(_) => WcOpcode::RDMA_READ,
            _ => WcOpcode::SEND,
        }
    }
}

/// One posted receive.
#[derive(Debug)]
pub(crate) struct RecvEntry {
    pub(crate) wr_id: u64,
    pub(crate) sges: Sges,
}

/// A read that the peer asked for, as far as it is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadJob {
    pub(crate) msn: u64,
    pub(crate) raddr: u64,
    pub(crate) rkey: u32,
    pub(crate) total: u32,
    pub(crate) offset: u32,
}

/// How patient the requester is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Without any frame from the peer's queue pair: `timeout × (retry_cnt + 1)`.
    pub(crate) answer: Duration,
    /// Times to ask again for a receive; `None` is for ever.
    pub(crate) rnr_retry: Option<u8>,
}

/// The half that sends.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Posted and not yet completed, oldest first.
    pub(crate) queue: VecDeque<SendEntry>,
    /// Message number of the first of them.
    pub(crate) base: u64,
    /// Index of the one that is being sent.
    pub(crate) cursor: usize,
    /// Bytes of it that are on the cable.
    pub(crate) offset: u32,
    /// Reads asked and not yet answered.
    pub(crate) reads: u8,
    pub(crate) max_reads: u8,
    pub(crate) patience: Patience,
    /// The peer has answered once. Until then one message is sent at a time, so that "not connected yet" speaks of exactly that one.
    pub(crate) proven: bool,
    /// Refused with "come again" so often since the last progress.
    pub(crate) refused: u8,
    /// Since when the peer says that it is not connected.
    pub(crate) unconnected_since: Option<Instant>,
    /// Not before this.
    pub(crate) not_before: Option<Instant>,
    /// Where something is unanswered: when a frame was last sent, or heard from the peer's queue pair.
    pub(crate) waiting_since: Option<Instant>,
}

/// The half that answers.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) queue: VecDeque<RecvEntry>,
    /// The message that must come next.
    pub(crate) expected: u64,
    /// Its first frame, once that has come.
    pub(crate) current: Option<Header>,
    /// Bytes of it that have come.
    pub(crate) progress: u32,
    /// A message was refused with "come again": what the peer had already sent after it is skipped.
    pub(crate) resync: bool,
    pub(crate) reads: VecDeque<ReadJob>,
    /// Everything up to this message is done; answered after the reads before it.
    pub(crate) ack: Option<u64>,
    pub(crate) nak: Option<(u64, NakCode)>,
    /// How long the peer shall wait before it comes again.
    pub(crate) rnr_timer: Duration,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    pub(crate) send_cq: Arc<SoftCq>,
    pub(crate) recv_cq: Arc<SoftCq>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) sig_all: bool,
    pub(crate) state: State,
    pub(crate) access: Access,
    pub(crate) remote: u32,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Already in the list of those that have something to send.
    pub(crate) listed: bool,
    /// In error while the receiving thread writes to its memory: that thread flushes, with this for the oldest send.
    pub(crate) flush_later: Option<WcStatus>,
    /// A completion queue overflowed.
    pub(crate) lost: bool,
}

impl Requester {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(room),
            base: 0,
            cursor: 0,
            offset: 0,
            reads: 0,
            max_reads: 1,
            patience: Patience {
                answer: Duration::from_secs(1),
                rnr_retry: None,
            },
            proven: false,
            refused: 0,
            unconnected_since: None,
            not_before: None,
            waiting_since: None,
        }
    }

    /// Back to the oldest message: all that is left is sent again.
    pub(crate) fn rewind(&mut self) {
        self.cursor = 0;
        self.offset = 0;
        self.reads = 0;
    }

    /// Whether messages up to `msn` have been sent as a whole and none of them is complete yet.
    pub(crate) fn has_sent(&self, msn: u64) -> bool {
        msn.checked_sub(self.base)
            .is_some_and(|index| index < self.cursor as u64)
    }
}

impl Responder {
    pub(crate) fn new(room: usize, reads: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(room),
            expected: 0,
            current: None,
            progress: 0,
            resync: true,
            reads: VecDeque::with_capacity(reads),
            ack: None,
            nak: None,
            rnr_timer: Duration::from_millis(1),
        }
    }

    pub(crate) fn has_answer(&self) -> bool {
        !self.reads.is_empty() || self.ack.is_some() || self.nak.is_some()
    }
}

impl Qp {
    /// Completes the oldest send.
    pub(crate) fn complete_oldest(&mut self, status: WcStatus) {
        let Some(entry) = self.requester.queue.pop_front() else {
            return;
        };
        let requester = &mut self.requester;
        requester.base = requester.base.wrapping_add(1);
        if requester.cursor > 0 {
            requester.cursor -= 1;
            requester.reads = requester.reads.saturating_sub(u8::from(entry.is_read()));
        } else {
            requester.offset = 0;
        }
        requester.refused = 0;
        requester.unconnected_since = None;
        if requester.cursor == 0 {
            requester.waiting_since = None;
        }
        if entry.signaled || self.sig_all || status != WcStatus::SUCCESS {
            let completion = WorkCompletion {
                wr_id: entry.wr_id,
                status,
                opcode: entry.opcode(),
                byte_len: entry.done,
                qp_num: Qpn(self.qpn),
                ..WorkCompletion::EMPTY
            };
            self.lost |= !self.send_cq.push(completion, false);
        }
    }

    /// Completes the oldest receive.
    pub(crate) fn complete_receive(&mut self, status: WcStatus, header: Option<&Header>, imm: Option<u32>) {
        let Some(entry) = self.responder.queue.pop_front() else {
            return;
        };
        let is_write = header.is_some_and(|header| header.kind == crate::wire::Kind::WriteImm);
        let completion = WorkCompletion {
            wr_id: entry.wr_id,
            status,
            opcode: if is_write {
                WcOpcode::RECV_RDMA_WITH_IMM
            } else {
                WcOpcode::RECV
            },
            byte_len: header.map_or(0, |header| header.total),
            imm_data: imm,
            qp_num: Qpn(self.qpn),
            ..WorkCompletion::EMPTY
        };
        let solicited = header.is_some_and(|header| header.solicited);
        self.lost |= !self.recv_cq.push(completion, solicited);
    }

    /// Completes everything that is queued: the oldest send with `oldest`, the rest as flushed.
    pub(crate) fn flush(&mut self, oldest: WcStatus) {
        let mut status = oldest;
        while !self.requester.queue.is_empty() {
            self.complete_oldest(status);
            status = WcStatus::WR_FLUSH_ERR;
        }
        while !self.responder.queue.is_empty() {
            self.complete_receive(WcStatus::WR_FLUSH_ERR, None, None);
        }
        self.requester.waiting_since = None;
        self.requester.not_before = None;
    }
}
