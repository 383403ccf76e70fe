//! The serving end: copies between our stage and our memory when the peer asks for it.
//!
//! It has a thread, started with the first offer that is staged, since the peer's transfers go on
//! whatever our program does. Offers that are reached by their own regions need none: the NIC
//! serves them alone.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaudi_device::{Completion, Deadline, Device, Location};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::poll::readable;
use gaudi_verbs::{Access, Cq, Pd, Qp, WorkCompletion};

use crate::message::{Answer, Request, RequestKind, SLOTS, failed};
use crate::nic::Nic;
use crate::offer::{OfferPath, Rights};
use crate::options::EndpointOptions;
use crate::region::Regions;
use crate::stage::{Messages, Stage};
use crate::stream::{forked, hang_up, protocol};
use crate::watch::WatchedEndpoint as _;

const RECEIVE: u64 = 1 << 8;
const SEND: u64 = 2 << 8;
/// Between two looks for a stop while the engine works.
const STEP: Duration = Duration::from_millis(100);
/// Between two looks at nothing.
const NAP: Duration = Duration::from_secs(60);

/// Memory that the peer may ask for through the stage.
#[derive(Debug)]
struct Staged {
    memory: Location,
    rights: Rights,
    /// Copies that are being submitted or under way.
    uses: u32,
    /// It goes with its last use.
    withdrawn: bool,
}

#[derive(Debug, Default)]
struct Offers {
    by_id: HashMap<u32, Staged>,
    /// What was under way when the thread ended, with the offer that it uses.
    left: Vec<(u32, Completion)>,
}

impl Offers {
    /// Counts a use of an offer, which lasts until [`release`](Self::release). `None` if the offer
    /// was withdrawn or never made.
    fn begin_use(&mut self, id: u32) -> Option<(Location, Rights)> {
        let staged = self.by_id.get_mut(&id).filter(|staged| !staged.withdrawn)?;
        staged.uses += 1;
        Some((staged.memory.clone(), staged.rights))
    }

    /// Withdraws what lies in this memory. An offer that is in use is removed with its last use.
    fn withdraw(&mut self, which: impl Fn(&Location) -> bool) {
        for staged in self.by_id.values_mut().filter(|staged| which(&staged.memory)) {
            staged.withdrawn = true;
        }
        self.by_id
            .retain(|_, staged| !staged.withdrawn || staged.uses > 0);
    }

    fn release(&mut self, id: u32) {
        if let Some(staged) = self.by_id.get_mut(&id) {
            staged.uses = staged.uses.saturating_sub(1);
            if staged.withdrawn && staged.uses == 0 {
                self.by_id.remove(&id);
            }
        }
    }
}

/// What the thread shares with the endpoint.
#[derive(Debug, Default)]
struct Shared {
    offers: Mutex<Offers>,
    /// A use ended, or the thread has.
    released: Condvar,
    /// Why the thread serves no more.
    ended: OnceLock<Error>,
    /// The thread is to end.
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The serving half of an endpoint.
pub(crate) struct Responder {
    /// `None` while the thread has them.
    idle: Option<(Qp, Cq)>,
    /// Receives that stand already: from an attempt to start the thread that failed.
    posted: Option<(Messages, usize)>,
    running: Option<Running>,
    shared: Arc<Shared>,
    /// Of the queue pair and of all that the peer reaches: this peer's alone.
    domain: Pd,
    owner: OwnerProcess,
}

struct Running {
    /// Dropped to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Option<(Qp, Cq)>>>,
    slots: OfferPath,
}

impl Responder {
    pub(crate) fn new(qp: Qp, cq: Cq, domain: Pd) -> Self {
        Self {
            idle: Some((qp, cq)),
            posted: None,
            running: None,
            shared: Arc::default(),
            domain,
            owner: OwnerProcess::current(),
        }
    }

    /// Returns the protection domain in which the peer is served.
    pub(crate) fn domain(&self) -> &Pd {
        &self.domain
    }

