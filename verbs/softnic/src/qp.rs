//! [`Qp`]: a queue pair with its two halves, the requester that sends posted requests and the
//! responder that performs the peer's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_seam::Result;
use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, Qpn, Rkey, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion};

use crate::cq::SoftCq;
use crate::error::{defect, invalid};
use crate::region::Reach;
use crate::wire::{Header, Kind, NakCode};
use crate::{MAX_QP_WR, MAX_READS, MAX_SGE};

/// The states of `enum ibv_qp_state` that a queue pair has here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

/// Elements of a work request, stored inline so that posting allocates nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sges {
    list: [Sge; MAX_SGE as usize],
    count: usize,
    /// Bytes of all elements, which may exceed the longest message.
    pub(crate) total: u64,
}

impl Sges {
    /// Copies at most `limit` elements.
    pub(crate) fn new(operation: &'static str, sges: &[Sge], limit: u32) -> Result<Self> {
        let mut list = [Sge::default(); MAX_SGE as usize];
        let part = list
            .get_mut(..sges.len())
            .filter(|part| part.len() <= limit as usize);
        let part = part.ok_or_else(|| invalid(operation, "too many elements").saw(sges.len(), limit))?;
        part.copy_from_slice(sges);
        Ok(Self {
            list,
            count: sges.len(),
            total: sges.iter().map(|sge| u64::from(sge.length)).sum(),
        })
    }

    /// Returns the total length, or `None` if it exceeds `limit`.
    pub(crate) fn length(&self, limit: u32) -> Option<u32> {
        let total = u32::try_from(self.total).ok();
        total.filter(|total| *total <= limit)
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.list[..self.count]
    }
}

/// Destination of a datagram.
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
    /// Offset of its bytes in the queue's [`InlineStore`].
    pub(crate) inline: Option<usize>,
    /// Set for a datagram.
    pub(crate) to: Option<Destination>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Bytes that a read has received.
    pub(crate) done: u32,
    /// Status of a request that cannot be sent, reported once everything before it is complete.
    pub(crate) failed: Option<WcStatus>,
}

impl SendEntry {
    /// Returns whether it is a read or an atomic, which the peer answers with data.
    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self.op,
            SendOp::Read(_) | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }
        )
    }

    /// Returns whether it involves only this end.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::BindMw(_) | SendOp::LocalInv(_))
    }

    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RDMA_WRITE,
            SendOp::Read(_) => WcOpcode::RDMA_READ,
            SendOp::FetchAdd { .. } => WcOpcode::FETCH_ADD,
            SendOp::CompareSwap { .. } => WcOpcode::COMP_SWAP,
            SendOp::BindMw(_) => WcOpcode::BIND_MW,
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

/// A read or atomic of the peer that is not answered completely.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadJob {
    pub(crate) msn: u64,
    pub(crate) raddr: u64,
    pub(crate) rkey: u32,
    pub(crate) total: u32,
    pub(crate) offset: u32,
    /// The value that an atomic found.
    pub(crate) value: Option<u64>,
    /// Whether the peer repeated the request, which does not count against its limit.
    pub(crate) again: bool,
}

/// Timeouts and retries of the requester.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Retry {
    /// Time without progress after which everything is sent again.
    pub(crate) timeout: Duration,
    /// Times that everything is sent again.
    pub(crate) count: u8,
    /// Times that a message is sent again because the peer has no receive. `None` is unlimited.
    pub(crate) rnr_count: Option<u8>,
}

/// Inline data of a send queue, one slot per entry.
#[derive(Debug, Default)]
pub(crate) struct InlineStore {
    bytes: Box<[u8]>,
    /// Size of a slot in bytes.
    slot: usize,
    next: usize,
}

impl InlineStore {
    fn new(slots: usize, slot: usize) -> Self {
        Self {
            bytes: vec![0; slots * slot].into_boxed_slice(),
            slot,
            next: 0,
        }
    }

