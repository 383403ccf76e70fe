//! The receiving thread: the only one that reads from the cable. It never writes to it, so that two busy NICs cannot block each other.

#![expect(unsafe_code, reason = "claimed memory is handed to the cable")]

use std::time::{Duration, Instant};

use gaudi_dmabuf::Directions;
use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::{Access, WcStatus};

use crate::core::{Core, Shared};
use crate::qp::{ReadJob, State};
use crate::region::Claim;
use crate::wire::{HEADER, Header, Kind, NakCode};
use crate::{MAX_QP_WR, MAX_READS};

const OPERATION: &str = "softnic receive";
/// Where payload goes that nobody wants.
const SCRATCH: usize = 64 * 1024;
/// The longest that a peer can make us wait before we come again.
const MAX_RNR_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts to reach a queue pair that is not connected yet.
const CONNECT_WAIT: Duration = Duration::from_millis(1);

/// Runs until the cable is down.
pub(crate) fn run(shared: &Shared) {
    let mut claim = Claim::new();
    let mut scratch = vec![0; SCRATCH];
    loop {
        let error = match receive_frame(shared, &mut claim, &mut scratch) {
            Ok(true) => continue,
            Ok(false) => Error::new(ErrorKind::Disconnected, OPERATION).because("the peer closed the cable"),
            Err(error) => error,
        };
        let mut core = shared.lock();
        // In the middle of a frame a claim and a flush may be left.
        if let Some(qpn) = core.rx_qpn.take() {
            core.flush_if_due(qpn);
        }
        shared.release(&mut core, &mut claim);
        return shared.cable_down(&mut core, error);
    }
}

/// One frame; `false` where the peer closed between two.
fn receive_frame(shared: &Shared, claim: &mut Claim, scratch: &mut [u8]) -> gaudi_seam::Result<bool> {
    let mut bytes = [0; HEADER];
    let Some(end) = shared.cable.receive_header(&mut bytes)? else {
        return Ok(false);
    };
    let protocol = |cause: &'static str| Error::new(ErrorKind::Protocol, OPERATION).because(cause);
    let header = Header::decode(&bytes).map_err(protocol)?;
    let wanted = shared.lock().accept(&header, claim).map_err(protocol)?;
    shared.work.notify_one();
    if !wanted {
        shared.cable.discard(header.payload as usize, scratch, end)?;
        return Ok(true);
    }
    let reachable = match claim.begin(Directions::Write) {
        Ok(guards) => {
            // SAFETY: the claim keeps every region registered, hence mapped and writable, until it is released below.
            unsafe { shared.cable.receive(&claim.pieces, end) }?;
            drop(guards);
            true
        }
        Err(error) => {
            tracing::error!(%error, "softnic (software): a registered dma-buf cannot be reached");
            shared.cable.discard(header.payload as usize, scratch, end)?;
            false
        }
    };
    let mut core = shared.lock();
    core.rx_qpn = None;
    shared.release(&mut core, claim);
    core.finish(&header, reachable);
    drop(core);
    shared.work.notify_one();
    Ok(true)
}

