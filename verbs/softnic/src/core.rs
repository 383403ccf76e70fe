//! All that a NIC knows, behind its one lock, and the rules that both directions share.
//!
//! Payload moves outside the lock. What the threads of a cable are moving is named in `tx_qpn` and `rx_qpn`, so that whoever destroys a
//! queue pair or deregisters a region can wait for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::provider::{CqHandle, QpHandle, QpType, SrqHandle};
use gaudi_verbs::{AsyncElement, AsyncEventType, Gid, WcStatus};

use crate::cable::Cable;
use crate::counters::Counters;
use crate::cq::SoftCq;
use crate::events::Events;
use crate::pending::Pending;
use crate::qp::{Qp, RecvEntry, State};
use crate::region::{Claim, Regions};
use crate::wire::{Header, Kind, NakCode};

/// Answers to queue pairs that are not ours any more; a peer that causes more without reading them loses the cable.
const MAX_STRAYS: usize = 1024;
/// How long a queue pair that is to be connected waits for cables to say where they lead.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// What the user's threads and the NIC's share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) gid: Gid,
    pub(crate) events: Events,
    core: Mutex<Core>,
    /// There is something to send.
    work: Condvar,
    /// More than one thread waits for work.
    many: AtomicBool,
    /// A thread has let go of a queue pair or a region, has ended, or a cable has said where it leads.
    pub(crate) idle: Condvar,
}

/// One cable and what its two threads are at.
#[derive(Debug)]
pub(crate) struct Link {
    /// Its threads own it: a dead one's descriptor goes with them.
    cable: Weak<Cable>,
    /// Where it leads, once the other end has said so.
    pub(crate) peer: Option<Gid>,
    /// The other end has said it.
    pub(crate) greeted: bool,
    /// Queue pairs that may have something to send, in turn.
    pub(crate) ready: VecDeque<u32>,
    /// Answers that belong to no queue pair.
    pub(crate) strays: VecDeque<Header>,
    pub(crate) tx_qpn: Option<u32>,
    pub(crate) rx_qpn: Option<u32>,
    /// The receive that a datagram on its way in has taken.
    pub(crate) datagram: Option<RecvEntry>,
    /// Why it is dead.
    pub(crate) down: Option<Error>,
    pub(crate) tx_ended: bool,
}

impl Link {
    /// Whether the other end closed the cable. Frames that it sent before may still be in it.
    fn is_hung_up(&self) -> bool {
        self.cable.upgrade().is_none_or(|cable| cable.is_hung_up())
    }

    /// Whether the cable leads to this port now and for longer than its last frames.
    pub(crate) fn holds(&self, gid: &Gid) -> bool {
        self.peer == Some(*gid) && self.down.is_none() && !self.is_hung_up()
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) max_wr: usize,
    pub(crate) max_sge: u32,
    pub(crate) queue: VecDeque<RecvEntry>,
    /// Tell as soon as fewer are left; 0 is never.
    pub(crate) limit: u32,
}

/// The state of a NIC.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) regions: Regions,
    pub(crate) pds: HashSet<u32>,
    pub(crate) cqs: HashMap<u32, Arc<SoftCq>>,
    pub(crate) qps: HashMap<u32, Qp>,
    pub(crate) srqs: HashMap<u32, Srq>,
    /// Where address handles lead.
    pub(crate) ahs: HashMap<u32, (u32, usize)>,
    /// In the order in which they were plugged in; none is taken out.
    pub(crate) links: Vec<Link>,
    /// Written payload that is not visible yet, where the NIC was told to behave so.
    pub(crate) pending: Option<Pending>,
    pub(crate) counters: Counters,
    pub(crate) closing: bool,
    next_handle: u32,
}

