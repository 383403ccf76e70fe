//! The state of a NIC behind its one lock, and the rules that both directions share.
//!
//! Payload moves outside the lock. `tx_qpn` and `rx_qpn` of a [`Link`] name the queue pair whose
//! payload a thread moves, so that destroying a queue pair or deregistering a region can wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::{IgnorePoison, lock};
use gaudi_verbs::provider::{CqHandle, QpHandle, QpType, SrqHandle};
use gaudi_verbs::{AsyncElement, AsyncEventType, Gid, WcStatus};

use crate::cable::Cable;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::cq::SoftCq;
use crate::error::defect;
use crate::events::Events;
use crate::fault::Faults;
use crate::link::Link;
use crate::objects::Objects;
use crate::pending::Pending;
use crate::qp::{Qp, RecvEntry, State};
use crate::region::{Claim, Regions};
use crate::wire::{Header, Kind, NakCode};
use crate::{MAX_AH, MAX_CQ, MAX_PD, MAX_QP, MAX_SRQ};

/// How long connecting a queue pair waits for cables to report their peers' GIDs.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// What the callers' threads and the NIC's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) gid: Gid,
    pub(crate) events: Events,
    pub(crate) faults: Arc<Faults>,
    pub(crate) clock: Clock,
    core: Mutex<Core>,
    /// Signaled when there is something to send.
    work: Condvar,
    /// Whether more than one thread waits for work.
    many: AtomicBool,
    /// Signaled when a thread releases a queue pair or a region, when it ends, and when a cable
    /// reports its peer's GID.
    pub(crate) idle: Condvar,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) max_wr: usize,
    pub(crate) max_sge: u32,
    pub(crate) queue: VecDeque<RecvEntry>,
    /// An event is raised as soon as fewer receives are left. 0 raises none.
    pub(crate) limit: u32,
}

impl Objects<Qp> {
    /// Returns a queue pair that cannot have been destroyed: the caller found it under the lock
    /// that it still holds, or a thread that destroys it waits for the caller.
    #[track_caller]
    pub(crate) fn known(&mut self, qpn: u32) -> Option<&mut Qp> {
        let qp = self.rows.get_mut(&qpn);
        if qp.is_none() {
            defect("a queue pair in use was destroyed");
        }
        qp
    }
}

/// The state of a NIC.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) regions: Regions,
    pub(crate) pds: Objects<()>,
    pub(crate) cqs: Objects<Arc<SoftCq>>,
    pub(crate) qps: Objects<Qp>,
    pub(crate) srqs: Objects<Srq>,
    /// Domain and link of each address handle.
    pub(crate) ahs: Objects<(u32, usize)>,
    /// In the order in which they were plugged in. None is removed.
    pub(crate) links: Vec<Link>,
    /// Written payload that is not visible yet, if the NIC is configured so.
    pub(crate) pending: Option<Pending>,
    pub(crate) counters: Counters,
    pub(crate) closing: bool,
}