impl Core {
    /// Decides on a frame. `true` where its payload is wanted; the memory for it is claimed then, and [`finish`](Self::finish) follows.
    fn accept(&mut self, header: &Header, claim: &mut Claim) -> Result<bool, &'static str> {
        self.counters.rx.add(header);
        let wanted = match header.kind {
            Kind::Ack | Kind::Nak | Kind::ReadResponse => self.accept_answer(header, claim),
            _ => self.accept_request(header, claim)?,
        };
        if wanted {
            self.rx_qpn = Some(header.dst_qpn);
        }
        Ok(wanted)
    }

    fn accept_request(&mut self, header: &Header, claim: &mut Claim) -> Result<bool, &'static str> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let Some(qp) = self.qps.get_mut(&qpn) else {
            self.refuse_stray(header, NakCode::NoPeer)?;
            return Ok(false);
        };
        let responder = &mut qp.responder;
        match qp.state {
            State::Reset | State::Init if header.offset == 0 => {
                self.refuse_stray(header, NakCode::NotConnected)?;
                return Ok(false);
            }
            State::Reset | State::Init => return Ok(false),
            _ if qp.remote != header.src_qpn => {
                self.refuse_stray(header, NakCode::NoPeer)?;
                return Ok(false);
            }
            State::Error if responder.has_answer() => {
                // Behind what is still to be said; a refusal that is already queued ends the connection anyway.
                responder.nak.get_or_insert((msn, NakCode::NoPeer));
                self.list(qpn);
                return Ok(false);
            }
            State::Error => {
                self.refuse_stray(header, NakCode::NoPeer)?;
                return Ok(false);
            }
            State::ReadyToReceive | State::ReadyToSend => {}
        }
        if msn != responder.expected || header.offset != responder.progress {
            // Sent before the peer learnt that it must come again.
            let ahead = msn.wrapping_sub(responder.expected);
            if !(responder.resync && ahead <= u64::from(MAX_QP_WR)) {
                self.refuse(qpn, msn, NakCode::NoPeer);
            }
            return Ok(false);
        }
        responder.resync = false;
        let first = *responder.current.get_or_insert(*header);
        let continues = Header {
            offset: first.offset,
            payload: first.payload,
            ..*header
        };
        if continues != first {
            self.refuse(qpn, msn, NakCode::InvalidRequest);
            return Ok(false);
        }
        if header.kind == Kind::ReadRequest {
            self.accept_read(header);
            return Ok(false);
        }
        let takes_receive = header.kind != Kind::Write;
        if takes_receive && responder.queue.is_empty() {
            responder.nak = Some((msn, NakCode::ReceiverNotReady));
            responder.resync = true;
            responder.current = None;
            self.list(qpn);
            return Ok(false);
        }
        if matches!(header.kind, Kind::Write | Kind::WriteImm) {
            let allowed = header.total == 0
                || qp.access.contains(Access::REMOTE_WRITE)
                    && self.regions.allows(
                        header.rkey,
                        qp.pd,
                        header.raddr,
                        header.total.into(),
                        Access::REMOTE_WRITE,
                    )
                    // In range, since the whole message is.
                    && self.regions.claim(
                        claim,
                        header.rkey,
                        qp.pd,
                        header.raddr.wrapping_add(header.offset.into()),
                        header.payload.into(),
                        Access::REMOTE_WRITE,
                    );
            if !allowed {
                self.refuse(qpn, msn, NakCode::Access);
            }
            return Ok(allowed);
        }
        let Some(entry) = responder.queue.front() else {
            return Ok(false);
        };
        let (status, code) = if u64::from(header.total) > entry.sges.total {
            (WcStatus::LOC_LEN_ERR, NakCode::InvalidRequest)
        } else if !self.regions.claim_part(
            claim,
            entry.sges.as_slice(),
            qp.pd,
            header.offset,
            header.payload,
            Access::LOCAL_WRITE,
        ) {
            (WcStatus::LOC_PROT_ERR, NakCode::Operation)
        } else {
            return Ok(true);
        };
        qp.complete_receive(status, None, None);
        self.refuse(qpn, msn, code);
        Ok(false)
    }

    fn accept_read(&mut self, header: &Header) {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let allowed = header.total == 0
            || qp.access.contains(Access::REMOTE_READ)
                && self.regions.allows(
                    header.rkey,
                    qp.pd,
                    header.raddr,
                    header.total.into(),
                    Access::REMOTE_READ,
                );
        let responder = &mut qp.responder;
        if responder.reads.len() >= usize::from(MAX_READS) {
            return self.refuse(qpn, msn, NakCode::InvalidRequest);
        }
        if !allowed {
            return self.refuse(qpn, msn, NakCode::Access);
        }
        responder.reads.push_back(ReadJob {
            msn,
            raddr: header.raddr,
            rkey: header.rkey,
            total: header.total,
            offset: 0,
        });
        responder.expected = responder.expected.wrapping_add(1);
        responder.current = None;
        self.list(qpn);
    }

    fn accept_answer(&mut self, header: &Header, claim: &mut Claim) -> bool {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let known = self
            .qps
            .get_mut(&qpn)
            .filter(|qp| qp.state == State::ReadyToSend && qp.remote == header.src_qpn);
        let Some(qp) = known else {
            // Late: the queue pair went away or into error meanwhile.
            return false;
        };
        let requester = &mut qp.requester;
        // This queue pair's peer lives; another's says nothing of it.
        if let Some(since) = &mut requester.waiting_since {
            *since = Instant::now();
        }
        let index = msn.wrapping_sub(requester.base);
        let begun =
            index < requester.cursor as u64 || index == requester.cursor as u64 && requester.offset > 0;
        let outcome = match (header.kind, header.nak) {
            (Kind::Ack, _) if requester.has_sent(msn) => self.complete_before(qpn, msn.wrapping_add(1)),
            (Kind::ReadResponse, _) if requester.has_sent(msn) => {
                let outcome = self.complete_before(qpn, msn);
                if outcome.is_ok() {
                    return self.accept_read_data(header, claim);
                }
                outcome
            }
            (Kind::Nak, Some(NakCode::NotConnected)) if begun && !requester.proven => {
                self.come_again_connecting(qpn)
            }
            (Kind::Nak, Some(NakCode::ReceiverNotReady)) if begun => self
                .complete_before(qpn, msn)
                .and_then(|()| self.come_again_receiving(qpn, header.imm)),
            (Kind::Nak, Some(NakCode::NoPeer)) => Err(WcStatus::RETRY_EXC_ERR),
            (Kind::Nak, Some(code)) if begun => self.complete_before(qpn, msn).and(Err(match code {
                NakCode::Access => WcStatus::REM_ACCESS_ERR,
                NakCode::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
                NakCode::Operation => WcStatus::REM_OP_ERR,
                _ => WcStatus::BAD_RESP_ERR,
            })),
            _ => Err(WcStatus::BAD_RESP_ERR),
        };
        match outcome {
            Ok(()) => {
                self.settle(qpn);
                self.list(qpn);
            }
            Err(status) => self.enter_error(qpn, status),
        }
        false
    }

    /// The peer has done everything before `msn`. A read among it is an error of the peer: only its data completes it.
    fn complete_before(&mut self, qpn: u32, msn: u64) -> Result<(), WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(());
        };
        qp.requester.proven = true;
        while qp.requester.base < msn && qp.requester.cursor > 0 {
            if qp
                .requester
                .queue
                .front()
                .is_none_or(super::qp::SendEntry::is_read)
            {
                return Err(WcStatus::BAD_RESP_ERR);
            }
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        Ok(())
    }

    fn accept_read_data(&mut self, header: &Header, claim: &mut Claim) -> bool {
        let qpn = header.dst_qpn;
        let Some(qp) = self.qps.get(&qpn) else {
            return false;
        };
        let fits = qp.requester.queue.front().filter(|entry| {
            entry.is_read() && entry.done == header.offset && entry.sges.total == u64::from(header.total)
        });
        let status = match fits {
            None => WcStatus::BAD_RESP_ERR,
            Some(entry) => {
                let sges = entry.sges.as_slice();
                let (offset, payload) = (header.offset, header.payload);
                if self
                    .regions
                    .claim_part(claim, sges, qp.pd, offset, payload, Access::LOCAL_WRITE)
                {
                    return true;
                }
                WcStatus::LOC_PROT_ERR
            }
        };
        self.enter_error(qpn, status);
        false
    }

    /// The peer's queue pair is not connected yet.
    fn come_again_connecting(&mut self, qpn: u32) -> Result<(), WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(());
        };
        let (requester, now) = (&mut qp.requester, Instant::now());
        let since = *requester.unconnected_since.get_or_insert(now);
        if now.saturating_duration_since(since) > requester.patience.answer {
            return Err(WcStatus::RETRY_EXC_ERR);
        }
        requester.rewind();
        requester.not_before = now.checked_add(CONNECT_WAIT);
        Ok(())
    }

    /// The peer has no receive posted; `micros` is how long it wants us to wait.
    fn come_again_receiving(&mut self, qpn: u32, micros: u32) -> Result<(), WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(());
        };
        let requester = &mut qp.requester;
        if let Some(limit) = requester.patience.rnr_retry {
            if requester.refused >= limit {
                return Err(WcStatus::RNR_RETRY_EXC_ERR);
            }
            requester.refused += 1;
        }
        requester.rewind();
        let wait = Duration::from_micros(micros.into()).min(MAX_RNR_WAIT);
        requester.not_before = Instant::now().checked_add(wait);
        Ok(())
    }

    /// A frame's payload is in its place; `reachable` is false where it could not be put there.
    fn finish(&mut self, header: &Header, reachable: bool) {
        let qpn = header.dst_qpn;
        if self.flush_if_due(qpn) {
            return;
        }
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if header.kind == Kind::ReadResponse {
            if !reachable {
                return self.enter_error(qpn, WcStatus::LOC_PROT_ERR);
            }
            if let Some(entry) = qp.requester.queue.front_mut() {
                entry.done = entry.done.saturating_add(header.payload);
            }
            if header.is_last() {
                qp.complete_oldest(WcStatus::SUCCESS);
            }
        } else {
            if !reachable {
                if matches!(header.kind, Kind::Send | Kind::SendImm) {
                    qp.complete_receive(WcStatus::LOC_PROT_ERR, None, None);
                }
                return self.refuse(qpn, header.msn, NakCode::Operation);
            }
            qp.responder.progress = qp.responder.progress.saturating_add(header.payload);
            if header.is_last() {
                qp.responder.expected = qp.responder.expected.wrapping_add(1);
                qp.responder.progress = 0;
                qp.responder.current = None;
                let imm = matches!(header.kind, Kind::SendImm | Kind::WriteImm).then_some(header.imm);
                if header.kind != Kind::Write {
                    qp.complete_receive(WcStatus::SUCCESS, Some(header), imm);
                }
                qp.responder.ack = Some(header.msn);
            }
        }
        self.settle(qpn);
        self.list(qpn);
    }

    /// Flushes a queue pair that went into error while this thread wrote to its memory.
    fn flush_if_due(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return true;
        };
        match qp.flush_later.take() {
            Some(oldest) => {
                qp.flush(oldest);
                true
            }
            None => false,
        }
    }
}