impl Shared {
    pub(crate) fn new(name: String, gid: Gid, pending: Option<Pending>, first_handle: u32) -> Result<Self> {
        let core = Core {
            regions: Regions::new(),
            pds: HashSet::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            ahs: HashMap::new(),
            links: Vec::new(),
            pending,
            counters: Counters::default(),
            closing: false,
            next_handle: first_handle,
        };
        Ok(Self {
            name,
            gid,
            events: Events::new()?,
            core: Mutex::new(core),
            work: Condvar::new(),
            many: AtomicBool::new(false),
            idle: Condvar::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever may have something to send now.
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

    /// Sleeps until `idle` may have changed.
    pub(crate) fn wait_idle<'a>(&self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.idle.wait(core).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_idle_for<'a>(
        &self,
        core: MutexGuard<'a, Core>,
        time: Duration,
    ) -> MutexGuard<'a, Core> {
        let waited = self.idle.wait_timeout(core, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sleeps until there may be work.
    pub(crate) fn wait_work<'a>(&self, core: MutexGuard<'a, Core>, time: Duration) -> MutexGuard<'a, Core> {
        let waited = self.work.wait_timeout(core, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Plugs a cable in and says which it is. It says hello first.
    pub(crate) fn plug(&self, cable: &Arc<Cable>, peer: Option<Gid>) -> usize {
        let mut core = self.lock();
        let mut hello = Header::new(Kind::Hello, 0, 0, u64::from_be_bytes(first_half(&self.gid)));
        hello.raddr = u64::from_be_bytes(second_half(&self.gid));
        let qps = core.qps.len();
        core.links.push(Link {
            cable: Arc::downgrade(cable),
            peer,
            greeted: false,
            ready: VecDeque::with_capacity(qps),
            strays: VecDeque::from([hello]),
            tx_qpn: None,
            rx_qpn: None,
            datagram: None,
            down: None,
            tx_ended: false,
        });
        let link = core.links.len() - 1;
        if link > 0 {
            self.many.store(true, Ordering::Relaxed);
        }
        link
    }

    /// Which cable leads to a port, waiting for cables that have not said yet. `None` where none does.
    ///
    /// A NIC with one cable sends everything over it that is not for itself, as a wire without a switch does. A dead cable is the answer only
    /// where no other is: who plugs a new one in goes on.
    pub(crate) fn route<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        gid: &Gid,
    ) -> (MutexGuard<'a, Core>, Option<usize>) {
        let deadline = Instant::now() + HELLO_PATIENCE;
        loop {
            let leads = |link: &Link| link.peer == Some(*gid);
            // A cable whose other end closed is dead once its last frames are received; a new one
            // is better.
            let rank = |link: &Link| u8::from(link.is_hung_up());
            let mut live: Option<(u8, usize)> = None;
            for (index, link) in core.links.iter().enumerate() {
                if leads(link) && link.down.is_none() {
                    let found = (rank(link), index);
                    live = Some(live.map_or(found, |best| best.min(found)));
                }
            }
            let live = live.map(|(_, index)| index);
            if live.is_some() || *gid == self.gid {
                return (core, live);
            }
            let mut cables = core
                .links
                .iter()
                .enumerate()
                .filter(|(_, link)| link.peer != Some(self.gid));
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

    /// A cable is dead: everything connected over it goes into error, and both its threads end.
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
        let cable = cable.cable.upgrade();
        let connected: Vec<u32> = core
            .qps
            .values()
            .filter(|qp| qp.qp_type == QpType::Rc && qp.link == link)
            .filter(|qp| matches!(qp.state, State::ReadyToReceive | State::ReadyToSend))
            .map(|qp| qp.qpn)
            .collect();
        for qpn in connected {
            core.enter_error(self, qpn, WcStatus::RETRY_EXC_ERR);
        }
        for qpn in std::mem::take(&mut core.links[link].ready) {
            if let Some(qp) = core.qps.get_mut(&qpn) {
                qp.listed = false;
            }
        }
        let datagrams: Vec<u32> = core
            .qps
            .values()
            .filter(|qp| qp.qp_type == QpType::Ud)
            .map(|qp| qp.qpn)
            .collect();
        for qpn in datagrams {
            core.list(qpn);
            core.settle(self, qpn);
        }
        if let Some(cable) = cable {
            cable.shut();
        }
        self.work.notify_all();
        self.idle.notify_all();
    }

    /// Gives claimed memory back and wakes who waits for it.
    pub(crate) fn release(&self, core: &mut Core, claim: &mut Claim) {
        core.regions.release(claim);
        self.idle.notify_all();
    }
}

fn first_half(gid: &Gid) -> [u8; 8] {
    std::array::from_fn(|at| gid.0[at])
}

fn second_half(gid: &Gid) -> [u8; 8] {
    std::array::from_fn(|at| gid.0[at + 8])
}

impl Core {
    /// A number from 1 that `used` does not know.
    pub(crate) fn fresh(&mut self, limit: u32, used: impl Fn(&Self, u32) -> bool) -> u32 {
        loop {
            self.next_handle = self.next_handle.wrapping_add(1) & limit;
            // 0 and 1 are the management queue pairs of a real NIC.
            if self.next_handle > 1 && !used(self, self.next_handle) {
                return self.next_handle;
            }
        }
    }

    /// Wakes the threads of all cables, for good.
    pub(crate) fn shut_all(&self) {
        let cables = self.links.iter().filter_map(|link| link.cable.upgrade());
        cables.for_each(|cable| cable.shut());
    }

    /// Puts a queue pair into the list of those that may have something to send. Datagrams that a dead cable leads to are dropped without a
    /// word, as any network does with them, and complete.
    pub(crate) fn list(&mut self, qpn: u32) {
        self.drop_unreachable(qpn);
        if let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| !qp.listed) {
            // Nobody looks at a dead cable's list any more.
            let link = self.links.get_mut(qp.next_link());
            if let Some(link) = link.filter(|link| link.down.is_none()) {
                qp.listed = true;
                link.ready.push_back(qpn);
            }
        }
    }

    fn drop_unreachable(&mut self, qpn: u32) {
        let sending = self.links.iter().any(|link| link.tx_qpn == Some(qpn));
        let Some(qp) = self
            .qps
            .get_mut(&qpn)
            .filter(|qp| qp.qp_type == QpType::Ud && qp.state == State::ReadyToSend && !sending)
        else {
            // What is on its way is taken out by who sends it.
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

    /// Whether a thread moves bytes of a queue pair now.
    pub(crate) fn is_moving(&self, qpn: u32) -> bool {
        self.links
            .iter()
            .any(|link| link.tx_qpn == Some(qpn) || link.rx_qpn == Some(qpn))
    }

    /// Whether a thread sends a frame of a queue pair now.
    pub(crate) fn is_sending(&self, qpn: u32) -> bool {
        self.links.iter().any(|link| link.tx_qpn == Some(qpn))
    }

    /// Takes the next receive of a queue pair, from wherever it takes them.
    pub(crate) fn take_receive(&mut self, shared: &Shared, qpn: u32) -> Option<RecvEntry> {
        let qp = self.qps.get_mut(&qpn)?;
        let Some(handle) = qp.srq else {
            return qp.responder.queue.pop_front();
        };
        let srq = self.srqs.get_mut(&handle)?;
        let entry = srq.queue.pop_front();
        if entry.is_some() && srq.limit > 0 && srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            shared.events.raise(
                AsyncEventType::SRQ_LIMIT_REACHED,
                AsyncElement::Srq(SrqHandle(handle)),
            );
        }
        entry
    }

    /// The message that is coming takes a receive, once.
    pub(crate) fn take_for_message(&mut self, shared: &Shared, qpn: u32) {
        if self.qps.get(&qpn).is_none_or(|qp| qp.responder.taken.is_some()) {
            return;
        }
        let entry = self.take_receive(shared, qpn);
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.responder.taken = entry;
        }
    }

    /// Moves a queue pair to the error state. The oldest send ends with `oldest`, everything else
    /// is flushed. Unanswered reads of the peer are refused: from now on the owner may reuse the
    /// memory.
    pub(crate) fn enter_error(&mut self, shared: &Shared, qpn: u32, oldest: WcStatus) {
        let moving = self.moves_memory_of(qpn);
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.state != State::Error) else {
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
            shared.events.raise(
                AsyncEventType::QP_LAST_WQE_REACHED,
                AsyncElement::Qp(QpHandle(qpn)),
            );
        }
        self.tell_overflow(shared, qpn);
        if owes {
            self.list(qpn);
            shared.wake();
        }
    }

    /// Whether a thread processes a frame whose buffers a flush would complete.
    pub(crate) fn moves_memory_of(&self, qpn: u32) -> bool {
        match self.qps.get(&qpn).map(|qp| qp.qp_type) {
            Some(QpType::Rc) => self.is_moving(qpn),
            // The cable owns the receive of an incoming datagram.
            _ => self.is_sending(qpn),
        }
    }

    /// Flushes a queue pair that entered the error state while a thread moved its bytes, once no thread
    /// does. Returns true if the queue pair is in error or destroyed.
    pub(crate) fn flush_if_due(&mut self, qpn: u32) -> bool {
        let moving = self.moves_memory_of(qpn);
        let Some(qp) = self.qps.get_mut(&qpn) else {
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

    /// A completion queue that overflowed is told, once.
    fn tell_overflow(&mut self, shared: &Shared, qpn: u32) -> bool {
        let lost = self.qps.get_mut(&qpn).and_then(|qp| qp.lost.take());
        if let Some(cq) = lost {
            tracing::error!(qpn, "softnic (software): a completion queue overflowed");
            shared
                .events
                .raise(AsyncEventType::CQ_ERR, AsyncElement::Cq(CqHandle(cq)));
        }
        lost.is_some()
    }

    /// After sends have completed: the next one may be known to be wrong, and a completion queue may have overflowed.
    pub(crate) fn settle(&mut self, shared: &Shared, qpn: u32) {
        let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.state != State::Error) else {
            return;
        };
        let oldest = qp.requester.queue.front().filter(|_| qp.requester.cursor == 0);
        let failed = oldest.and_then(|entry| entry.failed);
        if qp.lost.is_some() && self.tell_overflow(shared, qpn) {
            return self.enter_error(shared, qpn, WcStatus::WR_FLUSH_ERR);
        }
        if let Some(status) = failed {
            self.enter_error(shared, qpn, status);
        }
    }

    /// The responder refuses a message for good. The refusal, and the error state with it, take
    /// their turn behind the reads before it (IBA 9.7.5.1: responses are in order).
    pub(crate) fn refuse(&mut self, shared: &Shared, qpn: u32, msn: u64, code: NakCode) {
        let mut waits = false;
        if let Some(qp) = self.qps.get_mut(&qpn) {
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

    /// A key does not allow what a peer asks for: refused, and told here, unless a receive can tell it (IBA C9-222.1).
    pub(crate) fn refuse_access(&mut self, shared: &Shared, qpn: u32, header: &Header) {
        let mtu = self.qps.get(&qpn).map_or(0, |qp| qp.mtu);
        // With more than one packet, immediate data comes with the last: the first one is refused without a receive.
        let tells = header.kind == Kind::WriteImm && header.total <= mtu;
        if tells {
            self.take_for_message(shared, qpn);
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.complete_taken(WcStatus::REM_ACCESS_ERR, None);
            }
        } else {
            shared
                .events
                .raise(AsyncEventType::QP_ACCESS_ERR, AsyncElement::Qp(QpHandle(qpn)));
        }
        self.refuse(shared, qpn, header.msn, NakCode::Access);
    }

    /// Answers a request that no queue pair can answer.
    pub(crate) fn refuse_stray(
        &mut self,
        link: usize,
        request: &Header,
        code: NakCode,
    ) -> std::result::Result<(), &'static str> {
        let mut answer = Header::new(Kind::Nak, request.dst_qpn, request.src_qpn, request.msn);
        answer.nak = Some(code);
        // One refusal for each queue pair is enough: it ends the connection, or requests everything again.
        let same = |queued: &Header| {
            (queued.dst_qpn, queued.src_qpn, queued.nak.is_some()) == (answer.dst_qpn, answer.src_qpn, true)
        };
        let strays = &mut self.links[link].strays;
        if let Some(queued) = strays.iter_mut().find(|queued| same(queued)) {
            // The peer still waits for the newest message.
            queued.msn = queued.msn.max(answer.msn);
            return Ok(());
        }
        if strays.len() >= MAX_STRAYS {
            return Err("the peer sends to queue pairs that are not there and does not take the answers");
        }
        strays.push_back(answer);
        Ok(())
    }

    /// A queue pair that goes away begins nothing any more. What the peer must still hear of it no longer needs it.
    pub(crate) fn silence(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
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
            (None, None) => return,
        }
        if let Some(link) = self.links.get_mut(qp.link).filter(|link| link.down.is_none()) {
            link.strays.push_back(header);
        }
    }
}