impl Shared {
    pub(crate) fn new(
        name: String,
        gid: Gid,
        faults: Faults,
        pending: Option<Pending>,
        first_handle: u32,
        key_seed: Option<u64>,
    ) -> Result<Self> {
        let core = Core {
            regions: Regions::new(key_seed),
            pds: Objects::new("protection domain", MAX_PD, first_handle),
            cqs: Objects::new("completion queue", MAX_CQ, first_handle),
            qps: Objects::new("queue pair", MAX_QP, first_handle),
            srqs: Objects::new("shared receive queue", MAX_SRQ, first_handle),
            ahs: Objects::new("address handle", MAX_AH, first_handle),
            links: Vec::new(),
            pending,
            counters: Counters::default(),
            closing: false,
        };
        Ok(Self {
            name,
            gid,
            events: Events::new()?,
            clock: faults.clock.clone(),
            faults: Arc::new(faults),
            core: Mutex::new(core),
            work: Condvar::new(),
            many: AtomicBool::new(false),
            idle: Condvar::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Wakes the sending threads that may have something to send.
    pub(crate) fn wake(&self) {
        if self.many.load(Ordering::Relaxed) {
            self.work.notify_all();
        } else {
            self.work.notify_one();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.work.notify_all();
    }

    /// Sleeps until `idle` is signaled.
    pub(crate) fn wait_idle<'a>(&self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.idle.wait(core).ignore_poison()
    }

    pub(crate) fn wait_idle_for<'a>(
        &self,
        core: MutexGuard<'a, Core>,
        time: Duration,
    ) -> MutexGuard<'a, Core> {
        self.idle.wait_timeout(core, time).ignore_poison().0
    }

    /// Sleeps until there may be something to send, or `time` is over.
    pub(crate) fn wait_work<'a>(&self, core: MutexGuard<'a, Core>, time: Duration) -> MutexGuard<'a, Core> {
        self.work.wait_timeout(core, time).ignore_poison().0
    }

    /// Adds a cable and returns its index. The cable first sends the GID of this NIC.
    pub(crate) fn plug(&self, cable: &Arc<Cable>, peer: Option<Gid>) -> usize {
        let mut core = self.lock();
        let half = |from: usize| u64::from_be_bytes(std::array::from_fn(|at| self.gid.0[from + at]));
        let mut hello = Header::new(Kind::Hello, 0, 0, half(0));
        hello.raddr = half(8);
        let qps = core.qps.rows.len();
        core.links.push(Link::new(cable, peer, hello, qps));
        let link = core.links.len() - 1;
        if link > 0 {
            self.many.store(true, Ordering::Relaxed);
        }
        link
    }

    /// Returns the cable that leads to a port, or `None`. Waits for cables whose peer has not sent
    /// its GID yet.
    ///
    /// A NIC with one cable sends everything over it that is not for itself, like a wire without
    /// a switch. A dead cable is returned only if no other one leads to the port.
    pub(crate) fn route<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        gid: &Gid,
    ) -> (MutexGuard<'a, Core>, Option<usize>) {
        let deadline = Instant::now() + HELLO_TIMEOUT;
        loop {
            let leads = |link: &Link| link.peer == Some(*gid);
            // A cable that the other end closed is dead once its last frames are received: prefer
            // any other.
            let live = (core.links.iter().enumerate())
                .filter(|(_, link)| leads(link) && link.down.is_none())
                .min_by_key(|(_, link)| link.is_hung_up())
                .map(|(index, _)| index);
            if live.is_some() || *gid == self.gid {
                return (core, live);
            }
            let others = core.links.iter().enumerate();
            let mut cables = others.filter(|(_, link)| link.peer != Some(self.gid));
            if let (Some((only, _)), None) = (cables.next(), cables.next()) {
                return (core, Some(only));
            }
            let silent = |link: &Link| link.peer.is_none() && link.down.is_none();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !core.links.iter().any(silent) {
                let dead = core.links.iter().position(leads);
                return (core, dead);
            }
            core = self.wait_idle_for(core, left);
        }
    }

    /// Takes a cable down: queue pairs connected over it enter the error state, and both threads
    /// end.
    pub(crate) fn cable_down(&self, core: &mut Core, link: usize, error: Error) {
        let closing = core.closing;
        let cable = &mut core.links[link];
        if cable.down.is_none() {
            if closing || error.kind() == ErrorKind::Disconnected {
                tracing::debug!(nic = self.name, %error, "softnic (software): the cable is down");
            } else {
                tracing::error!(nic = self.name, %error, "softnic (software): the cable is down");
            }
            cable.down = Some(error);
            if !closing {
                self.events.raise(AsyncEventType::PORT_ERR, AsyncElement::Port(1));
            }
        }
        let selected = |core: &Core, which: &dyn Fn(&Qp) -> bool| -> Vec<u32> {
            let qps = core.qps.rows.values().filter(|qp| which(qp));
            let mut qpns: Vec<u32> = qps.map(|qp| qp.qpn).collect();
            // In an order that does not depend on the map.
            qpns.sort_unstable();
            qpns
        };
        let connected = selected(core, &|qp| {
            let is_connected = matches!(qp.state, State::ReadyToReceive | State::ReadyToSend);
            qp.qp_type == QpType::Rc && qp.link == link && is_connected
        });
        for qpn in connected {
            core.enter_error(self, qpn, WcStatus::RETRY_EXC_ERR);
        }
        for qpn in std::mem::take(&mut core.links[link].ready) {
            if let Some(qp) = core.qps.rows.get_mut(&qpn) {
                qp.listed = false;
            }
        }
        for qpn in selected(core, &|qp| qp.qp_type == QpType::Ud) {
            core.list(qpn);
            core.settle(self, qpn);
        }
        core.links[link].shut();
        self.work.notify_all();
        self.idle.notify_all();
    }

    /// Takes every cable to another port down, and the cable `link`.
    pub(crate) fn port_down(&self, core: &mut Core, link: usize, error: &Error) {
        for index in 0..core.links.len() {
            let cable = &core.links[index];
            let is_own_loop = cable.peer == Some(self.gid);
            if cable.down.is_none() && (index == link || !is_own_loop) {
                self.cable_down(core, index, error.clone());
            }
        }
    }

    /// Releases claimed memory and wakes the threads that wait for it.
    pub(crate) fn release(&self, core: &mut Core, claim: &mut Claim) {
        core.regions.release(claim);
        self.idle.notify_all();
    }
}