    /// The slots that the peer writes to and reads from; makes stage and thread where there are
    /// none. Where that fails, it can be tried again.
    pub(crate) fn slots(
        &mut self,
        nic: &Nic,
        device: &Device,
        options: &EndpointOptions,
        regions: &Arc<Regions>,
        stream: BorrowedFd<'_>,
    ) -> Result<OfferPath> {
        if let Some(running) = &self.running {
            return Ok(running.slots);
        }
        let failed = |operation| move |error| Error::from_errno(operation, gaudi_sys::fd::errno_of(error));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let stage = Stage::new(nic, &self.domain, device, options, access)?;
        let slots = OfferPath::Slots {
            slots: stage.remote(),
            chunk: stage.chunk(),
            depth: options.depth,
        };
        let stream = stream.try_clone_to_owned().map_err(failed("dup"))?;
        let (stop, stopped) = UnixStream::pair().map_err(failed("socketpair"))?;
        let (messages, mut posted) = match self.posted.take() {
            Some(before) => before,
            None => (Messages::new(nic, &self.domain)?, 0),
        };
        // The thread comes first and is handed its work then: the queue pair must not go with one
        // that does not start.
        let (hand, handed) = mpsc::sync_channel::<Thread>(1);
        let spawned = std::thread::Builder::new()
            .name("gaudi-remote".into())
            .spawn(move || handed.recv().ok().map(|thread| thread.run(&stopped)))
            .map_err(failed("pthread_create"));
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => {
                self.posted = Some((messages, posted));
                return Err(error);
            }
        };
        let Some((mut qp, cq)) = self.idle.take() else {
            return Err(Error::new(ErrorKind::Disconnected, "offer").because("the endpoint is closed"));
        };
        // Before the peer hears of the slots: it may ask at once.
        while posted < SLOTS {
            let stands = messages
                .place(posted)
                .and_then(|place| qp.post_recv(RECEIVE | posted as u64).post(&[place]));
            if let Err(error) = stands {
                (self.idle, self.posted) = (Some((qp, cq)), Some((messages, posted)));
                return Err(error);
            }
            posted += 1;
        }
        let work = Thread {
            stream,
            qp,
            cq,
            stage,
            messages,
            nic: nic.clone(),
            device: device.clone(),
            copy_timeout: options.copy_timeout,
            shared: Arc::clone(&self.shared),
            regions: Arc::clone(regions),
            engine: VecDeque::with_capacity(SLOTS),
            since: None,
            owed: VecDeque::with_capacity(SLOTS),
            answering: [false; SLOTS],
            asked: [false; SLOTS],
        };
        if let Err(mpsc::SendError(back)) = hand.send(work) {
            (self.idle, self.posted) = (Some((back.qp, back.cq)), Some((back.messages, posted)));
            return Err(Error::new(ErrorKind::Io, "offer").because("the serving thread did not start"));
        }
        self.running = Some(Running {
            stop: Some(stop),
            thread: Some(thread),
            slots,
        });
        Ok(slots)
    }

    /// The peer may ask for this from now on.
    pub(crate) fn offer(&self, id: u32, memory: Location, rights: Rights) {
        let staged = Staged {
            memory,
            rights,
            uses: 0,
            withdrawn: false,
        };
        lock(&self.shared.offers).by_id.insert(id, staged);
    }

