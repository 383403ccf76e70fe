//! [`Receiver`]: the receiving end of a cable, the only one that reads from it. It never writes to
//! it, so that two busy NICs cannot block each other. A thread of its own steps it, or a
//! [`Fabric`](crate::Fabric).

#![expect(unsafe_code, reason = "claimed memory is handed to the cable")]

use gaudi_dmabuf::Directions;
use gaudi_seam::fault::{EventFields, NicEvent};
use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, GRH_BYTES, Gid, WcStatus};

use crate::MAX_READS;
use crate::cable::Cable;
use crate::cable::socket::FrameEnd;
use crate::core::{Core, Shared};
use crate::error::defect;
use crate::link::Link;
use crate::pending::Write;
use crate::qp::{Qp, ReadJob, RecvEntry, State};
use crate::region::{AtomicOp, Claim, Piece, Reach, atomic, scatter};
use crate::wire::{HEADER, Header, Kind, NakCode, OPERANDS};

const OPERATION: &str = "softnic receive";
/// Size of the buffer for discarded payload.
const SCRATCH: usize = 64 * 1024;

/// The destination of a frame's payload, which is discarded if it has none.
pub(crate) enum Wanted {
    /// Into the claimed memory.
    Payload,
    /// Into the claimed memory, after a route header that fills this many pieces.
    Datagram(usize),
    /// It is the operands of an atomic on the claimed memory.
    Atomic,
}

/// Runs until the cable is down.
pub(crate) fn run(shared: &Shared, link: usize, cable: &Cable) {
    let mut receiver = Receiver::new(link, SCRATCH);
    while receiver.step(shared, cable) {}
}

/// The receiving end of a cable.
pub(crate) struct Receiver {
    link: usize,
    claim: Claim,
    /// A buffer for discarded payload.
    scratch: Vec<u8>,
}

impl Receiver {
    /// A receiving end with this many bytes for discarded payload, which a cable in memory does not
    /// need.
    pub(crate) fn new(link: usize, scratch: usize) -> Self {
        Self {
            link,
            claim: Claim::new(),
            scratch: vec![0; scratch],
        }
    }

