//! [`Sender`]: the sending end of a cable, the only one that writes to it. A thread of its own
//! steps it, or a [`Fabric`](crate::Fabric).
//!
//! It takes queue pairs in turn, one frame each. Answers to the peer go before own requests.

#![expect(unsafe_code, reason = "claimed memory is handed to the cable")]

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use gaudi_dmabuf::Directions;
use gaudi_seam::fault::{Met, Verdict};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, SendOp, WcStatus};

use crate::cable::Cable;
use crate::core::{Core, Shared};
use crate::fault::{Faults, flip};
use crate::qp::{Qp, State};
use crate::region::{Claim, Reach};
use crate::window::View;
use crate::wire::{Header, Kind, MAX_CHUNK, MAX_MESSAGE, NakCode, OPERANDS};

const OPERATION: &str = "softnic send";
/// Sleep time when nothing has a deadline.
const NAP: Duration = Duration::from_secs(3600);

/// Runs until the cable is down, or until the NIC closes and all answers are sent.
pub(crate) fn run(shared: &Shared, link: usize, cable: &Cable) {
    let mut sender = Sender::new(link);
    loop {
        match sender.step(shared, cable) {
            Step::Frame => {}
            Step::Idle(core, until) => {
                let now = shared.clock.now();
                let sleep = until.map_or(NAP, |until| until.saturating_duration_since(now));
                drop(shared.wait_work(core, sleep));
            }
            Step::Ended => break,
        }
    }
    let mut core = shared.lock();
    core.links[link].tx_ended = true;
    drop(core);
    shared.idle.notify_all();
}

/// What a step of a sending end did.
pub(crate) enum Step<'a> {
    /// It processed a frame: the frame was sent, or a fault rule changed its fate.
    Frame,
    /// Nothing can be sent before this time, or before other work comes. The lock is still held, so
    /// that no work comes unseen.
    Idle(MutexGuard<'a, Core>, Option<Instant>),
    /// The cable is down, or the NIC closes and all answers are sent.
    Ended,
}

/// A frame that leaves late: it has a copy of its payload, so that no memory stays claimed.
struct Copied {
    header: Header,
    payload: Vec<u8>,
    times: usize,
}

/// What became of a frame.
enum Fate {
    /// It was sent, or a fault rule lost or reordered it.
    Sent,
    /// To be sent after a delay.
    Delayed(Copied),
    /// Not sent: CPU access to its memory failed.
    Unreachable,
    /// Not sent: a fault rule fails its queue pair.
    QpFails,
    /// Not sent: a fault rule takes the port down.
    PortDown,
}

/// The sending end of a cable.
pub(crate) struct Sender {
    link: usize,
    claim: Claim,
    /// A frame that a fault rule delays, and when it leaves. Nothing overtakes it.
    late: Option<(Instant, Copied)>,
    /// A frame that a fault rule reorders: it follows the next one.
    reordered: Option<Copied>,
    /// The flipped byte, while it is being sent.
    flipped: [u8; 1],
}

impl Sender {
    pub(crate) fn new(link: usize) -> Self {
        Self {
            link,
            claim: Claim::new(),
            late: None,
            reordered: None,
            flipped: [0],
        }
    }

    /// When a frame that a fault rule delays leaves.
    pub(crate) fn late(&self) -> Option<Instant> {
        self.late.as_ref().map(|(due, _)| *due)
    }