    /// Copies data into the next slot. Returns the slot's offset, or `None` if the data is too
    /// long.
    pub(crate) fn put(&mut self, data: &[u8]) -> Option<usize> {
        let at = if self.next < self.bytes.len() {
            self.next
        } else {
            0
        };
        self.bytes.get_mut(at..at + data.len())?.copy_from_slice(data);
        self.next = at + self.slot;
        Some(at)
    }

    /// Returns `len` bytes at `offset` of the slot at `at`.
    pub(crate) fn get(&self, at: usize, offset: u32, len: u32) -> &[u8] {
        let start = at + offset as usize;
        self.bytes.get(start..start + len as usize).unwrap_or_else(|| {
            defect("inline data leaves its slot");
            &[]
        })
    }
}

/// The half that sends.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Requests that are not complete, oldest first.
    pub(crate) queue: VecDeque<SendEntry>,
    /// Message number of the first one.
    pub(crate) base: u64,
    /// Index of the one being sent.
    pub(crate) cursor: usize,
    /// Bytes of it that were sent.
    pub(crate) offset: u32,
    /// Messages before this were sent completely, at least once.
    pub(crate) sent_until: u64,
    /// Retries left until the next progress.
    pub(crate) retries: u8,
    /// The oldest message when a gap was last seen. All answers behind one loss show it, and only
    /// the first one causes a retransmission (rxe_comp.c, started_retry). A second loss of the same
    /// message is found by timeout.
    pub(crate) gap: Option<u64>,
    pub(crate) inline: InlineStore,
    /// Reads and atomics without an answer.
    pub(crate) reads: u8,
    pub(crate) max_reads: u8,
    pub(crate) retry: Retry,
    /// Whether the peer has answered once. Until then one message is sent at a time, so that a "not
    /// connected" refusal is about that message.
    pub(crate) proven: bool,
    /// "Receiver not ready" refusals since the last progress.
    pub(crate) refused: u8,
    /// Time of the first "not connected" refusal since the last progress.
    pub(crate) unconnected_since: Option<Instant>,
    /// Earliest time of the next frame.
    pub(crate) not_before: Option<Instant>,
    /// If something is unanswered: time of the last frame sent, or of the last progress.
    pub(crate) waiting_since: Option<Instant>,
}

/// The half that receives and answers.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    pub(crate) queue: VecDeque<RecvEntry>,
    /// Receive that the arriving message has taken.
    pub(crate) taken: Option<RecvEntry>,
    /// Values that atomics found, by message number, for repeated requests.
    pub(crate) atomics: VecDeque<(u64, u64)>,
    /// Whether a gap was reported to the peer.
    pub(crate) gap_reported: bool,
    /// Reads and atomics that the peer may have outstanding.
    pub(crate) max_reads: u8,
    /// The first message of the connection.
    pub(crate) first: u64,
    /// The message expected next.
    pub(crate) expected: u64,
    /// Its first frame, once received.
    pub(crate) current: Option<Header>,
    /// Bytes of it that were received.
    pub(crate) progress: u32,
    /// Whether a message was refused with a retry: frames that the peer sent after it are skipped.
    pub(crate) resync: bool,
    pub(crate) reads: VecDeque<ReadJob>,
    /// Message to acknowledge, with all before it, after the reads before it.
    pub(crate) ack: Option<u64>,
    pub(crate) nak: Option<(u64, NakCode)>,
    /// The refusal that ended the connection, to repeat it.
    pub(crate) refused: Option<(u64, NakCode)>,
    /// Wait that a "receiver not ready" refusal asks for.
    pub(crate) rnr_timer: Duration,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    /// Shared receive queue, if it has one.
    pub(crate) srq: Option<u32>,
    pub(crate) max_inline: usize,
    /// Key that a received datagram must carry.
    pub(crate) qkey: u32,
    /// Cable to its peer, once connected.
    pub(crate) link: usize,
    /// MTU of the path, in bytes.
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
    /// Whether it is in the `ready` list of a link.
    pub(crate) listed: bool,
    /// Set in the error state while a thread moves its memory: that thread flushes, with this
    /// status for the oldest send.
    pub(crate) flush_later: Option<WcStatus>,
    /// The completion queue that overflowed.
    pub(crate) lost: Option<u32>,
}

