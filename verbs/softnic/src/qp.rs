//! A queue pair's two halves: the requester that sends what was posted, the responder that does what the peer asks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, Qpn, Rkey, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion};

use crate::cq::SoftCq;
use crate::wire::{Header, Kind, NakCode};
use crate::{MAX_QP_WR, MAX_READS, MAX_SGE};

/// `enum ibv_qp_state`, as far as a queue pair here has them.
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

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) link: usize,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// One posted send.
#[derive(Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) sges: Sges,
    /// Its bytes lie in the queue's store of inline data, in this place.
    pub(crate) inline: Option<usize>,
    /// Of a datagram.
    pub(crate) to: Option<Destination>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Bytes that a read has delivered.
    pub(crate) done: u32,
    /// Found wrong before it was sent; told once everything before it is complete.
    pub(crate) failed: Option<WcStatus>,
}

impl SendEntry {
    /// Whether it brings bytes back: reads and atomics.
    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self.op,
            SendOp::Read(_) | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }
        )
    }

    /// Whether it concerns this end only.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::BindMw { .. } | SendOp::LocalInv(_))
    }

    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RDMA_WRITE,
            SendOp::Read(_) => WcOpcode::RDMA_READ,
            SendOp::FetchAdd { .. } => WcOpcode::FETCH_ADD,
            SendOp::CompareSwap { .. } => WcOpcode::COMP_SWAP,
            SendOp::BindMw { .. } => WcOpcode::BIND_MW,
            SendOp::LocalInv(_) => WcOpcode::LOCAL_INV,
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
    /// The answer itself, of an atomic that was done.
    pub(crate) value: Option<u64>,
    /// The peer asked for it again: it is not one more read that the peer has outstanding.
    pub(crate) again: bool,
}

/// How patient the requester is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Without progress by an answer of the peer's queue pair, before everything is sent again.
    pub(crate) answer: Duration,
    /// How often that.
    pub(crate) retry_cnt: u8,
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
    /// Messages before this have been on the cable.
    pub(crate) sent_until: u64,
    /// Times that everything may still be sent again without progress.
    pub(crate) retries: u8,
    /// The oldest message when a gap was last seen. The answers behind one loss all show it, and one of them is enough to send again
    /// (rxe_comp.c, started_retry); what is lost once more shows by time.
    pub(crate) gap: Option<u64>,
    /// Inline data, a place for each entry of the queue.
    pub(crate) store: Box<[u8]>,
    pub(crate) next_place: usize,
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
    /// Where something is unanswered: when a frame was last sent, or an answer of the peer's queue pair was progress.
    pub(crate) waiting_since: Option<Instant>,
}

/// The half that answers.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) queue: VecDeque<RecvEntry>,
    /// What the message that is coming takes.
    pub(crate) taken: Option<RecvEntry>,
    /// What atomics have found, for a peer that asks again.
    pub(crate) atomics: VecDeque<(u64, u64)>,
    /// The peer was told that something is missing.
    pub(crate) told_gap: bool,
    /// Reads that it answers at a time.
    pub(crate) max_reads: u8,
    /// The first message of the connection.
    pub(crate) first: u64,
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
    /// What ended the connection, for a peer that has not heard it.
    pub(crate) refused: Option<(u64, NakCode)>,
    /// How long the peer shall wait before it comes again.
    pub(crate) rnr_timer: Duration,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    /// Where its receives come from, if not from itself.
    pub(crate) srq: Option<u32>,
    pub(crate) max_inline: usize,
    /// What a datagram must carry.
    pub(crate) qkey: u32,
    /// The way to its peer, once it has one.
    pub(crate) link: usize,
    /// Bytes of the path's packets.
    pub(crate) mtu: u32,
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
    /// A completion queue overflowed, and the one that did.
    pub(crate) lost: Option<u32>,
}

impl Requester {
    pub(crate) fn new(room: usize, inline: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(room),
            base: 0,
            cursor: 0,
            offset: 0,
            sent_until: 0,
            retries: 0,
            gap: None,
            store: vec![0; room * inline].into_boxed_slice(),
            next_place: 0,
            reads: 0,
            max_reads: 1,
            patience: Patience {
                answer: Duration::from_secs(1),
                retry_cnt: 0,
                rnr_retry: None,
            },
            proven: false,
            refused: 0,
            unconnected_since: None,
            not_before: None,
            waiting_since: None,
        }
    }

    /// Restarts at the oldest message: all incomplete messages are sent again.
    pub(crate) fn rewind(&mut self) {
        self.cursor = 0;
        self.offset = 0;
        self.reads = 0;
    }

    /// Whether message `msn` has been sent, wholly or in part, and is not complete yet. Answers to
    /// others are late, or of an earlier connection of the queue pair.
    pub(crate) fn is_in_window(&self, msn: u64) -> bool {
        let begun = self.base.saturating_add(self.cursor as u64);
        let begun = begun.saturating_add(u64::from(self.offset > 0));
        (self.base..self.sent_until.max(begun)).contains(&msn)
    }

    /// Whether message `msn` has been sent as a whole, once at least, and is not complete yet.
    pub(crate) fn has_sent(&self, msn: u64) -> bool {
        (self.base..self.sent_until).contains(&msn)
    }
}

