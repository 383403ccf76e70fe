//! All that a NIC knows, behind its one lock, and the rules that both directions share.
//!
//! Payload moves outside the lock. What the two threads are moving is named in `tx_qpn` and `rx_qpn`, so that whoever destroys a
//! queue pair or deregisters a region can wait for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::WcStatus;

use crate::cable::Cable;
use crate::counters::Counters;
use crate::cq::SoftCq;
use crate::qp::{Qp, State};
use crate::region::{Claim, Regions};
use crate::wire::{Header, Kind, NakCode};

/// Answers to queue pairs that are not ours any more; a peer that causes more without reading them loses the cable.
const MAX_STRAYS: usize = 1024;

/// What the user's threads and the NIC's two share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) cable: Cable,
    core: Mutex<Core>,
    /// There is something to send.
    pub(crate) work: Condvar,
    /// A thread has let go of a queue pair or a region, or has ended.
    pub(crate) idle: Condvar,
}

/// The state of a NIC.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) regions: Regions,
    pub(crate) pds: HashSet<u32>,
    pub(crate) cqs: HashMap<u32, Arc<SoftCq>>,
    pub(crate) qps: HashMap<u32, Qp>,
    /// Queue pairs that may have something to send, in turn.
    pub(crate) ready: VecDeque<u32>,
    /// Answers that belong to no queue pair.
    pub(crate) strays: VecDeque<Header>,
    pub(crate) tx_qpn: Option<u32>,
    pub(crate) rx_qpn: Option<u32>,
    pub(crate) counters: Counters,
    /// Why the cable is dead.
    pub(crate) down: Option<Error>,
    pub(crate) closing: bool,
    pub(crate) tx_ended: bool,
    next_handle: u32,
}

impl Shared {
    pub(crate) fn new(name: String, cable: Cable, first_handle: u32) -> Self {
        let core = Core {
            regions: Regions::new(),
            pds: HashSet::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            ready: VecDeque::new(),
            strays: VecDeque::new(),
            tx_qpn: None,
            rx_qpn: None,
            counters: Counters::default(),
            down: None,
            closing: false,
            tx_ended: false,
            next_handle: first_handle,
        };
        Self {
            name,
            cable,
            core: Mutex::new(core),
            work: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `condition` may have changed.
    pub(crate) fn wait<'a>(&self, condition: &Condvar, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        condition.wait(core).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_for<'a>(
        &self,
        condition: &Condvar,
        core: MutexGuard<'a, Core>,
        time: Duration,
    ) -> MutexGuard<'a, Core> {
        condition
            .wait_timeout(core, time)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// The cable is dead: everything connected goes into error, and both threads end.
    pub(crate) fn cable_down(&self, core: &mut Core, error: Error) {
        if core.down.is_none() {
            if core.closing || error.kind() == ErrorKind::Disconnected {
                tracing::debug!(nic = self.name, %error, "softnic (software): the cable is down");
            } else {
                tracing::error!(nic = self.name, %error, "softnic (software): the cable is down");
            }
            core.down = Some(error);
        }
        let connected: Vec<u32> = core
            .qps
            .values()
            .filter(|qp| matches!(qp.state, State::ReadyToReceive | State::ReadyToSend))
            .map(|qp| qp.qpn)
            .collect();
        for qpn in connected {
            core.enter_error(qpn, WcStatus::RETRY_EXC_ERR);
        }
        self.cable.shut();
        self.work.notify_all();
        self.idle.notify_all();
    }

    /// Gives claimed memory back and wakes who waits for it.
    pub(crate) fn release(&self, core: &mut Core, claim: &mut Claim) {
        core.regions.release(claim);
        self.idle.notify_all();
    }
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

    /// Puts a queue pair into the list of those that may have something to send.
    pub(crate) fn list(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| !qp.listed) {
            qp.listed = true;
            self.ready.push_back(qpn);
        }
    }

    /// Into the error state; the oldest send ends with `oldest`, everything else is flushed.
    pub(crate) fn enter_error(&mut self, qpn: u32, oldest: WcStatus) {
        let moving = self.rx_qpn == Some(qpn);
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.state != State::Error) else {
            return;
        };
        qp.state = State::Error;
        qp.responder.current = None;
        if moving {
            // The receiving thread still writes to a buffer of it: the buffer's completion must not come before that ends.
            qp.flush_later = Some(oldest);
        } else {
            qp.flush(oldest);
        }
    }

    /// After sends have completed: the next one may be known to be wrong, and a completion queue may have overflowed.
    pub(crate) fn settle(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.state != State::Error) else {
            return;
        };
        if qp.lost {
            tracing::error!(
                qpn,
                "softnic (software): a completion queue overflowed, its queue pair is in error"
            );
            return self.enter_error(qpn, WcStatus::WR_FLUSH_ERR);
        }
        let oldest = qp.requester.queue.front().filter(|_| qp.requester.cursor == 0);
        if let Some(status) = oldest.and_then(|entry| entry.failed) {
            self.enter_error(qpn, status);
        }
    }

    /// The responder refuses a message for good.
    pub(crate) fn refuse(&mut self, qpn: u32, msn: u64, code: NakCode) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.responder.nak = Some((msn, code));
            qp.responder.current = None;
        }
        self.list(qpn);
        self.enter_error(qpn, WcStatus::WR_FLUSH_ERR);
    }

    /// Answers a request that no queue pair can answer.
    pub(crate) fn refuse_stray(&mut self, request: &Header, code: NakCode) -> Result<(), &'static str> {
        let mut answer = Header::new(Kind::Nak, request.dst_qpn, request.src_qpn, request.msn);
        answer.nak = Some(code);
        // One refusal a queue pair is enough: it ends the connection, or asks for all of it again.
        let same = |queued: &Header| {
            (queued.dst_qpn, queued.src_qpn, queued.nak.is_some()) == (answer.dst_qpn, answer.src_qpn, true)
        };
        if self.strays.iter().any(same) {
            return Ok(());
        }
        if self.strays.len() >= MAX_STRAYS {
            return Err("the peer sends to queue pairs that are not there and does not take the answers");
        }
        self.strays.push_back(answer);
        Ok(())
    }

    /// A queue pair that goes away begins nothing any more. What the peer must still hear of it no longer needs it.
    pub(crate) fn silence(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.state = State::Error;
        let responder = &mut qp.responder;
        let (read, nak, ack) = (
            responder.reads.front().map(|read| (read.msn, NakCode::NoPeer)),
            responder.nak.take(),
            responder.ack.take(),
        );
        responder.reads.clear();
        let mut header = Header::new(Kind::Nak, qpn, qp.remote, 0);
        match (read.or(nak), ack) {
            (Some((msn, code)), _) => (header.msn, header.nak) = (msn, Some(code)),
            (None, Some(msn)) => (header.kind, header.msn) = (Kind::Ack, msn),
            (None, None) => return,
        }
        self.strays.push_back(header);
    }
}