    /// Withdraws what lies in this memory, and waits until the engine is done with what the peer
    /// asked for before. `InUse` where it is not in time: what was withdrawn stays so, and the next
    /// call waits again.
    pub(crate) fn withdraw(&self, which: impl Fn(&Location) -> bool, patience: Duration) -> Result<()> {
        let end = Instant::now().checked_add(patience);
        let busy = || {
            Error::new(ErrorKind::InUse, "forget")
                .because("the engine is still at work on it, for the peer")
                .saw(format!("after {patience:?}"), "the end of its copies")
                .helped_by("try again: the driver gives a hung engine up after its own timeout")
        };
        let mut offers = lock(&self.shared.offers);
        offers.withdraw(&which);
        while offers.by_id.values().any(|staged| which(&staged.memory)) {
            if let Some((id, completion)) = offers.left.pop() {
                drop(offers);
                let waited = completion.wait(end.map_or(Deadline::NEVER, Into::into));
                offers = lock(&self.shared.offers);
                match waited {
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        offers.left.push((id, completion));
                        return Err(busy());
                    }
                    _ => offers.release(id),
                }
                continue;
            }
            let left = end.map_or(NAP, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(busy());
            }
            let waited = self.shared.released.wait_timeout(offers, left);
            offers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Why it serves no more, where that is so.
    pub(crate) fn ended(&self) -> Option<&Error> {
        self.shared.ended.get()
    }

    /// Tells the thread to end, without waiting for it. Where none runs, the peer reaches nothing
    /// of ours from now on.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(running) = &mut self.running {
            drop(running.stop.take());
        }
        if let Some((qp, _)) = &mut self.idle {
            let _ = qp.to_error();
        }
    }

    /// Ends the thread and destroys the queue pair: the peer can then access nothing of this node.
    /// Waits for a copy that is being submitted, but not for copies in flight.
    ///
    /// `Forked` in a fork child, which has neither the thread nor the lock that the thread may have
    /// held.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.owner.is_foreign() {
            if let Some(running) = &mut self.running {
                std::mem::forget(running.thread.take());
            }
            return Err(forked("close"));
        }
        self.stop();
        if let Some(mut running) = self.running.take() {
            match running.thread.take().map(JoinHandle::join) {
                Some(Ok(parts)) => self.idle = parts,
                _ => {
                    return Err(Error::new(ErrorKind::Io, "close").because("the serving thread panicked"));
                }
            }
        }
        *lock(&self.shared.offers) = Offers::default();
        let Some((qp, cq)) = self.idle.take() else {
            return Ok(());
        };
        let first = qp.close().map_err(|(_, error)| error);
        drop(self.posted.take());
        first.and(cq.close().map_err(|(_, error)| error))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            if error.kind() != ErrorKind::Forked {
                tracing::error!(%error, "the serving end of a connection did not close");
            }
        }
    }
}

/// A copy under way.
struct Copy {
    slot: usize,
    /// What it uses, until it is over.
    offer: u32,
    completion: Completion,
}

struct Thread {
    /// The endpoint's: hung up where the service ends by itself, since a peer that waits for an
    /// answer has no other way to know.
    stream: OwnedFd,
    qp: Qp,
    cq: Cq,
    stage: Stage,
    messages: Messages,
    nic: Nic,
    device: Device,
    copy_timeout: Duration,
    shared: Arc<Shared>,
    regions: Arc<Regions>,
    /// Copies under way, in order.
    engine: VecDeque<Copy>,
    /// How long the oldest of them has been waited for in vain.
    since: Option<Instant>,
    /// Answers that wait for their place in memory.
    owed: VecDeque<Answer>,
    /// Places whose answer the NIC still reads.
    answering: [bool; SLOTS],
    /// Slots that were asked for and not yet answered: a peer that asks for one again is none of
    /// ours. So nothing here grows.
    asked: [bool; SLOTS],
}