impl Responder {
    pub(crate) fn new(room: usize, reads: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(room),
            taken: None,
            atomics: VecDeque::with_capacity(usize::from(MAX_READS)),
            told_gap: false,
            max_reads: MAX_READS,
            first: 0,
            expected: 0,
            current: None,
            progress: 0,
            resync: true,
            reads: VecDeque::with_capacity(reads),
            ack: None,
            nak: None,
            refused: None,
            rnr_timer: Duration::from_millis(1),
        }
    }

    /// Stores the result of an atomic, for repeated requests.
    pub(crate) fn remember(&mut self, msn: u64, value: u64) {
        if self.atomics.len() >= usize::from(MAX_READS) {
            self.atomics.pop_front();
        }
        self.atomics.push_back((msn, value));
    }

    /// Whether message `msn` is acceptable: a repeated one, the expected one, or one after a gap. A
    /// requester has at most [`MAX_QP_WR`] messages in flight, so others are of an earlier
    /// connection of the queue pair, or forged. This is the window of packet sequence
    /// numbers (IBA 9.7.5.1).
    pub(crate) fn is_in_window(&self, msn: u64) -> bool {
        let span = u64::from(MAX_QP_WR);
        let oldest = self.first.max(self.expected.saturating_sub(span));
        (oldest..=self.expected.saturating_add(span)).contains(&msn)
    }

    /// Drops unanswered reads and atomics. The peer is notified that this end is in error, with the
    /// number of the newest of them: it may already have the answers to older ones.
    /// Returns whether there were any.
    pub(crate) fn refuse_reads(&mut self) -> bool {
        let numbers = || self.reads.iter().map(|job| job.msn);
        let (Some(oldest), Some(newest)) = (numbers().min(), numbers().max()) else {
            return false;
        };
        self.reads.clear();
        self.ack = self.ack.filter(|ack| *ack < oldest);
        self.nak = Some((newest, NakCode::NoPeer));
        self.refused = None;
        true
    }

    /// Whether the peer has as many reads and atomics outstanding as it may have.
    pub(crate) fn is_full(&self) -> bool {
        let outstanding = self.reads.iter().filter(|job| !job.again).count();
        outstanding >= usize::from(self.max_reads)
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
        requester.sent_until = requester.sent_until.max(requester.base);
        if requester.cursor > 0 {
            requester.cursor -= 1;
            requester.reads = requester.reads.saturating_sub(u8::from(entry.is_read()));
        } else {
            requester.offset = 0;
        }
        requester.refused = 0;
        requester.retries = requester.patience.retry_cnt;
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
            if !self.send_cq.push(completion, false) {
                self.lost = Some(self.send_cq.handle());
            }
        }
    }

    /// Completes a receive.
    pub(crate) fn complete_receive(&mut self, entry: &RecvEntry, status: WcStatus, header: Option<&Header>) {
        let kind = header.map(|header| header.kind);
        let with_imm =
            header.filter(|header| matches!(header.kind, Kind::SendImm | Kind::WriteImm) || header.with_imm);
        let is_datagram = kind == Some(Kind::Datagram);
        let grh = if is_datagram { gaudi_verbs::GRH_BYTES } else { 0 };
        let completion = WorkCompletion {
            wr_id: entry.wr_id,
            status,
            opcode: if kind == Some(Kind::WriteImm) {
                WcOpcode::RECV_RDMA_WITH_IMM
            } else {
                WcOpcode::RECV
            },
            byte_len: header.map_or(0, |header| header.total + grh),
            imm_data: with_imm.map(|header| header.imm),
            qp_num: Qpn(self.qpn),
            src_qp: header.filter(|_| is_datagram).map(|header| Qpn(header.src_qpn)),
            grh: is_datagram,
            invalidated_rkey: header
                .filter(|header| header.kind == Kind::SendInv)
                .map(|header| Rkey(header.rkey)),
            ..WorkCompletion::EMPTY
        };
        let solicited = header.is_some_and(|header| header.solicited);
        if !self.recv_cq.push(completion, solicited) {
            self.lost = Some(self.recv_cq.handle());
        }
    }

    /// Completes what the message that is coming has taken, or would have.
    pub(crate) fn complete_taken(&mut self, status: WcStatus, header: Option<&Header>) {
        if let Some(entry) = self.responder.taken.take() {
            self.complete_receive(&entry, status, header);
        }
    }

    /// Completes everything that is queued: the oldest send with `oldest`, the rest as flushed.
    pub(crate) fn flush(&mut self, oldest: WcStatus) {
        let mut status = oldest;
        while !self.requester.queue.is_empty() {
            self.complete_oldest(status);
            status = WcStatus::WR_FLUSH_ERR;
        }
        self.complete_taken(WcStatus::WR_FLUSH_ERR, None);
        while let Some(entry) = self.responder.queue.pop_front() {
            self.complete_receive(&entry, WcStatus::WR_FLUSH_ERR, None);
        }
        self.requester.waiting_since = None;
        self.requester.not_before = None;
    }

    /// As it was made: what was queued is gone without completions.
    pub(crate) fn reset(&mut self) {
        let inline = self.requester.store.len() / self.max_send_wr.max(1);
        self.requester = Requester::new(self.max_send_wr, inline);
        self.responder = Responder::new(self.max_recv_wr, usize::from(MAX_READS));
        self.state = State::Reset;
        self.listed = false;
        self.flush_later = None;
        self.lost = None;
    }

    /// The cable that what it sends next goes over.
    pub(crate) fn next_link(&self) -> usize {
        match self.qp_type {
            QpType::Ud => self
                .requester
                .queue
                .front()
                .and_then(|entry| entry.to)
                .map_or(0, |to| to.link),
            _ => self.link,
        }
    }
}