    /// Sends one frame, if one can be sent now.
    pub(crate) fn step<'a>(&mut self, shared: &'a Shared, cable: &Cable) -> Step<'a> {
        let mut core = shared.lock();
        if core.links[self.link].down.is_some() {
            return Step::Ended;
        }
        if let Some((due, _)) = self.late {
            if !core.closing && shared.clock.now() < due {
                return Step::Idle(core, Some(due));
            }
        }
        if let Some((_, frame)) = self.late.take() {
            drop(core);
            if let Err(error) = self.send_copy(cable, &frame) {
                shared.cable_down(&mut shared.lock(), self.link, error);
            }
            return Step::Frame;
        }
        let header = loop {
            let now = shared.clock.now();
            if let Some(header) = core.next_frame(shared, self.link, &mut self.claim, now) {
                break header;
            }
            if core.closing {
                return Step::Ended;
            }
            let next = core.tick(shared, self.link, now);
            if core.links[self.link].ready.is_empty() {
                return Step::Idle(core, next);
            }
        };
        // Counted before it leaves, so that a peer that has the frame finds it counted.
        core.counters.tx.add(&header);
        drop(core);
        self.send_frame(shared, cable, &header);
        Step::Frame
    }

    /// Sends a claimed frame with its faults, and handles what became of it.
    fn send_frame(&mut self, shared: &Shared, cable: &Cable, header: &Header) {
        let link = self.link;
        let met = shared.faults.meet_packet(header);
        let happens = self.prepare(&shared.faults, &met);
        if happens || !met.delay.is_zero() {
            shared.lock().counters.faults += 1;
        }
        let fate = self.send(cable, header, &met, happens);
        let mut core = shared.lock();
        core.links[link].tx_qpn = None;
        shared.release(&mut core, &mut self.claim);
        core.flush_if_due(header.src_qpn);
        match fate {
            Ok(Fate::Sent | Fate::Delayed(_)) if header.kind == Kind::Datagram => {
                core.complete_datagram(shared, header);
            }
            Ok(Fate::Sent | Fate::Delayed(_)) => {}
            Ok(Fate::Unreachable) => {
                core.counters.tx.remove(header);
                core.fail_unreachable(shared, header);
            }
            Ok(Fate::QpFails) => {
                core.counters.tx.remove(header);
                if let Some(hit) = met.decided.filter(|_| core.can_fail(header.src_qpn)) {
                    shared.faults.happened(hit);
                    core.counters.faults += 1;
                }
                core.fail_qp(shared, header.src_qpn);
            }
            Ok(Fate::PortDown) => {
                let error = Error::new(ErrorKind::Disconnected, OPERATION);
                let error = error.because("a fault rule took the port down");
                shared.port_down(&mut core, link, &error);
            }
            Err(ref error) => shared.cable_down(&mut core, link, error.clone()),
        }
        if let Ok(Fate::Delayed(frame)) = fate {
            let now = shared.clock.now();
            // If the clock cannot represent the time, the frame leaves at once.
            self.late = Some((now.checked_add(met.delay).unwrap_or(now), frame));
        }
    }

    /// Decides whether the fault of a frame can happen, counts it, and flips a bit of its payload.
    /// Counted before the frame leaves, so that a peer that has the frame finds it counted.
    fn prepare(&mut self, faults: &Faults, met: &Met) -> bool {
        let Some(hit) = met.decided else { return false };
        let happens = match hit.rule.verdict {
            // Known only under the lock of the queue pair.
            Verdict::QpError => return false,
            Verdict::Flip(bit) => flip(&mut self.claim.pieces, bit, &mut self.flipped),
            // Only one frame waits at a time.
            Verdict::Reorder => self.reordered.is_none(),
            _ => true,
        };
        if happens {
            faults.happened(hit);
        }
        happens
    }

    /// Sends a frame, with its faults.
    fn send(&mut self, cable: &Cable, header: &Header, met: &Met, happens: bool) -> Result<Fate> {
        let mut header = *header;
        let mut times = 1;
        let mut reorders = false;
        match met.verdict() {
            Some(Verdict::Lose) => return Ok(Fate::Sent),
            Some(Verdict::QpError) => return Ok(Fate::QpFails),
            Some(Verdict::Down) => return Ok(Fate::PortDown),
            Some(Verdict::Damage) => header.damaged = true,
            Some(Verdict::Duplicate) => times = 2,
            Some(Verdict::Reorder) => reorders = happens,
            _ => {}
        }
        let guards = match self.claim.begin(Directions::Read) {
            Ok(guards) => guards,
            Err(error) => {
                tracing::error!(%error, "softnic (software): CPU access to a registered dma-buf failed");
                return Ok(Fate::Unreachable);
            }
        };
        if reorders || !met.delay.is_zero() {
            let mut payload = Vec::with_capacity(header.payload as usize);
            for piece in &self.claim.pieces {
                // SAFETY: the claim keeps every region registered, hence mapped, until it is
                // released after this call. Bytes outside of regions live in the claim and in
                // `flipped`.
                unsafe { piece.append_to(&mut payload) };
            }
            let copied = Copied {
                header,
                payload,
                times,
            };
            if reorders {
                self.reordered = Some(copied);
                return Ok(Fate::Sent);
            }
            return Ok(Fate::Delayed(copied));
        }
        for _ in 0..times {
            // SAFETY: as above.
            unsafe { cable.send(&header.encode(), &self.claim.pieces) }?;
        }
        drop(guards);
        self.send_reordered(cable)?;
        Ok(Fate::Sent)
    }

    /// Sends a frame that is late, and the one that follows it.
    fn send_copy(&mut self, cable: &Cable, frame: &Copied) -> Result<()> {
        for _ in 0..frame.times {
            cable.send_own(&frame.header.encode(), &frame.payload)?;
        }
        self.send_reordered(cable)
    }

    fn send_reordered(&mut self, cable: &Cable) -> Result<()> {
        match self.reordered.take() {
            Some(frame) => cable.send_own(&frame.header.encode(), &frame.payload),
            None => Ok(()),
        }
    }
}

