//! The sending thread: the only one that writes to the cable.
//!
//! It takes queue pairs in turn, one frame each; answers to the peer go before requests of our own.

#![expect(
    unsafe_code,
    reason = "claimed memory is handed to the cable, and a fault rule reads one byte of it"
)]

use std::time::{Duration, Instant};

use gaudi_dmabuf::Directions;
use gaudi_seam::Result;
use gaudi_verbs::{Access, SendOp, WcStatus};

use crate::core::{Core, Shared};
use crate::nic::FaultRule;
use crate::qp::State;
use crate::region::{Claim, Piece};
use crate::wire::{Header, Kind, MAX_CHUNK, MAX_MESSAGE, NakCode};

/// How long to sleep when nothing has a deadline.
const NAP: Duration = Duration::from_secs(3600);

/// Runs until the cable is down, or until the NIC closes and has said what it owes.
pub(crate) fn run(shared: &Shared, fault: Option<FaultRule>) {
    let mut claim = Claim::new();
    let mut fault = Fault {
        rule: fault,
        payload: 0,
        byte: 0,
    };
    while let Some(header) = next(shared, &mut claim) {
        let sent = send(shared, &header, &mut claim, &mut fault);
        let mut core = shared.lock();
        core.tx_qpn = None;
        shared.release(&mut core, &mut claim);
        match sent {
            Ok(Sent::Whole) => {}
            Ok(Sent::Unreachable) => {
                core.counters.tx.take_back(&header);
                core.take_back(&header);
            }
            Err(error) => shared.cable_down(&mut core, error),
        }
    }
    shared.lock().tx_ended = true;
    shared.idle.notify_all();
}

/// Waits for the next frame; `None` at the end.
fn next(shared: &Shared, claim: &mut Claim) -> Option<Header> {
    let mut core = shared.lock();
    loop {
        if core.down.is_some() {
            return None;
        }
        let now = Instant::now();
        if let Some(header) = core.next_frame(claim, now) {
            // Counted before it leaves: whoever sees its effect sees it counted.
            core.counters.tx.add(&header);
            return Some(header);
        }
        if core.closing {
            return None;
        }
        let sleep = match core.tick(now) {
            Some(deadline) => deadline.saturating_duration_since(now),
            None => NAP,
        };
        if core.ready.is_empty() {
            core = shared.wait_for(&shared.work, core, sleep);
        }
    }
}

/// What became of a frame.
enum Sent {
    Whole,
    /// Nothing of it: its memory cannot be reached.
    Unreachable,
}

fn send(shared: &Shared, header: &Header, claim: &mut Claim, fault: &mut Fault) -> Result<Sent> {
    fault.apply(&mut claim.pieces);
    let guards = match claim.begin(Directions::Read) {
        Ok(guards) => guards,
        Err(error) => {
            tracing::error!(%error, "softnic (software): a registered dma-buf cannot be reached");
            return Ok(Sent::Unreachable);
        }
    };
    // SAFETY: the claim keeps every region registered, hence mapped, until it is released after this call; the one byte of the fault
    // rule lives in `fault`.
    let sent = unsafe { shared.cable.send(&header.encode(), &claim.pieces) };
    drop(guards);
    sent.map(|()| Sent::Whole)
}

/// The state of a [`FaultRule`].
struct Fault {
    rule: Option<FaultRule>,
    /// Bytes of payload that have left.
    payload: u64,
    /// The wrong byte, while it is on its way.
    byte: u8,
}

