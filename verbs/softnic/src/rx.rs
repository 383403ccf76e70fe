//! The receiving thread of a cable, the only one that reads from it. It never writes to it, so
//! that two busy NICs cannot block each other.

#![expect(unsafe_code, reason = "claimed memory is handed to the cable")]

use gaudi_dmabuf::Directions;
use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, GRH_BYTES, Gid, WcStatus};

use crate::MAX_READS;
use crate::cable::{Cable, FrameEnd};
use crate::core::{Core, Shared};
use crate::error::defect;
use crate::link::Link;
use crate::pending::Write;
use crate::qp::{ReadJob, State};
use crate::region::{AtomicOp, Claim, Piece, atomic, scatter};
use crate::wire::{HEADER, Header, Kind, NakCode, OPERANDS};

const OPERATION: &str = "softnic receive";
/// Size of the buffer for discarded payload.
const SCRATCH: usize = 64 * 1024;

/// Where a frame's payload goes.
pub(crate) enum Wanted {
    /// It is discarded.
    No,
    /// Into the claimed memory.
    Payload,
    /// Into the claimed memory, after a route header that fills this many pieces.
    Datagram(usize),
    /// It is the operands of an atomic on the claimed memory.
    Atomic,
}

/// Runs until the cable is down.
pub(crate) fn run(shared: &Shared, link: usize, cable: &Cable) {
    let mut claim = Claim::new();
    let mut scratch = vec![0; SCRATCH];
    loop {
        let error = match receive_frame(shared, link, cable, &mut claim, &mut scratch) {
            Ok(true) => continue,
            Ok(false) => Error::new(ErrorKind::Disconnected, OPERATION).because("the peer closed the cable"),
            Err(error) => error,
        };
        let mut core = shared.lock();
        // A frame that was cut leaves a claim, and maybe a flush that waited for it.
        if let Some(qpn) = core.links[link].rx_qpn.take() {
            if let Some(entry) = core.links[link].datagram.take() {
                if let Some(qp) = core.qps.known(qpn) {
                    qp.complete_receive(&entry, WcStatus::WR_FLUSH_ERR, None);
                }
            }
            core.flush_if_due(qpn);
        }
        shared.release(&mut core, &mut claim);
        return shared.cable_down(&mut core, link, error);
    }
}

/// Receives one frame. Returns false if the peer closed the cable between two frames.
fn receive_frame(
    shared: &Shared,
    link: usize,
    cable: &Cable,
    claim: &mut Claim,
    scratch: &mut [u8],
) -> gaudi_seam::Result<bool> {
    let mut bytes = [0; HEADER];
    let Some(end) = cable.receive_header(&mut bytes)? else {
        return Ok(false);
    };
    let protocol = |cause: &'static str| Error::new(ErrorKind::Protocol, OPERATION).because(cause);
    let header = Header::decode(&bytes).map_err(protocol)?;
    let mut core = shared.lock();
    let wanted = core.accept(shared, link, &header, claim).map_err(protocol)?;
    let hold_back = core.pending.is_some()
        && matches!(wanted, Wanted::Payload)
        && matches!(header.kind, Kind::Write | Kind::WriteImm)
        && claim.is_device_memory();
    drop(core);
    shared.wake();
    let mut found = None;
    let directions = match wanted {
        Wanted::Atomic => Directions::ReadWrite,
        _ => Directions::Write,
    };
    let reachable = match wanted {
        Wanted::No => {
            cable.discard(header.payload as usize, scratch, end)?;
            return Ok(true);
        }
        Wanted::Payload if hold_back => {
            let mut kept = vec![0; header.payload as usize];
            cable.receive_own(&mut kept, end)?;
            shared.lock().hold_back(&header, kept);
            true
        }
        _ => match claim.begin(directions) {
            Ok(guards) => {
                found = receive_payload(shared, link, cable, &header, &wanted, &claim.pieces, end)?;
                drop(guards);
                true
            }
            Err(error) => {
                tracing::error!(%error, "softnic (software): CPU access to a registered dma-buf failed");
                cable.discard(header.payload as usize, scratch, end)?;
                false
            }
        },
    };
    let mut core = shared.lock();
    core.links[link].rx_qpn = None;
    shared.release(&mut core, claim);
    match wanted {
        Wanted::Atomic => core.finish_atomic(shared, &header, reachable, found),
        Wanted::Datagram(_) => core.finish_datagram(shared, link, &header, reachable),
        _ => core.finish(shared, &header, reachable),
    }
    drop(core);
    shared.wake();
    Ok(true)
}