impl Core {
    /// Makes the held-back payload of one queue pair visible, or all payload if `qpn` is `None`.
    pub(crate) fn flush_pending(&mut self, qpn: Option<u32>) {
        if let Some(pending) = &mut self.pending {
            pending.flush(&mut self.regions, qpn);
        }
    }

    /// Lists a queue pair as one that may have something to send. Datagrams that would go over a
    /// dead cable are dropped and complete, as in any network.
    pub(crate) fn list(&mut self, qpn: u32) {
        self.drop_unreachable(qpn);
        if let Some(qp) = self.qps.rows.get_mut(&qpn).filter(|qp| !qp.listed) {
            // No thread reads the list of a dead cable.
            let link = self.links.get_mut(qp.next_link());
            if let Some(link) = link.filter(|link| link.down.is_none()) {
                qp.listed = true;
                link.ready.push_back(qpn);
            }
        }
    }

    fn drop_unreachable(&mut self, qpn: u32) {
        let sending = self.links.iter().any(|link| link.tx_qpn == Some(qpn));
        let sends = |qp: &&mut Qp| qp.qp_type == QpType::Ud && qp.state == State::ReadyToSend;
        let Some(qp) = self.qps.rows.get_mut(&qpn).filter(sends).filter(|_| !sending) else {
            // The sending thread completes the datagram that it sends.
            return;
        };
        while !qp.requester.queue.is_empty() {
            let link = self.links.get(qp.next_link());
            if link.is_none_or(|link| link.down.is_none()) {
                break;
            }
            qp.complete_oldest(WcStatus::SUCCESS);
            self.counters.datagrams_dropped += 1;
        }
    }

    /// Returns whether a thread moves bytes of a queue pair.
    pub(crate) fn is_moving(&self, qpn: u32) -> bool {
        let moves = |link: &Link| link.tx_qpn == Some(qpn) || link.rx_qpn == Some(qpn);
        self.links.iter().any(moves)
    }

    /// Returns whether a thread sends a frame of a queue pair.
    pub(crate) fn is_sending(&self, qpn: u32) -> bool {
        self.links.iter().any(|link| link.tx_qpn == Some(qpn))
    }