impl Fault {
    /// Puts a changed copy in the place of the byte that the rule names; memory itself stays right.
    fn apply(&mut self, pieces: &mut Vec<Piece>) {
        let Some(FaultRule::FlipPayloadBit { byte, bit }) = self.rule else {
            return;
        };
        let mut left = byte.wrapping_sub(self.payload);
        let total: usize = pieces.iter().map(|piece| piece.len).sum();
        let before = self.payload;
        self.payload = self.payload.saturating_add(total as u64);
        if byte < before || byte >= self.payload {
            return;
        }
        for index in 0..pieces.len() {
            let Some(piece) = pieces.get(index).copied() else {
                return;
            };
            if left >= piece.len as u64 {
                left -= piece.len as u64;
                continue;
            }
            let (head, tail) = piece.split(usize::try_from(left).unwrap_or(usize::MAX));
            // SAFETY: the piece is claimed, hence mapped and readable.
            let Some(right) = (unsafe { tail.first_byte() }) else {
                return;
            };
            self.byte = right ^ 1 << (bit & 7);
            let wrong = Piece::of_byte(&mut self.byte);
            pieces.splice(index..=index, [head, wrong, tail.split(1).1]);
            return;
        }
    }
}

impl Core {
    /// The next frame, with the memory of its payload claimed.
    fn next_frame(&mut self, claim: &mut Claim, now: Instant) -> Option<Header> {
        if let Some(header) = self.strays.pop_front() {
            return Some(header);
        }
        for _ in 0..self.ready.len() {
            let qpn = self.ready.pop_front()?;
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.listed = false;
            }
            let frame = self
                .next_answer(qpn, claim)
                .or_else(|| self.next_request(qpn, claim, now));
            if let Some(header) = frame {
                // It may have more; if not, it is not listed again the next time.
                self.list(qpn);
                self.tx_qpn = Some(qpn);
                return Some(header);
            }
        }
        None
    }

    /// What the responder owes, in the order in which the requester must hear it: reads, then refusals and acknowledgements, which
    /// speak for everything before them.
    fn next_answer(&mut self, qpn: u32, claim: &mut Claim) -> Option<Header> {
        let qp = self.qps.get_mut(&qpn)?;
        let responder = &mut qp.responder;
        if let Some(job) = responder.reads.front_mut() {
            let payload = (job.total - job.offset).min(MAX_CHUNK);
            // The range was in bounds when the read came in; a region that went away since then is found here.
            let addr = job.raddr.wrapping_add(u64::from(job.offset));
            let allowed =
                self.regions
                    .claim(claim, job.rkey, qp.pd, addr, payload.into(), Access::REMOTE_READ);
            if allowed {
                let mut header = Header::new(Kind::ReadResponse, qpn, qp.remote, job.msn);
                header.total = job.total;
                header.offset = job.offset;
                header.payload = payload;
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
            self.refuse(qpn, msn, NakCode::Access);
        }
        let qp = self.qps.get_mut(&qpn)?;
        let responder = &mut qp.responder;
        if let Some((msn, code)) = responder.nak.take() {
            responder.ack = None;
            let mut header = Header::new(Kind::Nak, qpn, qp.remote, msn);
            header.nak = Some(code);
            if code == NakCode::ReceiverNotReady {
                header.imm = u32::try_from(responder.rnr_timer.as_micros()).unwrap_or(u32::MAX);
            }
            return Some(header);
        }
        let msn = responder.ack.take()?;
        Some(Header::new(Kind::Ack, qpn, qp.remote, msn))
    }

    /// The next frame of what was posted.
    fn next_request(&mut self, qpn: u32, claim: &mut Claim, now: Instant) -> Option<Header> {
        if self.closing {
            return None;
        }
        let qp = self
            .qps
            .get_mut(&qpn)
            .filter(|qp| qp.state == State::ReadyToSend)?;
        let requester = &mut qp.requester;
        if requester.not_before.is_some_and(|time| now < time) || (!requester.proven && requester.cursor > 0)
        {
            return None;
        }
        requester.not_before = None;
        let entry = requester
            .queue
            .get_mut(requester.cursor)
            .filter(|entry| entry.failed.is_none())?;
        let too_many = entry.is_read() && requester.reads >= requester.max_reads;
        if too_many || (entry.fence && requester.reads > 0) {
            return None;
        }
        let need = if entry.is_read() {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        let total = u32::try_from(entry.sges.total)
            .ok()
            .filter(|total| *total <= MAX_MESSAGE);
        let payload = match total {
            Some(total) if !entry.is_read() => (total - requester.offset).min(MAX_CHUNK),
            _ => 0,
        };
        let sges = entry.sges.as_slice();
        let wrong = if total.is_none() {
            Some(WcStatus::LOC_LEN_ERR)
        } else if (requester.offset == 0 && !self.regions.allow_all(qp.pd, sges, need))
            || !self
                .regions
                .claim_part(claim, sges, qp.pd, requester.offset, payload, need)
        {
            Some(WcStatus::LOC_PROT_ERR)
        } else {
            None
        };
        if wrong.is_some() {
            entry.failed = wrong;
            requester.offset = 0;
            self.settle(qpn);
            return None;
        }
        let mut header = Header::new(
            kind_of(&entry.op),
            qpn,
            qp.remote,
            requester.base.wrapping_add(requester.cursor as u64),
        );
        header.solicited = entry.solicited;
        header.total = total.unwrap_or(0);
        header.offset = requester.offset;
        header.payload = payload;
        match entry.op {
            SendOp::Write(to) | SendOp::Read(to) => (header.raddr, header.rkey) = (to.addr.0, to.rkey.0),
            SendOp::WriteImm(to, imm) => {
                (header.raddr, header.rkey, header.imm) = (to.addr.0, to.rkey.0, imm);
            }
            SendOp::SendImm(imm) => header.imm = imm,
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
        }
        // Each frame begins the wait anew, or a long message would have used it up. Without an answer a queue is at its end sometime.
        requester.waiting_since = Some(now);
        Some(header)
    }

    /// A frame whose memory could not be reached was not sent: its queue pair fails, and no other.
    fn take_back(&mut self, header: &Header) {
        let qpn = header.src_qpn;
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.state != State::Error) else {
            return;
        };
        if header.kind == Kind::ReadResponse {
            qp.responder.reads.clear();
            return self.refuse(qpn, header.msn, NakCode::Operation);
        }
        let requester = &mut qp.requester;
        let index = header.msn.wrapping_sub(requester.base);
        let entry = usize::try_from(index)
            .ok()
            .and_then(|index| Some((index, requester.queue.get_mut(index)?)));
        let Some((index, entry)) = entry else {
            return;
        };
        // As a request that is found wrong before it is sent: told once everything before it is complete.
        entry.failed = Some(WcStatus::LOC_PROT_ERR);
        requester.cursor = requester.cursor.min(index);
        requester.offset = 0;
        if requester.cursor == 0 {
            requester.waiting_since = None;
        }
        self.settle(qpn);
    }

    /// Before sleeping: gives up on a silent peer, lists who has waited long enough, and says when to look again.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let (mut silent, mut rested) = (Vec::new(), Vec::new());
        for qp in self
            .qps
            .values()
            .filter(|qp| qp.state == State::ReadyToSend && self.rx_qpn != Some(qp.qpn))
        {
            let requester = &qp.requester;
            let unanswered = requester
                .waiting_since
                .and_then(|since| since.checked_add(requester.patience.answer));
            for (deadline, list) in [(unanswered, &mut silent), (requester.not_before, &mut rested)] {
                match deadline {
                    Some(deadline) if deadline <= now => list.push(qp.qpn),
                    Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                    None => {}
                }
            }
        }
        for qpn in silent {
            self.enter_error(qpn, WcStatus::RETRY_EXC_ERR);
        }
        for qpn in rested {
            self.list(qpn);
        }
        next
    }
}

fn kind_of(op: &SendOp) -> Kind {
    match op {
        SendOp::Write(_) => Kind::Write,
        SendOp::WriteImm(..) => Kind::WriteImm,
        SendOp::Read(_) => Kind::ReadRequest,
        SendOp::SendImm(_) => Kind::SendImm,
        _ => Kind::Send,
    }
}