impl Core {
    /// Returns the next frame, with the memory of its payload claimed.
    fn next_frame(
        &mut self,
        shared: &Shared,
        link: usize,
        claim: &mut Claim,
        now: Instant,
    ) -> Option<Header> {
        if let Some(header) = self.links[link].next_stray() {
            return Some(header);
        }
        for _ in 0..self.links[link].ready.len() {
            let qpn = self.links[link].ready.pop_front()?;
            let mut is_datagram = false;
            if let Some(qp) = self.qps.known(qpn) {
                qp.listed = false;
                is_datagram = qp.qp_type == QpType::Ud;
            }
            let frame = if is_datagram {
                self.next_datagram(shared, link, qpn, claim)
            } else {
                self.next_answer(shared, qpn, claim)
                    .or_else(|| self.next_request(shared, qpn, claim, now))
            };
            if let Some(header) = frame {
                self.links[link].tx_qpn = Some(qpn);
                if !is_datagram {
                    // It may have more. If not, the next turn removes it.
                    self.list(qpn);
                }
                return Some(header);
            }
        }
        None
    }

    /// Returns the responder's next answer, in the order that the requester needs: reads, then
    /// refusals and acknowledgements, which cover everything before them.
    fn next_answer(&mut self, shared: &Shared, qpn: u32, claim: &mut Claim) -> Option<Header> {
        let qp = self.qps.known(qpn)?;
        let responder = &mut qp.responder;
        if let Some(job) = responder.reads.front_mut() {
            let payload = (job.total - job.offset).min(MAX_CHUNK);
            let allowed = match job.value {
                Some(value) => {
                    claim.push_own(&value.to_ne_bytes());
                    true
                }
                // The range was in bounds when the request arrived. The region may be deregistered
                // since.
                None => self.regions.claim_peer(
                    claim,
                    Reach {
                        key: job.rkey,
                        pd: qp.pd,
                        qpn,
                        addr: job.raddr.wrapping_add(job.offset.into()),
                        len: payload.into(),
                        need: Access::REMOTE_READ,
                    },
                ),
            };
            if allowed {
                let header = Header {
                    total: job.total,
                    offset: job.offset,
                    payload,
                    ..Header::new(Kind::ReadResponse, qpn, qp.remote, job.msn)
                };
                job.offset += payload;
                if responder.ack.is_some_and(|ack| ack < job.msn) {
                    responder.ack = None;
                }
                if job.offset == job.total {
                    responder.reads.pop_front();
                }
                return Some(header);
            }
            let msn = job.msn;
            responder.reads.clear();
            let refused = Header::new(Kind::ReadRequest, 0, 0, msn);
            self.refuse_access(shared, qpn, &refused);
        }
        let qp = self.qps.known(qpn)?;
        let responder = &mut qp.responder;
        let acked = responder.ack.filter(|_| {
            // Other refusals acknowledge all messages before theirs.
            matches!(responder.nak, Some((_, NakCode::NoPeer)))
        });
        if let Some(msn) = acked {
            responder.ack = None;
            return Some(Header::new(Kind::Ack, qpn, qp.remote, msn));
        }
        if let Some((msn, code)) = responder.nak.take() {
            responder.ack = None;
            let is_final = responder.refused.is_some();
            let mut header = Header::new(Kind::Nak, qpn, qp.remote, msn);
            header.nak = Some(code);
            if code == NakCode::ReceiverNotReady {
                // A longer wait than the field holds is as good as the longest.
                header.imm = u32::try_from(responder.rnr_timer.as_micros()).unwrap_or(u32::MAX);
            }
            if is_final {
                // The refusal has waited for the reads before it.
                self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            }
            return Some(header);
        }
        let msn = responder.ack.take()?;
        Some(Header::new(Kind::Ack, qpn, qp.remote, msn))
    }