/// Receives the payload into `pieces`. Returns the value that an atomic found.
fn receive_payload(
    shared: &Shared,
    link: usize,
    cable: &Cable,
    header: &Header,
    wanted: &Wanted,
    pieces: &[Piece],
    end: FrameEnd,
) -> gaudi_seam::Result<Option<u64>> {
    match *wanted {
        Wanted::Atomic => {
            let mut operands = [0; OPERANDS as usize];
            cable.receive_own(&mut operands, end)?;
            let operand = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| operands[at + i]));
            let op = match header.kind {
                Kind::FetchAdd => AtomicOp::FetchAdd(operand(0)),
                _ => AtomicOp::CompareSwap {
                    compare: operand(0),
                    swap: operand(8),
                },
            };
            let Some(piece) = pieces.first() else {
                defect("an atomic claimed no memory");
                return Ok(None);
            };
            // SAFETY: the claim keeps the region registered, hence mapped and writable, until it is
            // released after this call.
            Ok(unsafe { atomic(*piece, op) })
        }
        Wanted::Datagram(route) => {
            // A datagram may arrive before the peer's GID, from a peer that sends none.
            let peer = shared.lock().links[link].peer.unwrap_or_default();
            let (front, rest) = pieces.split_at(route.min(pieces.len()));
            // SAFETY: as above.
            unsafe { scatter(front, &route_header(&peer, &shared.gid, header)) };
            // SAFETY: as above.
            unsafe { cable.receive(rest, end) }?;
            Ok(None)
        }
        _ => {
            // SAFETY: as above.
            unsafe { cable.receive(pieces, end) }?;
            Ok(None)
        }
    }
}

/// Returns the bytes before a datagram in its receive: the IPv6 header of RoCE v2, which has the
/// layout of a global route header (IBA 8.3).
fn route_header(from: &Gid, to: &Gid, header: &Header) -> [u8; GRH_BYTES as usize] {
    let mut bytes = [0; GRH_BYTES as usize];
    bytes[0] = 6 << 4;
    // `Header::decode` bounds a datagram by the MTU.
    let len = u16::try_from(header.payload).unwrap_or(u16::MAX).to_be_bytes();
    bytes[4..6].copy_from_slice(&len);
    // Next header: UDP; hop limit.
    (bytes[6], bytes[7]) = (17, 64);
    bytes[8..24].copy_from_slice(&from.0);
    bytes[24..].copy_from_slice(&to.0);
    bytes
}