impl Requester {
    pub(crate) fn new(room: usize, inline: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(room),
            inline: InlineStore::new(room, inline),
            max_reads: 1,
            ..Self::default()
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
    pub(crate) fn new(room: usize) -> Self {
        let reads = usize::from(MAX_READS);
        Self {
            queue: VecDeque::with_capacity(room),
            atomics: VecDeque::with_capacity(reads),
            max_reads: MAX_READS,
            resync: true,
            reads: VecDeque::with_capacity(reads),
            ..Self::default()
        }
    }

    /// Expects the next message.
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        self.current = None;
    }

    /// Stores the value that an atomic found, for repeated requests.
    pub(crate) fn store_atomic(&mut self, msn: u64, value: u64) {
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

    /// Returns whether the peer has as many reads and atomics outstanding as it may.
    pub(crate) fn is_full(&self) -> bool {
        let outstanding = self.reads.iter().filter(|job| !job.again).count();
        outstanding >= usize::from(self.max_reads)
    }

    pub(crate) fn has_answer(&self) -> bool {
        !self.reads.is_empty() || self.ack.is_some() || self.nak.is_some()
    }
}

impl Qp {
    /// Returns the access to the whole range of a message or job of the peer.
    pub(crate) fn reach(&self, key: u32, addr: u64, len: u32, need: Access) -> Reach {
        Reach {
            key,
            pd: self.pd,
            qpn: self.qpn,
            addr,
            len: len.into(),
            need,
        }
    }

    /// Completes the oldest send.
    pub(crate) fn complete_oldest(&mut self, status: WcStatus) {
        let Some(entry) = self.requester.queue.pop_front() else {
            return defect("a send completed that is not queued");
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
        requester.retries = requester.retry.count;
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
                self.lost = Some(self.send_cq.handle);
            }
        }
    }

    /// Completes a receive.
    pub(crate) fn complete_receive(&mut self, entry: &RecvEntry, status: WcStatus, header: Option<&Header>) {
        let mut completion = WorkCompletion {
            wr_id: entry.wr_id,
            status,
            opcode: WcOpcode::RECV,
            qp_num: Qpn(self.qpn),
            ..WorkCompletion::EMPTY
        };
        if let Some(header) = header {
            completion.byte_len = header.total;
            let with_imm = matches!(header.kind, Kind::SendImm | Kind::WriteImm) || header.with_imm;
            completion.imm_data = with_imm.then_some(header.imm);
            match header.kind {
                Kind::WriteImm => completion.opcode = WcOpcode::RECV_RDMA_WITH_IMM,
                Kind::SendInv => completion.invalidated_rkey = Some(Rkey(header.rkey)),
                Kind::Datagram => {
                    completion.byte_len += gaudi_verbs::GRH_BYTES;
                    completion.src_qp = Some(Qpn(header.src_qpn));
                    completion.grh = true;
                }
                _ => {}
            }
        }
        let solicited = header.is_some_and(|header| header.solicited);
        if !self.recv_cq.push(completion, solicited) {
            self.lost = Some(self.recv_cq.handle);
        }
    }

    /// Completes the receive that the arriving message has taken, if any.
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

    /// Returns to the state after creation. Queued work is dropped without completions.
    pub(crate) fn reset(&mut self) {
        self.requester = Requester::new(self.max_send_wr, self.max_inline);
        self.responder = Responder::new(self.max_recv_wr);
        self.state = State::Reset;
        self.listed = false;
        self.flush_later = None;
        self.lost = None;
    }

    /// Returns the cable of the next frame.
    pub(crate) fn next_link(&self) -> usize {
        // An idle datagram queue pair has no cable: any index does.
        let datagram = self.requester.queue.front().and_then(|entry| entry.to);
        datagram.map_or(self.link, |to| to.link)
    }
}