    /// Performs an operation that involves only this end. Returns the status of a failure.
    fn perform_local(&mut self, qpn: u32, op: &SendOp) -> Option<WcStatus> {
        let pd = self.qps.known(qpn)?.pd;
        match *op {
            SendOp::BindMw(bind) => {
                let view = View {
                    mr: bind.lkey.0,
                    addr: bind.addr.0,
                    len: bind.length,
                    access: bind.access,
                    qpn: Some(qpn),
                };
                let (mw, old, rkey) = (bind.mw.0, bind.old.0, bind.rkey.0);
                let done = self.regions.bind(mw, old, rkey, pd, view);
                (!done).then_some(WcStatus::MW_BIND_ERR)
            }
            SendOp::LocalInv(key) => {
                (!self.regions.windows.invalidate(key.0, pd, None)).then_some(WcStatus::LOC_QP_OP_ERR)
            }
            _ => None,
        }
    }

    /// Returns the next frame of the posted requests.
    fn next_request(&mut self, shared: &Shared, qpn: u32, claim: &mut Claim, now: Instant) -> Option<Header> {
        if self.closing {
            return None;
        }
        let is_ready = |qp: &&mut Qp| qp.state == State::ReadyToSend;
        let qp = self.qps.rows.get_mut(&qpn).filter(is_ready)?;
        let requester = &mut qp.requester;
        if requester.not_before.is_some_and(|time| now < time) || (!requester.proven && requester.cursor > 0)
        {
            return None;
        }
        requester.not_before = None;
        let (base, cursor) = (requester.base, requester.cursor);
        let entry = requester.queue.get_mut(cursor)?;
        if entry.failed.is_some() {
            return None;
        }
        let too_many = entry.is_read() && requester.reads >= requester.max_reads;
        if too_many || (entry.fence && requester.reads > 0) {
            return None;
        }
        let msn = base.wrapping_add(cursor as u64);
        let again = msn < requester.sent_until;
        if entry.is_local() && !again {
            let op = entry.op;
            if let Some(status) = self.perform_local(qpn, &op) {
                return self.fail_request(shared, qpn, cursor, status);
            }
        }
        let qp = self.qps.known(qpn)?;
        let requester = &mut qp.requester;
        let entry = requester.queue.get_mut(cursor)?;
        let Some(total) = entry.sges.length(MAX_MESSAGE) else {
            return self.fail_request(shared, qpn, cursor, WcStatus::LOC_LEN_ERR);
        };
        let (payload, need) = match entry.is_read() {
            true => (0, Access::LOCAL_WRITE),
            false => ((total - requester.offset).min(MAX_CHUNK), Access::empty()),
        };
        let (sges, offset) = (entry.sges.as_slice(), requester.offset);
        if let Some(slot) = entry.inline {
            claim.push_own(requester.inline.get(slot, offset, payload));
        } else if (offset == 0 && !self.regions.allow_all(qp.pd, sges, need))
            || !self
                .regions
                .claim_part(claim, sges, qp.pd, offset..offset + payload, need)
        {
            return self.fail_request(shared, qpn, cursor, WcStatus::LOC_PROT_ERR);
        }
        let mut header = Header {
            solicited: entry.solicited,
            total,
            offset,
            payload,
            ..Header::new(kind_of(&entry.op), qpn, qp.remote, msn)
        };
        match entry.op {
            SendOp::Write(to) | SendOp::Read(to) => (header.raddr, header.rkey) = (to.addr.0, to.rkey.0),
            SendOp::WriteImm(to, imm) => {
                (header.raddr, header.rkey, header.imm) = (to.addr.0, to.rkey.0, imm);
            }
            SendOp::SendImm(imm) => header.imm = imm,
            SendOp::SendInv(key) => header.rkey = key.0,
            SendOp::FetchAdd { to, add } => {
                (header.raddr, header.rkey) = (to.addr.0, to.rkey.0);
                atomic(&mut header, claim, add, 0);
            }
            SendOp::CompareSwap { to, compare, swap } => {
                (header.raddr, header.rkey) = (to.addr.0, to.rkey.0);
                atomic(&mut header, claim, compare, swap);
            }
            _ => {}
        }
        if entry.is_read() {
            entry.done = 0;
            requester.reads += 1;
        }
        requester.offset += payload;
        if entry.is_read() || requester.offset == header.total {
            requester.cursor += 1;
            requester.offset = 0;
            requester.sent_until = requester.sent_until.max(msn.wrapping_add(1));
            self.counters.retransmissions += u64::from(again);
        }
        // Each frame restarts the timeout, which a long message would exceed otherwise. Without
        // answers the queue ends, and with it the frames.
        requester.waiting_since = Some(now);
        Some(header)
    }