impl Thread {
    fn run(mut self, stopped: &UnixStream) -> (Qp, Cq) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.round() {
                Ok(true) => {}
                Ok(false) => {
                    let fds = [self.cq.event_fd(), stopped.as_fd()];
                    match readable(fds, NAP) {
                        Ok([_, true]) => break,
                        Ok([true, _]) if self.cq.ack_event().is_ok() => {}
                        Ok(_) => {}
                        Err(errno) => {
                            tracing::error!("the serving thread cannot wait: {errno}");
                            break;
                        }
                    }
                }
                Err(error) => {
                    self.end(error);
                    break;
                }
            }
        }
        // The engine may still be at work in the stage and in what was offered: who withdraws that
        // waits for it.
        let Self {
            mut qp,
            cq,
            engine,
            shared,
            ..
        } = self;
        let _ = qp.to_error();
        let left = engine.into_iter().map(|copy| (copy.offer, copy.completion));
        lock(&shared.offers).left.extend(left);
        shared.released.notify_all();
        (qp, cq)
    }

    fn end(&mut self, error: Error) {
        if error.kind() == ErrorKind::Disconnected {
            tracing::debug!(%error, "the peer is gone");
        } else {
            tracing::warn!(%error, "a connection is served no more");
        }
        if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
            // The reset waits for every region of the device's memory, in any process: they go now,
            // and not when somebody looks.
            let freed = self.regions.forget_device_memory();
            if let Err(error) = freed {
                tracing::error!(%error, "a region of a lost device was not deregistered");
            }
        }
        let _ = self.shared.ended.set(error);
        hang_up(self.stream.as_fd());
    }

    fn receive(&mut self, slot: usize) -> Result<()> {
        let place = self.messages.place(slot)?;
        self.qp.post_recv(RECEIVE | slot as u64).post(&[place])
    }

    /// Takes what has come, and moves the oldest copy on. `false` where there is nothing to do
    /// before the next completion.
    fn round(&mut self) -> Result<bool> {
        let mut some = self.poll()?;
        if !some && self.engine.is_empty() {
            self.cq.req_notify(false)?;
            // What came before the request raises no event.
            some = self.poll()?;
        }
        let Some(copy) = self.engine.front() else {
            return Ok(some);
        };
        // In steps: who ends this service must not wait for a hung engine.
        let waited = copy.completion.wait(STEP);
        if !matches!(&waited, Err(error) if error.kind() == ErrorKind::TimedOut) {
            self.ended_front(waited)?;
            return Ok(true);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.copy_timeout {
            return Ok(true);
        }
        let (slot, error) = (copy.slot, Error::new(ErrorKind::TimedOut, "staged copy"));
        let error = error.because(format!(
            "the engine did not end a copy in {:?}",
            self.copy_timeout
        ));
        // It may still write: neither its slot nor its memory can be used again, and so this ends
        // the service.
        self.answer(slot, Err(error.clone()))?;
        self.last_words()?;
        Err(error)
    }

    /// The oldest copy is over: the peer is told.
    fn ended_front(&mut self, ended: Result<()>) -> Result<()> {
        let Some(copy) = self.engine.pop_front() else {
            return Ok(());
        };
        self.since = None;
        self.release(copy.offer);
        match self.answer(copy.slot, ended)? {
            Some(lost) => {
                self.last_words()?;
                Err(lost)
            }
            None => Ok(()),
        }
    }

    fn release(&self, offer: u32) {
        lock(&self.shared.offers).release(offer);
        self.shared.released.notify_all();
    }

    /// Copies that are over by now. A mock's engine works inside the submission: its answers must
    /// not wait for the next one's.
    fn reap(&mut self) -> Result<()> {
        while let Some(copy) = self.engine.front() {
            match copy.completion.poll() {
                Ok(false) => break,
                ended => self.ended_front(ended.map(drop))?,
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut done = [WorkCompletion::EMPTY; SLOTS];
        let count = self.cq.poll(&mut done)?;
        for completion in done.iter().take(count) {
            if !completion.is_success() {
                return Err(failed(completion));
            }
            let place = usize::try_from(completion.wr_id & 0xff).unwrap_or(SLOTS);
            if completion.wr_id & !0xff == SEND {
                if let Some(answering) = self.answering.get_mut(place) {
                    *answering = false;
                }
            } else {
                self.request(place, completion.byte_len)?;
            }
        }
        self.speak()?;
        Ok(count > 0)
    }

    fn request(&mut self, place: usize, len: u32) -> Result<()> {
        let bytes = self.messages.read(place)?;
        self.receive(place)?;
        if len as usize != bytes.len() {
            return Err(protocol("a request of the wrong size").saw(len, bytes.len()));
        }
        let request = Request::decode(&bytes)?;
        let slot = usize::from(request.slot);
        if slot >= self.stage.depth() || request.len > u64::from(self.stage.chunk()) {
            return Err(protocol("the peer asks for a slot that is not there")
                .saw(format!("{request:?}"), "what was offered"));
        }
        let asked = self.asked.get_mut(slot);
        if asked.is_none_or(|asked| std::mem::replace(asked, true)) {
            return Err(
                protocol("the peer asks for a slot and has not heard the answer of the last time")
                    .saw(slot, "a slot without an answer owed"),
            );
        }
        match self.copy(slot, &request) {
            Ok(completion) => {
                self.engine.push_back(Copy {
                    slot,
                    offer: request.offer,
                    completion,
                });
                self.reap()
            }
            Err(error) => match self.answer(slot, Err(error))? {
                Some(lost) => {
                    self.last_words()?;
                    Err(lost)
                }
                None => Ok(()),
            },
        }
    }

    fn copy(&self, slot: usize, request: &Request) -> Result<Completion> {
        // Counted before the lock goes: who withdraws the memory waits for what was submitted, and
        // for what is about to be.
        let begun = lock(&self.shared.offers).begin_use(request.offer);
        let (memory, rights) = begun.ok_or_else(|| refused("the memory was withdrawn"))?;
        let copy = self.submit(slot, request, &memory, rights);
        if copy.is_err() {
            self.release(request.offer);
        }
        copy
    }

    fn submit(
        &self,
        slot: usize,
        request: &Request,
        memory: &Location,
        rights: Rights,
    ) -> Result<Completion> {
        let end = request.offset.checked_add(request.len);
        if request.len == 0 || end.is_none_or(|end| end > memory.len()) {
            return Err(refused("the range leaves the memory"));
        }
        let memory = memory.part(request.offset, request.len);
        let slot = self
            .stage
            .slot(slot, request.len)
            .ok_or_else(|| refused("no such slot"))?;
        let copy = match request.what {
            RequestKind::Store if rights.put => self.device.copy(memory, slot),
            RequestKind::Fetch if rights.get => self.device.copy(slot, memory),
            _ => return Err(refused("the memory was not offered for that")),
        }?;
        self.nic.counters().engine_bytes.add(request.len);
        self.nic.counters().staged_chunks.add(1);
        Ok(copy)
    }

    /// Tells the peer how a copy ended. Gives the error back where the device is lost.
    fn answer(&mut self, slot: usize, ended: Result<()>) -> Result<Option<Error>> {
        let failed = ended.as_ref().err().map(|error| (error.kind(), error.errno()));
        self.owed.push_back(Answer {
            slot: u8::try_from(slot).unwrap_or(u8::MAX),
            failed,
        });
        self.speak()?;
        Ok(match ended {
            Err(error) => {
                tracing::warn!(%error, "a staged copy for the peer failed");
                matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset).then_some(error)
            }
            Ok(()) => None,
        })
    }

    fn speak(&mut self) -> Result<()> {
        while let Some(answer) = self.owed.front().copied() {
            let slot = usize::from(answer.slot);
            if self.answering.get(slot) != Some(&false) {
                return Ok(());
            }
            let element = self.messages.write(slot, &answer.encode())?;
            self.qp.post_send(SEND | slot as u64).send(&[element]).post()?;
            self.answering[slot] = true;
            self.asked[slot] = false;
            self.owed.pop_front();
        }
        Ok(())
    }

    /// Waits a little until the NIC has sent what the peer must still hear.
    fn last_words(&mut self) -> Result<()> {
        let mut done = [WorkCompletion::EMPTY; SLOTS];
        while self.answering.contains(&true) {
            let count = self.cq.wait(&mut done, Duration::from_secs(2))?;
            for completion in done.iter().take(count) {
                if completion.is_success() && completion.wr_id & !0xff != SEND {
                    continue;
                }
                let place = usize::try_from(completion.wr_id & 0xff).unwrap_or(SLOTS);
                if let Some(answering) = self.answering.get_mut(place) {
                    *answering = false;
                }
            }
        }
        Ok(())
    }
}

fn refused(cause: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, "staged copy").because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withdrawn_offer_in_use_denies_new_use() {
        let spec = "mock:gaudi2?name=withdrawn-in-use".parse().expect("a spec");
        let device = Device::open(&spec).expect("the mock opens");
        let buffers = [(); 2].map(|()| device.alloc_exclusive(4096).expect("a buffer"));
        let mut offers = Offers::default();
        for (id, buffer) in (1..).zip(&buffers) {
            let staged = Staged {
                memory: buffer.into(),
                rights: Rights::BOTH,
                uses: 0,
                withdrawn: false,
            };
            offers.by_id.insert(id, staged);
        }
        offers.begin_use(1).expect("it is offered");
        let is_first = |memory: &Location| {
            let held = memory.in_device();
            held.is_some_and(|(buffer, _)| buffer.is_same(&buffers[0]))
        };
        offers.withdraw(is_first);
        assert!(offers.begin_use(1).is_none(), "the memory was withdrawn");
        assert!(offers.by_id.contains_key(&1), "the engine still works on it");
        offers.release(1);
        assert!(!offers.by_id.contains_key(&1), "that was its last use");
        assert!(offers.begin_use(2).is_some(), "the other memory is still offered");
    }
}