impl Core {
    /// Decides on a frame. If its payload is wanted, this claims the memory for it, and one of the
    /// `finish` functions follows.
    fn accept(
        &mut self,
        shared: &Shared,
        link: usize,
        header: &Header,
        claim: &mut Claim,
    ) -> Result<Wanted, &'static str> {
        self.counters.rx.add(header);
        if header.damaged {
            self.counters.dropped += 1;
            return Ok(Wanted::No);
        }
        let wanted = match header.kind {
            Kind::Hello => {
                let mut gid = [0; 16];
                gid[..8].copy_from_slice(&header.msn.to_be_bytes());
                gid[8..].copy_from_slice(&header.raddr.to_be_bytes());
                self.greet(shared, link, Gid(gid))?;
                Wanted::No
            }
            Kind::Ack | Kind::Nak | Kind::ReadResponse => self.accept_answer(shared, link, header, claim),
            Kind::Datagram => self.accept_datagram(shared, link, header, claim),
            _ => self.accept_request(shared, link, header, claim)?,
        };
        if !matches!(wanted, Wanted::No) {
            self.links[link].rx_qpn = Some(header.dst_qpn);
        }
        Ok(wanted)
    }

    /// Holds back the payload of a write.
    fn hold_back(&mut self, header: &Header, bytes: Vec<u8>) {
        let pd = self.qps.known(header.dst_qpn).map(|qp| qp.pd);
        if let (Some(pending), Some(pd)) = (&mut self.pending, pd) {
            let write = Write {
                qpn: header.dst_qpn,
                pd,
                key: header.rkey,
                addr: header.raddr.wrapping_add(header.offset.into()),
                bytes,
            };
            pending.hold_back(&mut self.regions, write);
        }
    }

    /// Handles the GID of the other end. It is sent once, and must not be this NIC's, except on its
    /// own loop, nor that of another live cable, whose traffic could otherwise be stolen.
    fn greet(&mut self, shared: &Shared, link: usize, gid: Gid) -> Result<(), &'static str> {
        let is_held = |(other, cable): (usize, &Link)| other != link && cable.holds(&gid);
        let held = gid != shared.gid && self.links.iter().enumerate().any(is_held);
        let cable = &mut self.links[link];
        if std::mem::replace(&mut cable.greeted, true) {
            return Err("the peer sent its GID twice");
        }
        if cable.peer.is_none() && gid == shared.gid {
            return Err("the peer claims this NIC's GID");
        }
        if held {
            return Err("the peer claims the GID of another live cable");
        }
        cable.peer = Some(gid);
        shared.idle.notify_all();
        Ok(())
    }

    fn accept_datagram(
        &mut self,
        shared: &Shared,
        link: usize,
        header: &Header,
        claim: &mut Claim,
    ) -> Wanted {
        let qpn = header.dst_qpn;
        let receiver = self.qps.get(&qpn).filter(|qp| {
            qp.qp_type == QpType::Ud
                && qp.qkey == header.rkey
                && matches!(qp.state, State::ReadyToReceive | State::ReadyToSend)
        });
        let Some(qp) = receiver else {
            self.counters.datagrams_dropped += 1;
            return Wanted::No;
        };
        let (pd, srq) = (qp.pd, qp.srq);
        let next = match srq {
            Some(handle) => self.srqs.get(&handle).and_then(|srq| srq.queue.front()),
            None => qp.responder.queue.front(),
        };
        let room = u64::from(header.total) + u64::from(GRH_BYTES);
        let Some(entry) = next else {
            self.counters.datagrams_dropped += 1;
            return Wanted::No;
        };
        if entry.sges.total < room {
            self.counters.datagrams_dropped += 1;
            // It uses up a receive of a shared queue, and no other (rxe_resp.c, RESPST_ERR_LENGTH).
            if srq.is_some() {
                if let Some(entry) = self.take_receive(shared, qpn) {
                    if let Some(qp) = self.qps.known(qpn) {
                        qp.complete_receive(&entry, WcStatus::REM_INV_REQ_ERR, None);
                    }
                }
            }
            return Wanted::No;
        }
        let sges = entry.sges;
        let right = Access::LOCAL_WRITE;
        let mut claimed = self
            .regions
            .claim_part(claim, sges.as_slice(), pd, 0, GRH_BYTES, right);
        let route = claim.pieces.len();
        claimed = claimed
            && self
                .regions
                .claim_part(claim, sges.as_slice(), pd, GRH_BYTES, header.payload, right);
        let Some(entry) = self.take_receive(shared, qpn) else {
            defect("the receive of a datagram vanished under the lock");
            return Wanted::No;
        };
        if !claimed {
            self.regions.release(claim);
            if let Some(qp) = self.qps.known(qpn) {
                qp.complete_receive(&entry, WcStatus::LOC_PROT_ERR, None);
            }
            self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            return Wanted::No;
        }
        self.links[link].datagram = Some(entry);
        Wanted::Datagram(route)
    }

    fn finish_datagram(&mut self, shared: &Shared, link: usize, header: &Header, reachable: bool) {
        let qpn = header.dst_qpn;
        let entry = self.links[link].datagram.take();
        let (Some(entry), Some(qp)) = (entry, self.qps.known(qpn)) else {
            return defect("a datagram that is being received has no receive");
        };
        match (reachable, qp.state) {
            (_, State::Error) => qp.complete_receive(&entry, WcStatus::WR_FLUSH_ERR, None),
            (true, _) => qp.complete_receive(&entry, WcStatus::SUCCESS, Some(header)),
            (false, _) => {
                qp.complete_receive(&entry, WcStatus::LOC_PROT_ERR, None);
                self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            }
        }
        self.settle(shared, qpn);
    }

    fn accept_request(
        &mut self,
        shared: &Shared,
        link: usize,
        header: &Header,
        claim: &mut Claim,
    ) -> Result<Wanted, &'static str> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.qp_type == QpType::Rc) else {
            self.refuse_stray(link, header, NakCode::NoPeer)?;
            return Ok(Wanted::No);
        };
        let responder = &mut qp.responder;
        match qp.state {
            State::Reset | State::Init if header.offset == 0 => {
                self.refuse_stray(link, header, NakCode::NotConnected)?;
                return Ok(Wanted::No);
            }
            State::Reset | State::Init => return Ok(Wanted::No),
            _ if qp.remote != header.src_qpn || qp.link != link => {
                self.refuse_stray(link, header, NakCode::NoPeer)?;
                return Ok(Wanted::No);
            }
            // An answer was lost. Repeat why the connection ended, or acknowledge the message.
            State::Error if responder.refused.is_some() => {
                responder.nak = responder.refused;
                self.list(qpn);
                return Ok(Wanted::No);
            }
            State::Error if !responder.is_in_window(msn) => {
                self.counters.dropped += 1;
                return Ok(Wanted::No);
            }
            State::Error if msn < responder.expected && !header.kind.is_answered_by_data() => {
                responder.ack = Some(responder.expected - 1);
                self.list(qpn);
                return Ok(Wanted::No);
            }
            State::Error if responder.has_answer() => {
                // After the answers that are still queued. A queued refusal ends the connection.
                responder.nak.get_or_insert((msn, NakCode::NoPeer));
                self.list(qpn);
                return Ok(Wanted::No);
            }
            State::Error => {
                self.refuse_stray(link, header, NakCode::NoPeer)?;
                return Ok(Wanted::No);
            }
            State::ReadyToReceive | State::ReadyToSend => {}
        }
        if !responder.is_in_window(msn) {
            self.counters.dropped += 1;
            return Ok(Wanted::No);
        }
        if responder.refused.is_some() {
            // The refusal is queued after earlier reads. Nothing follows it.
            return Ok(Wanted::No);
        }
        if msn == responder.expected && header.offset == 0 && responder.progress > 0 {
            // The peer restarts this message. The check below is that it is the same one.
            responder.progress = 0;
        }
        if msn < responder.expected {
            self.answer_again(qpn, header);
            return Ok(Wanted::No);
        }
        if msn != responder.expected || header.offset != responder.progress {
            // The peer sent it before it received a refusal, or an earlier frame was lost, or this
            // one is a duplicate.
            self.counters.dropped += 1;
            let behind = msn == responder.expected && header.offset < responder.progress;
            if !behind && !responder.resync && !responder.gap_reported {
                responder.gap_reported = true;
                responder
                    .nak
                    .get_or_insert((responder.expected, NakCode::Sequence));
                self.list(qpn);
            }
            return Ok(Wanted::No);
        }
        responder.resync = false;
        responder.gap_reported = false;
        let first = *responder.current.get_or_insert(*header);
        let continues = Header {
            offset: first.offset,
            payload: first.payload,
            ..*header
        };
        let needs = match header.kind {
            Kind::Write | Kind::WriteImm => Access::REMOTE_WRITE,
            Kind::ReadRequest => Access::REMOTE_READ,
            Kind::FetchAdd | Kind::CompareSwap => Access::REMOTE_ATOMIC,
            _ => Access::empty(),
        };
        // Without the right, the queue pair does not have the operation (IBA 9.7.4.1.5; rxe:
        // check_qp_attr_access).
        if continues != first || !qp.access.contains(needs) {
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return Ok(Wanted::No);
        }
        match header.kind {
            Kind::ReadRequest => {
                self.accept_read(shared, header);
                return Ok(Wanted::No);
            }
            Kind::FetchAdd | Kind::CompareSwap => return Ok(self.accept_atomic(shared, header, claim)),
            Kind::Nop => {
                responder.expected = responder.expected.wrapping_add(1);
                responder.current = None;
                responder.ack = Some(msn);
                self.list(qpn);
                return Ok(Wanted::No);
            }
            _ => {}
        }
        let lacks_receive = header.kind.takes_receive() && responder.taken.is_none() && {
            match qp.srq {
                Some(handle) => self.srqs.get(&handle).is_none_or(|srq| srq.queue.is_empty()),
                None => responder.queue.is_empty(),
            }
        };
        if lacks_receive {
            responder.nak = Some((msn, NakCode::ReceiverNotReady));
            responder.resync = true;
            responder.current = None;
            self.list(qpn);
            return Ok(Wanted::No);
        }
        if matches!(header.kind, Kind::Write | Kind::WriteImm) {
            Ok(self.accept_write(shared, header, claim))
        } else {
            Ok(self.accept_send(shared, header, claim))
        }
    }

    fn accept_write(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Wanted {
        let qpn = header.dst_qpn;
        let Some(pd) = self.qps.known(qpn).map(|qp| qp.pd) else {
            return Wanted::No;
        };
        let (key, addr, total) = (header.rkey, header.raddr, header.total);
        let right = Access::REMOTE_WRITE;
        // The whole message is in range, so this part is.
        let part = addr.wrapping_add(header.offset.into());
        let allowed = total == 0
            || self.regions.allows_peer(key, pd, qpn, addr, total.into(), right)
                && self
                    .regions
                    .claim_peer(claim, key, pd, qpn, part, header.payload.into(), right);
        if !allowed {
            self.refuse_access(shared, qpn, header);
            return Wanted::No;
        }
        if header.kind == Kind::WriteImm {
            self.take_for_message(shared, qpn);
        }
        Wanted::Payload
    }

    fn accept_send(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Wanted {
        let qpn = header.dst_qpn;
        self.take_for_message(shared, qpn);
        let Some(qp) = self.qps.known(qpn) else {
            return Wanted::No;
        };
        let Some(entry) = &qp.responder.taken else {
            defect("a message that needs a receive was accepted without one");
            return Wanted::No;
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
            return Wanted::Payload;
        };
        qp.complete_taken(status, None);
        self.refuse(shared, qpn, header.msn, code);
        Wanted::No
    }

    fn accept_read(&mut self, shared: &Shared, header: &Header) {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        self.flush_pending(Some(qpn));
        let Some(qp) = self.qps.known(qpn) else {
            return;
        };
        let (pd, total) = (qp.pd, u64::from(header.total));
        let right = Access::REMOTE_READ;
        let allowed = total == 0
            || self
                .regions
                .allows_peer(header.rkey, pd, qpn, header.raddr, total, right);
        let responder = &mut qp.responder;
        if responder.is_full() {
            return self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
        }
        if !allowed {
            return self.refuse_access(shared, qpn, header);
        }
        responder.reads.push_back(read_job(header, None, false));
        responder.expected = responder.expected.wrapping_add(1);
        responder.current = None;
        self.list(qpn);
    }

    fn accept_atomic(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Wanted {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        self.flush_pending(Some(qpn));
        let Some(qp) = self.qps.known(qpn) else {
            return Wanted::No;
        };
        if qp.responder.is_full() {
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return Wanted::No;
        }
        let (pd, right) = (qp.pd, Access::REMOTE_ATOMIC);
        if !self
            .regions
            .claim_peer(claim, header.rkey, pd, qpn, header.raddr, 8, right)
        {
            self.refuse_access(shared, qpn, header);
            return Wanted::No;
        }
        if header.raddr % 8 != 0 {
            self.regions.release(claim);
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return Wanted::No;
        }
        Wanted::Atomic
    }

    fn finish_atomic(&mut self, shared: &Shared, header: &Header, reachable: bool, found: Option<u64>) {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        if self.flush_if_due(qpn) {
            return;
        }
        let Some(value) = found else {
            let code = if reachable {
                // The address is aligned in the region, but not in this process.
                NakCode::InvalidRequest
            } else {
                NakCode::Operation
            };
            return self.refuse(shared, qpn, msn, code);
        };
        if let Some(qp) = self.qps.known(qpn) {
            let responder = &mut qp.responder;
            responder.store_atomic(msn, value);
            responder.reads.push_back(read_job(header, Some(value), false));
            responder.expected = responder.expected.wrapping_add(1);
            responder.current = None;
        }
        self.list(qpn);
    }

    /// Unbinds the window that a send names, if it is one of this queue pair. Returns whether it
    /// is.
    fn invalidate(&mut self, qpn: u32, rkey: u32) -> bool {
        let pd = self.qps.known(qpn).map(|qp| qp.pd);
        pd.is_some_and(|pd| self.regions.windows.invalidate(rkey, pd, Some(qpn)))
    }

    /// Answers a completed message that is repeated: its answer was lost or late.
    fn answer_again(&mut self, qpn: u32, header: &Header) {
        self.counters.dropped += 1;
        let Some(qp) = self.qps.known(qpn) else {
            return;
        };
        let (pd, access) = (qp.pd, qp.access);
        let responder = &mut qp.responder;
        let repeated = responder.reads.iter().filter(|job| job.again).count();
        let room = repeated < usize::from(MAX_READS);
        let queued = responder.reads.iter().any(|job| job.msn == header.msn);
        if header.kind.is_atomic() {
            // An atomic is performed once. The answer is the value that it found then.
            let found = responder.atomics.iter().find(|(msn, _)| *msn == header.msn);
            if let Some((_, value)) = found.copied().filter(|_| room && !queued) {
                responder.reads.push_back(read_job(header, Some(value), true));
            }
        } else if header.kind == Kind::ReadRequest {
            let len = u64::from(header.total);
            let right = Access::REMOTE_READ;
            let allowed = access.contains(right)
                && (len == 0
                    || self
                        .regions
                        .allows_peer(header.rkey, pd, qpn, header.raddr, len, right));
            if allowed && room && !queued {
                responder.reads.push_back(read_job(header, None, true));
            }
        } else if header.is_last() && responder.ack.is_none() && responder.reads.is_empty() {
            responder.ack = Some(responder.expected - 1);
        }
        self.list(qpn);
    }

    /// Completes a frame whose payload is in its place. `reachable` is false if CPU access to the
    /// memory failed.
    fn finish(&mut self, shared: &Shared, header: &Header, reachable: bool) {
        let qpn = header.dst_qpn;
        if self.flush_if_due(qpn) {
            return;
        }
        if header.kind == Kind::ReadResponse {
            return self.finish_read(shared, header, reachable);
        }
        let Some(qp) = self.qps.known(qpn) else {
            return;
        };
        if !reachable {
            qp.complete_taken(WcStatus::LOC_PROT_ERR, None);
            return self.refuse(shared, qpn, header.msn, NakCode::Operation);
        }
        qp.responder.progress = qp.responder.progress.saturating_add(header.payload);
        if header.is_last() {
            qp.responder.expected = qp.responder.expected.wrapping_add(1);
            qp.responder.progress = 0;
            qp.responder.current = None;
            qp.responder.ack = Some(header.msn);
            if header.kind == Kind::SendInv && !self.invalidate(qpn, header.rkey) {
                // The message is acknowledged. Only this end learns that its key was wrong (IBA
                // class J).
                if let Some(qp) = self.qps.known(qpn) {
                    qp.complete_taken(WcStatus::REM_INV_REQ_ERR, None);
                }
                self.list(qpn);
                return self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            }
            if let Some(qp) = self.qps.known(qpn).filter(|_| header.kind.takes_receive()) {
                qp.complete_taken(WcStatus::SUCCESS, Some(header));
            }
        }
        self.settle(shared, qpn);
        self.list(qpn);
    }
}

fn read_job(header: &Header, value: Option<u64>, again: bool) -> ReadJob {
    ReadJob {
        msn: header.msn,
        raddr: header.raddr,
        rkey: header.rkey,
        total: if value.is_some() { 8 } else { header.total },
        offset: 0,
        value,
        again,
    }
}