    /// Marks a request that cannot be sent: it fails once everything before it is complete.
    fn fail_request(&mut self, shared: &Shared, qpn: u32, cursor: usize, status: WcStatus) -> Option<Header> {
        let requester = &mut self.qps.known(qpn)?.requester;
        requester.queue.get_mut(cursor)?.failed = Some(status);
        requester.offset = 0;
        self.settle(shared, qpn);
        None
    }

    /// Returns the next datagram.
    fn next_datagram(&mut self, shared: &Shared, link: usize, qpn: u32, claim: &mut Claim) -> Option<Header> {
        loop {
            let is_ready = |qp: &&mut Qp| qp.state == State::ReadyToSend;
            let qp = self.qps.rows.get_mut(&qpn).filter(is_ready)?;
            let entry = qp.requester.queue.front()?;
            let (Some(to), sges) = (entry.to, entry.sges.as_slice()) else {
                return self.fail_request(shared, qpn, 0, WcStatus::LOC_QP_OP_ERR);
            };
            if to.link != link {
                self.list(qpn);
                shared.wake();
                return None;
            }
            let Some(total) = entry.sges.length(qp.mtu) else {
                // IBA C10-93.1.1: nothing is sent, without an error.
                qp.complete_oldest(WcStatus::SUCCESS);
                self.settle(shared, qpn);
                continue;
            };
            if let Some(slot) = entry.inline {
                claim.push_own(qp.requester.inline.get(slot, 0, total));
            } else if !self.regions.allow_all(qp.pd, sges, Access::empty())
                || !self
                    .regions
                    .claim_part(claim, sges, qp.pd, 0..total, Access::empty())
            {
                return self.fail_request(shared, qpn, 0, WcStatus::LOC_PROT_ERR);
            }
            let mut header = Header {
                rkey: to.qkey,
                solicited: entry.solicited,
                total,
                payload: total,
                ..Header::new(Kind::Datagram, qpn, to.qpn, 0)
            };
            if let SendOp::SendImm(imm) = entry.op {
                header.imm = imm;
                header.with_imm = true;
            }
            return Some(header);
        }
    }

