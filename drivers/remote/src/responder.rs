//! The serving end: copies between this node's stage and its memory when the peer requests it.
//!
//! The first staged offer starts a thread, because the peer's transfers continue whatever this
//! program does. Offers with regions of their own need no thread: the NIC serves them alone.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaudi_device::{Completion, Deadline, Device, Location};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::poll::readable;
use gaudi_sys::sync::{IgnorePoison as _, lock};
use gaudi_verbs::{Access, Pd, WorkCompletion};

use crate::channel::{Channel, KIND, MESSAGE, slot_of};
use crate::message::{Answer, Request, RequestKind, SLOTS, failed};
use crate::nic::Nic;
use crate::offer::{OfferPath, Rights};
use crate::options::EndpointOptions;
use crate::path::is_device_loss;
use crate::region::Regions;
use crate::stage::Stage;
use crate::stream::{forked, hang_up, io, protocol};
use crate::watch::WatchedEndpoint as _;

/// Interval between two checks for a stop while the engine works.
const STEP: Duration = Duration::from_millis(100);
/// The longest sleep without an event.
const NAP: Duration = Duration::from_secs(60);

/// Memory that the peer may access through the stage.
#[derive(Debug)]
struct Staged {
    memory: Location,
    rights: Rights,
    /// Copies that are being submitted or in flight.
    uses: u32,
    /// It is removed with its last use.
    withdrawn: bool,
}

impl Staged {
    fn new(memory: Location, rights: Rights) -> Self {
        Self {
            memory,
            rights,
            uses: 0,
            withdrawn: false,
        }
    }
}

#[derive(Debug, Default)]
struct Offers {
    by_id: HashMap<u32, Staged>,
    /// Copies that were in flight when the thread ended, with the offer that each uses.
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
    /// Why the thread ended by itself.
    ended: OnceLock<Error>,
    /// Requests the end of the thread.
    stop: AtomicBool,
}

/// The serving half of an endpoint.
pub(crate) struct Responder {
    /// `None` while the thread has it.
    idle: Option<Channel>,
    running: Option<Running>,
    shared: Arc<Shared>,
    /// The domain of the queue pair and of all that this peer reaches, and of no other peer.
    domain: Pd,
    owner: OwnerProcess,
}

struct Running {
    /// Dropped to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Option<Channel>>>,
    slots: OfferPath,
}