    /// Receives one frame. Returns false once the cable is down.
    pub(crate) fn step(&mut self, shared: &Shared, cable: &Cable) -> bool {
        let link = self.link;
        let error = match receive_frame(shared, link, cable, &mut self.claim, &mut self.scratch) {
            Ok(true) => return true,
            Ok(false) => Error::new(ErrorKind::Disconnected, OPERATION).because("the peer closed the cable"),
            Err(error) => error,
        };
        let mut core = shared.lock();
        // A frame that was cut leaves a claim, and maybe a flush that waited for it.
        if let Some(qpn) = core.links[link].rx_qpn.take() {
            let entry = core.links[link].datagram.take();
            core.complete_receive(qpn, entry, WcStatus::WR_FLUSH_ERR);
            core.flush_if_due(qpn);
        }
        shared.release(&mut core, &mut self.claim);
        shared.cable_down(&mut core, link, error);
        false
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
    let Some(wanted) = core.accept(shared, link, &header, claim).map_err(protocol)? else {
        drop(core);
        shared.wake();
        cable.discard(header.payload as usize, scratch, end)?;
        return Ok(true);
    };
    core.links[link].rx_qpn = Some(header.dst_qpn);
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
            return Ok(unsafe { atomic(*piece, op) });
        }
        Wanted::Datagram(route) => {
            // A datagram may arrive before the peer's GID, from a peer that sends none.
            let peer = shared.lock().links[link].peer.unwrap_or_default();
            let (front, rest) = pieces.split_at(route.min(pieces.len()));
            // SAFETY: as above.
            unsafe { scatter(front, &route_header(&peer, &shared.gid, header)) };
            // SAFETY: as above.
            unsafe { cable.receive(rest, end) }?;
        }
        // SAFETY: as above.
        _ => unsafe { cable.receive(pieces, end) }?,
    }
    Ok(None)
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
    ) -> Result<Option<Wanted>, &'static str> {
        self.counters.rx.add(header);
        if header.damaged {
            self.counters.dropped += 1;
            return Ok(None);
        }
        Ok(match header.kind {
            Kind::Hello => {
                let mut gid = [0; 16];
                gid[..8].copy_from_slice(&header.msn.to_be_bytes());
                gid[8..].copy_from_slice(&header.raddr.to_be_bytes());
                self.greet(shared, link, Gid(gid))?;
                None
            }
            Kind::Ack | Kind::Nak | Kind::ReadResponse => self.accept_answer(shared, link, header, claim),
            Kind::Datagram => self.accept_datagram(shared, link, header, claim),
            _ => self.accept_request(shared, link, header, claim)?,
        })
    }

    /// Holds back the payload of a write.
    fn hold_back(&mut self, header: &Header, bytes: Vec<u8>) {
        let addr = header.raddr.wrapping_add(header.offset.into());
        let to = self
            .qps
            .known(header.dst_qpn)
            .map(|qp| qp.reach(header.rkey, addr, header.payload, Access::REMOTE_WRITE));
        if let (Some(pending), Some(to)) = (&mut self.pending, to) {
            pending.hold_back(&mut self.regions, Write { to, bytes });
        }
    }

    /// Completes a receive that was taken, unless its queue pair is destroyed.
    fn complete_receive(&mut self, qpn: u32, entry: Option<RecvEntry>, status: WcStatus) {
        if let Some(entry) = entry {
            if let Some(qp) = self.qps.known(qpn) {
                qp.complete_receive(&entry, status, None);
            }
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
    ) -> Option<Wanted> {
        let qpn = header.dst_qpn;
        let receiver = self.qps.rows.get(&qpn).filter(|qp| {
            qp.qp_type == QpType::Ud
                && qp.qkey == header.rkey
                && matches!(qp.state, State::ReadyToReceive | State::ReadyToSend)
        });
        let next = receiver.and_then(|qp| Some((qp, self.next_receive(qp)?)));
        let Some((qp, entry)) = next else {
            self.counters.datagrams_dropped += 1;
            return None;
        };
        let (pd, is_shared, sges) = (qp.pd, qp.srq.is_some(), entry.sges);
        if sges.total < u64::from(header.total) + u64::from(GRH_BYTES) {
            self.counters.datagrams_dropped += 1;
            // It uses up a receive of a shared queue, and no other (rxe_resp.c, RESPST_ERR_LENGTH).
            if is_shared {
                let entry = self.take_receive(shared, qpn);
                self.complete_receive(qpn, entry, WcStatus::REM_INV_REQ_ERR);
            }
            return None;
        }
        let (sges, right) = (sges.as_slice(), Access::LOCAL_WRITE);
        let payload = GRH_BYTES..GRH_BYTES + header.payload;
        let mut claimed = self.regions.claim_part(claim, sges, pd, 0..GRH_BYTES, right);
        let route = claim.pieces.len();
        claimed = claimed && self.regions.claim_part(claim, sges, pd, payload, right);
        let entry = self.take_receive(shared, qpn);
        if entry.is_none() {
            defect("the receive of a datagram vanished under the lock");
        }
        if !claimed {
            self.regions.release(claim);
            self.complete_receive(qpn, entry, WcStatus::LOC_PROT_ERR);
            self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            return None;
        }
        self.links[link].datagram = entry;
        Some(Wanted::Datagram(route))
    }

    /// Returns the receive that the next message takes, from the queue pair's own queue or its
    /// shared one.
    fn next_receive<'a>(&'a self, qp: &'a Qp) -> Option<&'a RecvEntry> {
        match qp.srq {
            Some(handle) => self.srqs.rows.get(&handle)?.queue.front(),
            None => qp.responder.queue.front(),
        }
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
    ) -> Result<Option<Wanted>, &'static str> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let Some(qp) = self.qps.rows.get_mut(&qpn).filter(|qp| qp.qp_type == QpType::Rc) else {
            return self.refuse_stray(link, header, NakCode::NoPeer);
        };
        let responder = &mut qp.responder;
        match qp.state {
            State::Reset | State::Init if header.offset == 0 => {
                return self.refuse_stray(link, header, NakCode::NotConnected);
            }
            State::Reset | State::Init => return Ok(None),
            _ if qp.remote != header.src_qpn || qp.link != link => {
                return self.refuse_stray(link, header, NakCode::NoPeer);
            }
            // An answer was lost. Repeat why the connection ended, or acknowledge the message.
            State::Error if responder.refused.is_some() => {
                responder.nak = responder.refused;
                return Ok(self.list_only(qpn));
            }
            _ if !responder.is_in_window(msn) => {
                self.counters.dropped += 1;
                return Ok(None);
            }
            State::Error if msn < responder.expected && !header.kind.is_answered_by_data() => {
                responder.ack = Some(responder.expected - 1);
                return Ok(self.list_only(qpn));
            }
            State::Error if responder.has_answer() => {
                // After the answers that are still queued. A queued refusal ends the connection.
                responder.nak.get_or_insert((msn, NakCode::NoPeer));
                return Ok(self.list_only(qpn));
            }
            State::Error => return self.refuse_stray(link, header, NakCode::NoPeer),
            State::ReadyToReceive | State::ReadyToSend => {}
        }
        if responder.refused.is_some() {
            // The refusal is queued after earlier reads. Nothing follows it.
            return Ok(None);
        }
        if msn == responder.expected && header.offset == 0 && responder.progress > 0 {
            // The peer restarts this message. The check below is that it is the same one.
            responder.progress = 0;
        }
        if msn < responder.expected {
            self.answer_again(qpn, header);
            return Ok(None);
        }
        if msn != responder.expected || header.offset != responder.progress {
            // The peer sent it before it received a refusal, or an earlier frame was lost, or this
            // one is a duplicate.
            self.counters.dropped += 1;
            let behind = msn == responder.expected && header.offset < responder.progress;
            if !behind && !responder.resync && !responder.gap_reported {
                responder.gap_reported = true;
                let gap = (responder.expected, NakCode::Sequence);
                responder.nak.get_or_insert(gap);
                self.list(qpn);
            }
            return Ok(None);
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
            return Ok(None);
        }
        match header.kind {
            Kind::ReadRequest => return Ok(self.accept_read(shared, header)),
            Kind::FetchAdd | Kind::CompareSwap => return Ok(self.accept_atomic(shared, header, claim)),
            Kind::Nop => {
                responder.advance();
                responder.ack = Some(msn);
                return Ok(self.list_only(qpn));
            }
            _ => {}
        }
        let needs_receive = header.kind.takes_receive() && responder.taken.is_none();
        let is_empty = |srq| self.srqs.rows.get(&srq).is_none_or(|srq| srq.queue.is_empty());
        if needs_receive && qp.srq.map_or(responder.queue.is_empty(), is_empty) {
            responder.nak = Some((msn, NakCode::ReceiverNotReady));
            responder.resync = true;
            responder.current = None;
            return Ok(self.list_only(qpn));
        }
        Ok(match header.kind {
            Kind::Write | Kind::WriteImm => self.accept_write(shared, header, claim),
            _ => self.accept_send(shared, header, claim),
        })
    }

    /// Lists a queue pair whose frame is answered without its payload, so `None`.
    fn list_only(&mut self, qpn: u32) -> Option<Wanted> {
        self.list(qpn);
        None
    }

    /// Applies the fault rules to a message of a peer that uses a region.
    fn use_region(&mut self, shared: &Shared, reach: Reach) {
        let Some(region) = self.regions.region_of(reach).filter(|_| reach.len > 0) else {
            return;
        };
        let fields = EventFields {
            queue: reach.qpn.into(),
            address: reach.addr,
            size: reach.len,
            id: reach.key.into(),
            ..EventFields::default()
        };
        // The grammar allows no verdict but a revocation.
        if let Some(hit) = shared.faults.meet(NicEvent::Region, &fields).decided {
            self.regions.revoke(region);
            shared.faults.happened(hit);
        }
    }

    fn accept_write(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Option<Wanted> {
        let qpn = header.dst_qpn;
        let qp = self.qps.known(qpn)?;
        let whole = qp.reach(header.rkey, header.raddr, header.total, Access::REMOTE_WRITE);
        if header.offset == 0 {
            self.use_region(shared, whole);
        }
        // The whole message is in range, so this part is.
        let part = Reach {
            addr: whole.addr.wrapping_add(header.offset.into()),
            len: header.payload.into(),
            ..whole
        };
        let allowed =
            header.total == 0 || self.regions.allows_peer(whole) && self.regions.claim_peer(claim, part);
        if !allowed {
            self.refuse_access(shared, qpn, header);
            return None;
        }
        if header.kind == Kind::WriteImm {
            self.take_for_message(shared, qpn);
        }
        Some(Wanted::Payload)
    }

    fn accept_send(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Option<Wanted> {
        let qpn = header.dst_qpn;
        self.take_for_message(shared, qpn);
        let qp = self.qps.known(qpn)?;
        let Some(entry) = &qp.responder.taken else {
            defect("a message that needs a receive was accepted without one");
            return None;
        };
        let (sges, right) = (entry.sges.as_slice(), Access::LOCAL_WRITE);
        let part = header.offset..header.offset + header.payload;
        let (status, code) = if u64::from(header.total) > entry.sges.total {
            (WcStatus::LOC_LEN_ERR, NakCode::InvalidRequest)
        } else if self.regions.claim_part(claim, sges, qp.pd, part, right) {
            return Some(Wanted::Payload);
        } else {
            (WcStatus::LOC_PROT_ERR, NakCode::Operation)
        };
        qp.complete_taken(status, None);
        self.refuse(shared, qpn, header.msn, code);
        None
    }

    fn accept_read(&mut self, shared: &Shared, header: &Header) -> Option<Wanted> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        self.flush_pending(Some(qpn));
        let qp = self.qps.known(qpn)?;
        let reach = qp.reach(header.rkey, header.raddr, header.total, Access::REMOTE_READ);
        self.use_region(shared, reach);
        let allowed = self.regions.allows_peer(reach);
        let responder = &mut self.qps.known(qpn)?.responder;
        if responder.is_full() {
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return None;
        }
        if !allowed {
            self.refuse_access(shared, qpn, header);
            return None;
        }
        responder.reads.push_back(read_job(header, None, false));
        responder.advance();
        self.list_only(qpn)
    }

    fn accept_atomic(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Option<Wanted> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        self.flush_pending(Some(qpn));
        let qp = self.qps.known(qpn)?;
        if qp.responder.is_full() {
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return None;
        }
        let reach = qp.reach(header.rkey, header.raddr, 8, Access::REMOTE_ATOMIC);
        self.use_region(shared, reach);
        if !self.regions.claim_peer(claim, reach) {
            self.refuse_access(shared, qpn, header);
            return None;
        }
        if header.raddr % 8 != 0 {
            self.regions.release(claim);
            self.refuse(shared, qpn, msn, NakCode::InvalidRequest);
            return None;
        }
        Some(Wanted::Atomic)
    }

    fn finish_atomic(&mut self, shared: &Shared, header: &Header, reachable: bool, found: Option<u64>) {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        if self.flush_if_due(qpn) {
            return;
        }
        let Some(value) = found else {
            let code = match reachable {
                // The address is aligned in the region, but not in this process.
                true => NakCode::InvalidRequest,
                false => NakCode::Operation,
            };
            return self.refuse(shared, qpn, msn, code);
        };
        if let Some(qp) = self.qps.known(qpn) {
            let responder = &mut qp.responder;
            responder.store_atomic(msn, value);
            responder.reads.push_back(read_job(header, Some(value), false));
            responder.advance();
        }
        self.list(qpn);
    }

    /// Answers a completed message that is repeated: its answer was lost or late.
    fn answer_again(&mut self, qpn: u32, header: &Header) {
        self.counters.dropped += 1;
        let Some(qp) = self.qps.known(qpn) else {
            return;
        };
        let reach = qp.reach(header.rkey, header.raddr, header.total, Access::REMOTE_READ);
        let may_read = qp.access.contains(Access::REMOTE_READ);
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
            if may_read && self.regions.allows_peer(reach) && room && !queued {
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
        let responder = &mut qp.responder;
        responder.progress = responder.progress.saturating_add(header.payload);
        if header.is_last() {
            responder.advance();
            responder.progress = 0;
            responder.ack = Some(header.msn);
            let windows = &mut self.regions.windows;
            if header.kind == Kind::SendInv && !windows.invalidate(header.rkey, qp.pd, Some(qpn)) {
                // The message is acknowledged. Only this end learns that its key was wrong (IBA
                // class J).
                qp.complete_taken(WcStatus::REM_INV_REQ_ERR, None);
                self.list(qpn);
                return self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            }
            if header.kind.takes_receive() {
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