    /// Completes a datagram that was sent: the sender learns no more.
    fn complete_datagram(&mut self, shared: &Shared, header: &Header) {
        let qpn = header.src_qpn;
        if let Some(qp) = self.qps.known(qpn).filter(|qp| qp.state != State::Error) {
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        self.settle(shared, qpn);
        self.list(qpn);
        shared.wake();
    }

    /// Handles a frame that was not sent because CPU access to its memory failed: only its queue
    /// pair fails.
    fn fail_unreachable(&mut self, shared: &Shared, header: &Header) {
        let qpn = header.src_qpn;
        let Some(qp) = self.qps.known(qpn).filter(|qp| qp.state != State::Error) else {
            // Its requests are flushed already.
            return;
        };
        if header.kind == Kind::ReadResponse {
            qp.responder.reads.clear();
            return self.refuse(shared, qpn, header.msn, NakCode::Operation);
        }
        let requester = &mut qp.requester;
        let index = header.msn.wrapping_sub(requester.base);
        let index = if header.kind == Kind::Datagram { 0 } else { index };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let Some(entry) = requester.queue.get_mut(index) else {
            // The peer has acknowledged an earlier transmission of it.
            return;
        };
        // As in `fail_request`: it fails once everything before it is complete.
        entry.failed = Some(WcStatus::LOC_PROT_ERR);
        requester.cursor = requester.cursor.min(index);
        requester.offset = 0;
        if requester.cursor == 0 {
            requester.waiting_since = None;
        }
        self.settle(shared, qpn);
    }

    /// Sends again what timed out, or fails it, and lists the queue pairs whose wait is over.
    /// Returns the next deadline.
    pub(crate) fn tick(&mut self, shared: &Shared, link: usize, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let (mut silent, mut rested) = (Vec::new(), Vec::new());
        let receiving = self.links[link].rx_qpn;
        let waits = |qp: &&Qp| {
            let is_connected = qp.state == State::ReadyToSend && qp.qp_type == QpType::Rc;
            is_connected && qp.link == link && receiving != Some(qp.qpn)
        };
        for qp in self.qps.rows.values().filter(waits) {
            let requester = &qp.requester;
            let since = requester.waiting_since;
            let unanswered = since.and_then(|since| since.checked_add(requester.retry.timeout));
            for (deadline, list) in [(unanswered, &mut silent), (requester.not_before, &mut rested)] {
                match deadline {
                    Some(deadline) if deadline <= now => list.push(qp.qpn),
                    Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                    None => {}
                }
            }
        }
        // In an order that does not depend on the map.
        silent.sort_unstable();
        rested.sort_unstable();
        for qpn in silent {
            match self.retransmit(qpn, now) {
                Ok(()) => self.list(qpn),
                Err(status) => self.enter_error(shared, qpn, status),
            }
        }
        for qpn in rested {
            self.list(qpn);
        }
        next
    }

    /// Sends everything again that is not complete, once per loss: an answer shows that an earlier
    /// one was lost.
    pub(crate) fn fill_gap(&mut self, qpn: u32, now: Instant) -> std::result::Result<(), WcStatus> {
        let qp = self.qps.known(qpn).ok_or(WcStatus::GENERAL_ERR)?;
        let base = qp.requester.base;
        if qp.requester.gap.replace(base) == Some(base) {
            return Ok(());
        }
        self.retransmit(qpn, now)
    }

    /// Sends everything again that is not complete.
    ///
    /// # Errors
    /// `RETRY_EXC_ERR` if no retry is left.
    pub(crate) fn retransmit(&mut self, qpn: u32, now: Instant) -> std::result::Result<(), WcStatus> {
        let qp = self.qps.known(qpn).ok_or(WcStatus::GENERAL_ERR)?;
        let requester = &mut qp.requester;
        if requester.cursor == 0 && requester.offset == 0 {
            // It restarts already.
            requester.waiting_since = None;
            return Ok(());
        }
        if requester.retries == 0 {
            return Err(WcStatus::RETRY_EXC_ERR);
        }
        requester.retries -= 1;
        requester.rewind();
        requester.waiting_since = Some(now);
        Ok(())
    }
}

fn atomic(header: &mut Header, claim: &mut Claim, first: u64, second: u64) {
    // The claimed memory is for the answer. Only the operands are sent.
    claim.pieces.clear();
    let mut operands = [0; OPERANDS as usize];
    let (a, b) = operands.split_at_mut(8);
    a.copy_from_slice(&first.to_le_bytes());
    b.copy_from_slice(&second.to_le_bytes());
    claim.push_own(&operands);
    (header.total, header.offset, header.payload) = (OPERANDS, 0, OPERANDS);
}

fn kind_of(op: &SendOp) -> Kind {
    match op {
        SendOp::Write(_) => Kind::Write,
        SendOp::WriteImm(..) => Kind::WriteImm,
        SendOp::Read(_) => Kind::ReadRequest,
        SendOp::SendImm(_) => Kind::SendImm,
        SendOp::SendInv(_) => Kind::SendInv,
        SendOp::FetchAdd { .. } => Kind::FetchAdd,
        SendOp::CompareSwap { .. } => Kind::CompareSwap,
        SendOp::BindMw(_) | SendOp::LocalInv(_) => Kind::Nop,
        _ => Kind::Send,
    }
}