impl Responder {
    pub(crate) fn new(channel: Channel, domain: Pd) -> Self {
        Self {
            idle: Some(channel),
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

    /// Returns the slots that the peer writes to and reads from. Creates stage and thread on first
    /// use; after an error it can be called again.
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
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let stage = Stage::new(nic, &self.domain, device, options, access)?;
        let slots = OfferPath::Slots {
            slots: stage.remote(),
            chunk: stage.chunk(),
            depth: options.depth,
        };
        let stream = stream.try_clone_to_owned().map_err(io("dup"))?;
        let (stop, stopped) = UnixStream::pair().map_err(io("socketpair"))?;
        let closed = || Error::new(ErrorKind::Disconnected, "offer").because("the endpoint is closed");
        // Before the peer knows the slots: it may send a request at once.
        let channel = self.idle.as_mut().ok_or_else(closed)?;
        channel.open(nic, &self.domain)?;
        // The thread comes first and is handed its work then: the queue pair must not be dropped
        // with one that does not start.
        let (hand, handed) = mpsc::sync_channel::<Thread>(1);
        let thread = std::thread::Builder::new()
            .name("gaudi-remote".into())
            .spawn(move || handed.recv().ok().map(|thread| thread.run(&stopped)))
            .map_err(io("pthread_create"))?;
        let channel = self.idle.take().ok_or_else(closed)?;
        let work = Thread {
            stream,
            channel,
            stage,
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
            self.idle = Some(back.channel);
            return Err(Error::new(ErrorKind::Io, "offer").because("the serving thread did not start"));
        }
        self.running = Some(Running {
            stop: Some(stop),
            thread: Some(thread),
            slots,
        });
        Ok(slots)
    }

    /// Allows the peer to access this memory.
    pub(crate) fn offer(&self, id: u32, memory: Location, rights: Rights) {
        let staged = Staged::new(memory, rights);
        lock(&self.shared.offers).by_id.insert(id, staged);
    }

    /// Withdraws the offers in this memory, and waits until the engine's copies for the peer are
    /// complete. `InUse` after the timeout: the offers stay withdrawn, and the next call waits
    /// again.
    pub(crate) fn withdraw(&self, which: impl Fn(&Location) -> bool, timeout: Duration) -> Result<()> {
        let end = Instant::now().checked_add(timeout);
        let busy = || {
            Error::new(ErrorKind::InUse, "forget")
                .because("the engine still copies this memory for the peer")
                .saw(format!("after {timeout:?}"), "the end of its copies")
                .helped_by("try again: the driver resets a hung engine after its own timeout")
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
            offers = waited.ignore_poison().0;
        }
        Ok(())
    }

    /// Returns why the service ended, if it did.
    pub(crate) fn ended(&self) -> Option<&Error> {
        self.shared.ended.get()
    }

    /// Requests the end of the thread without waiting for it. Without a thread, the peer can access
    /// nothing of this node from now on.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(running) = &mut self.running {
            drop(running.stop.take());
        }
        if let Some(channel) = &mut self.idle {
            channel.stop();
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
        self.idle.take().map_or(Ok(()), Channel::close)
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

/// A copy in flight.
struct Copy {
    slot: usize,
    /// The offer that it uses until it is over.
    offer: u32,
    completion: Completion,
}

struct Thread {
    /// The endpoint's stream. It is shut down if the service ends by itself: nothing else
    /// notifies a peer that waits for an answer.
    stream: OwnedFd,
    channel: Channel,
    stage: Stage,
    nic: Nic,
    device: Device,
    copy_timeout: Duration,
    shared: Arc<Shared>,
    regions: Arc<Regions>,
    /// Copies in flight, in order.
    engine: VecDeque<Copy>,
    /// Since when the oldest of them is overdue.
    since: Option<Instant>,
    /// Answers that wait for their place in memory.
    owed: VecDeque<Answer>,
    /// Places whose answer the NIC still reads.
    answering: [bool; SLOTS],
    /// Slots with a request that was not answered yet. A second request for one is an error, so
    /// that nothing here grows.
    asked: [bool; SLOTS],
}

impl Thread {
    fn run(mut self, stopped: &UnixStream) -> Channel {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.round() {
                Ok(true) => {}
                Ok(false) => {
                    let fds = [self.channel.cq.event_fd(), stopped.as_fd()];
                    match readable(fds, NAP) {
                        Ok([_, true]) => break,
                        Ok([true, _]) if self.channel.cq.ack_event().is_ok() => {}
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
        // The engine may still access the stage and the offered memory: `withdraw` waits for it.
        self.channel.stop();
        let left = self.engine.into_iter().map(|copy| (copy.offer, copy.completion));
        lock(&self.shared.offers).left.extend(left);
        self.shared.released.notify_all();
        self.channel
    }

    fn end(&mut self, error: Error) {
        if error.kind() == ErrorKind::Disconnected {
            tracing::debug!(%error, "the peer closed the connection");
        } else {
            tracing::warn!(%error, "the service of a connection ended");
        }
        if is_device_loss(&error) {
            // The reset waits for every region of the device's memory, in any process: they are
            // deregistered now, and not with the next call.
            let freed = self.regions.forget_device_memory();
            if let Err(error) = freed {
                tracing::error!(%error, "a region of a lost device was not deregistered");
            }
        }
        // The first error stays.
        let _ = self.shared.ended.set(error);
        hang_up(self.stream.as_fd());
    }

    /// Takes completions, and waits a step for the oldest copy. `false` if there is nothing to do
    /// before the next completion.
    fn round(&mut self) -> Result<bool> {
        let mut some = self.poll()?;
        if !some && self.engine.is_empty() {
            self.channel.cq.req_notify(false)?;
            // What came before the request raises no event.
            some = self.poll()?;
        }
        let Some(copy) = self.engine.front() else {
            return Ok(some);
        };
        // In steps: `close` must not wait for a hung engine.
        let waited = copy.completion.wait(STEP);
        if !matches!(&waited, Err(error) if error.kind() == ErrorKind::TimedOut) {
            self.ended_front(waited)?;
            return Ok(true);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.copy_timeout {
            return Ok(true);
        }
        let timeout = self.copy_timeout;
        let error = Error::new(ErrorKind::TimedOut, "staged copy")
            .because(format!("the engine did not end a copy in {timeout:?}"));
        // It may still write: neither its slot nor its memory can be used again, and so this ends
        // the service.
        self.answer(copy.slot, Err(error)).map(|()| true)
    }

    /// Answers the peer after the end of the oldest copy.
    fn ended_front(&mut self, ended: Result<()>) -> Result<()> {
        let Some(copy) = self.engine.pop_front() else {
            return Ok(());
        };
        self.since = None;
        self.release(copy.offer);
        self.answer(copy.slot, ended)
    }

    fn release(&self, offer: u32) {
        lock(&self.shared.offers).release(offer);
        self.shared.released.notify_all();
    }

    /// Answers copies that are complete. A mock's engine works inside the submission: its answer
    /// must not wait for the next submission.
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
        let count = self.channel.cq.poll(&mut done)?;
        for completion in done.iter().take(count) {
            if !completion.is_success() {
                return Err(failed(completion));
            }
            if !self.channel.is_first(completion) {
                continue;
            }
            match completion.wr_id & KIND {
                MESSAGE => self.answering[slot_of(completion)] = false,
                _ => self.request(completion)?,
            }
        }
        self.post_answers()?;
        Ok(count > 0)
    }

    fn request(&mut self, completion: &WorkCompletion) -> Result<()> {
        let request = Request::decode(&self.channel.take(completion)?)?;
        let slot = usize::from(request.slot);
        if slot >= self.stage.depth() || request.len > u64::from(self.stage.chunk()) {
            return Err(protocol("the peer asks for a slot that is not there")
                .saw(format!("{request:?}"), "what was offered"));
        }
        if std::mem::replace(&mut self.asked[slot], true) {
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
            Err(error) => self.answer(slot, Err(error)),
        }
    }

    fn copy(&self, slot: usize, request: &Request) -> Result<Completion> {
        // Counted before the lock is released: `withdraw` waits for what was submitted, and for
        // what is about to be.
        let begun = lock(&self.shared.offers).begin_use(request.offer);
        let (memory, rights) = begun.ok_or_else(|| refused("the memory was withdrawn"))?;
        let copy = self.submit(slot, request, &memory, rights);
        if copy.is_err() {
            self.release(request.offer);
        }
        copy
    }

    fn submit(&self, slot: usize, request: &Request, all: &Location, rights: Rights) -> Result<Completion> {
        let end = request.offset.checked_add(request.len);
        if request.len == 0 || end.is_none_or(|end| end > all.len()) {
            return Err(refused("the range leaves the memory"));
        }
        let memory = all.part(request.offset, request.len);
        let slot = self.stage.slot(slot, request.len);
        let slot = slot.ok_or_else(|| refused("no such slot"))?;
        let copy = match request.what {
            RequestKind::Store if rights.put => self.device.copy(memory, slot),
            RequestKind::Fetch if rights.get => self.device.copy(slot, memory),
            _ => return Err(refused("the memory was not offered for that")),
        }?;
        self.nic.counters().engine_bytes.add(request.len);
        self.nic.counters().staged_chunks.add(1);
        Ok(copy)
    }

    /// Reports to the peer how a copy ended. An error that ends the service for the peer ends it
    /// here too.
    fn answer(&mut self, slot: usize, ended: Result<()>) -> Result<()> {
        let answer = Answer {
            slot: u8::try_from(slot).unwrap_or(u8::MAX), // below `SLOTS`
            failed: ended.as_ref().err().map(|error| (error.kind(), error.errno())),
        };
        self.owed.push_back(answer);
        self.post_answers()?;
        let Err(error) = ended else {
            return Ok(());
        };
        tracing::warn!(%error, "a staged copy for the peer failed");
        if !answer.is_the_end() {
            return Ok(());
        }
        self.drain_answers()?;
        Err(error)
    }

    fn post_answers(&mut self) -> Result<()> {
        while let Some(answer) = self.owed.front().copied() {
            let slot = usize::from(answer.slot);
            if self.answering[slot] {
                return Ok(());
            }
            self.channel.send(slot, &answer.encode())?;
            self.answering[slot] = true;
            self.asked[slot] = false;
            self.owed.pop_front();
        }
        Ok(())
    }

    /// Waits up to 2 s until the NIC has sent the answers.
    fn drain_answers(&mut self) -> Result<()> {
        let mut done = [WorkCompletion::EMPTY; SLOTS];
        while self.answering.contains(&true) {
            let count = self.channel.cq.wait(&mut done, Duration::from_secs(2))?;
            for completion in done.iter().take(count) {
                let is_sent = completion.wr_id & KIND == MESSAGE && self.channel.is_first(completion);
                if !completion.is_success() || is_sent {
                    self.answering[slot_of(completion)] = false;
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
            offers.by_id.insert(id, Staged::new(buffer.into(), Rights::BOTH));
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