    /// Takes the next receive of a queue pair, from its own queue or its shared one.
    pub(crate) fn take_receive(&mut self, shared: &Shared, qpn: u32) -> Option<RecvEntry> {
        let qp = self.qps.known(qpn)?;
        let Some(handle) = qp.srq else {
            return qp.responder.queue.pop_front();
        };
        let Some(srq) = self.srqs.rows.get_mut(&handle) else {
            defect("a shared receive queue was destroyed while a queue pair takes from it");
            return None;
        };
        let entry = srq.queue.pop_front();
        if entry.is_some() && srq.limit > 0 && srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            let srq = AsyncElement::Srq(SrqHandle(handle));
            shared.events.raise(AsyncEventType::SRQ_LIMIT_REACHED, srq);
        }
        entry
    }

    /// Takes a receive for the message that arrives, unless it has one.
    pub(crate) fn take_for_message(&mut self, shared: &Shared, qpn: u32) {
        if self.qps.known(qpn).is_some_and(|qp| qp.responder.taken.is_none()) {
            let entry = self.take_receive(shared, qpn);
            if let Some(qp) = self.qps.known(qpn) {
                qp.responder.taken = entry;
            }
        }
    }

    /// Moves a queue pair to the error state. The oldest send ends with `oldest`, everything else
    /// is flushed. Unanswered reads of the peer are refused: from now on the owner may reuse the
    /// memory.
    pub(crate) fn enter_error(&mut self, shared: &Shared, qpn: u32, oldest: WcStatus) {
        let moving = self.moves_memory_of(qpn);
        let Some(qp) = self.qps.known(qpn).filter(|qp| qp.state != State::Error) else {
            // It is in the error state already.
            return;
        };
        qp.state = State::Error;
        qp.responder.current = None;
        let owes = qp.responder.refuse_reads();
        if moving {
            // A buffer must not complete while a thread still reads or writes it.
            qp.flush_later = Some(oldest);
        } else {
            qp.flush(oldest);
        }
        if qp.srq.is_some() {
            let qp = AsyncElement::Qp(QpHandle(qpn));
            shared.events.raise(AsyncEventType::QP_LAST_WQE_REACHED, qp);
        }
        self.report_overflow(shared, qpn);
        if owes {
            self.list(qpn);
            shared.wake();
        }
    }

    /// Moves a connected queue pair to the error state and raises the event of a failed queue pair.
    /// Returns whether the queue pair was not in error before.
    pub(crate) fn fail_qp(&mut self, shared: &Shared, qpn: u32) -> bool {
        let is_failing = self.can_fail(qpn);
        if is_failing {
            self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
            let qp = AsyncElement::Qp(QpHandle(qpn));
            shared.events.raise(AsyncEventType::QP_FATAL, qp);
        }
        is_failing
    }

    /// Whether a queue pair is connected or connecting, and not in error.
    pub(crate) fn can_fail(&self, qpn: u32) -> bool {
        let qp = self.qps.rows.get(&qpn);
        qp.is_some_and(|qp| !matches!(qp.state, State::Reset | State::Error))
    }

    /// Whether a thread processes a frame whose buffers a flush would complete.
    pub(crate) fn moves_memory_of(&self, qpn: u32) -> bool {
        match self.qps.rows.get(&qpn).map(|qp| qp.qp_type) {
            Some(QpType::Rc) => self.is_moving(qpn),
            // The cable owns the receive of an incoming datagram.
            _ => self.is_sending(qpn),
        }
    }

    /// Flushes a queue pair that entered the error state while a thread moved its bytes, once no
    /// thread does. Returns true if the queue pair is in error or destroyed.
    pub(crate) fn flush_if_due(&mut self, qpn: u32) -> bool {
        let moving = self.moves_memory_of(qpn);
        let Some(qp) = self.qps.rows.get_mut(&qpn) else {
            // The frame was an answer of a queue pair that is destroyed.
            return true;
        };
        let Some(oldest) = qp.flush_later else {
            return false;
        };
        if !moving {
            qp.flush_later = None;
            qp.flush(oldest);
        }
        true
    }

    /// Raises an event if a completion queue overflowed, once. Returns whether it did.
    fn report_overflow(&mut self, shared: &Shared, qpn: u32) -> bool {
        let lost = self.qps.known(qpn).and_then(|qp| qp.lost.take());
        if let Some(cq) = lost {
            tracing::error!(qpn, "softnic (software): a completion queue overflowed");
            let cq = AsyncElement::Cq(CqHandle(cq));
            shared.events.raise(AsyncEventType::CQ_ERR, cq);
        }
        lost.is_some()
    }

    /// Handles what completed sends uncover: a next send that is known to fail, and a completion
    /// queue that overflowed.
    pub(crate) fn settle(&mut self, shared: &Shared, qpn: u32) {
        let Some(qp) = self.qps.known(qpn).filter(|qp| qp.state != State::Error) else {
            // The error state has flushed everything.
            return;
        };
        let oldest = qp.requester.queue.front().filter(|_| qp.requester.cursor == 0);
        let failed = oldest.and_then(|entry| entry.failed);
        if qp.lost.is_some() && self.report_overflow(shared, qpn) {
            return self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
        }
        if let Some(status) = failed {
            self.enter_error(shared, qpn, status);
        }
    }

    /// Refuses a message for good. The refusal and the error state follow the unanswered reads
    /// before it (IBA 9.7.5.1: responses are in order).
    pub(crate) fn refuse(&mut self, shared: &Shared, qpn: u32, msn: u64, code: NakCode) {
        let mut waits = false;
        if let Some(qp) = self.qps.known(qpn) {
            let responder = &mut qp.responder;
            responder.nak = Some((msn, code));
            responder.refused = responder.nak;
            responder.current = None;
            waits = !responder.reads.is_empty();
        }
        self.list(qpn);
        if !waits {
            self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// Refuses a request that its key does not allow. A receive reports it here, or else an event
    /// (IBA C9-222.1).
    pub(crate) fn refuse_access(&mut self, shared: &Shared, qpn: u32, header: &Header) {
        let mtu = self.qps.known(qpn).map_or(0, |qp| qp.mtu);
        // Immediate data comes with the last packet. A longer message is refused at its first one,
        // before it takes a receive.
        if header.kind == Kind::WriteImm && header.total <= mtu {
            self.take_for_message(shared, qpn);
            if let Some(qp) = self.qps.known(qpn) {
                qp.complete_taken(WcStatus::REM_ACCESS_ERR, None);
            }
        } else {
            let qp = AsyncElement::Qp(QpHandle(qpn));
            shared.events.raise(AsyncEventType::QP_ACCESS_ERR, qp);
        }
        self.refuse(shared, qpn, header.msn, NakCode::Access);
    }

    /// Answers a request that no queue pair can answer. Returns `None`, as its payload is not
    /// wanted.
    ///
    /// # Errors
    /// The peer sends many such requests and does not take the answers.
    pub(crate) fn refuse_stray<T>(
        &mut self,
        link: usize,
        request: &Header,
        code: NakCode,
    ) -> std::result::Result<Option<T>, &'static str> {
        let mut answer = Header::new(Kind::Nak, request.dst_qpn, request.src_qpn, request.msn);
        answer.nak = Some(code);
        if self.links[link].refuse_stray(answer) {
            return Ok(None);
        }
        Err("the peer sends to queue pairs that do not exist and does not take the answers")
    }

    /// Makes a queue pair that is being destroyed or reset idle: it starts nothing new, the frames
    /// that are moving end, and no list has it any more.
    pub(crate) fn quiesce<'a>(
        mut core: MutexGuard<'a, Self>,
        shared: &Shared,
        qpn: u32,
    ) -> MutexGuard<'a, Self> {
        core.silence(qpn);
        while core.is_moving(qpn) {
            core = shared.wait_idle(core);
        }
        // Again: the last frame may have left an answer.
        core.silence(qpn);
        for link in &mut core.links {
            link.ready.retain(|listed| *listed != qpn);
        }
        core
    }

    /// Makes a queue pair that is being destroyed or reset start nothing new. The answers that it
    /// still owes no longer need it.
    fn silence(&mut self, qpn: u32) {
        let Some(qp) = self.qps.rows.get_mut(&qpn) else {
            // The handle is invalid, which the caller reports.
            return;
        };
        qp.state = State::Error;
        let responder = &mut qp.responder;
        responder.refuse_reads();
        let (nak, ack) = (responder.nak.take(), responder.ack.take());
        let mut header = Header::new(Kind::Nak, qpn, qp.remote, 0);
        match (nak, ack) {
            (Some((msn, code)), _) => (header.msn, header.nak) = (msn, Some(code)),
            (None, Some(msn)) => (header.kind, header.msn) = (Kind::Ack, msn),
            // It owes no answer.
            (None, None) => return,
        }
        if let Some(link) = self.links.get_mut(qp.link).filter(|link| link.down.is_none()) {
            if !link.push_stray(header) {
                // As if the network lost it: the peer asks again and is refused then.
                tracing::warn!(
                    qpn,
                    "softnic (software): the peer takes no answers, one is dropped"
                );
            }
        }
    }
}
