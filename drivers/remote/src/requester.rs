//! The asking end: cuts transfers into chunks and keeps as many in flight as there are slots.
//!
//! A chunk of a put is fetched into a slot by the engine (where our memory is staged), written by
//! the NIC, and stored from the peer's slot by its engine (where its memory is staged); a get takes
//! the same steps backwards. While one chunk is on the wire the engines work on others. Nothing
//! here spins or sleeps by the clock: it waits for the engine where that is what feeds the NIC,
//! else for the NIC.

mod wait;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gaudi_device::{Device, HostBuffer, Location};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::{Cq, Qp, RemoteAddr, Sge, WcOpcode, WorkCompletion};

use crate::job::{Chunk, Done, Job, LocalEnd, Phase};
use crate::message::{Answer, Request, RequestKind, SLOTS, failed};
use crate::nic::Nic;
use crate::offer::OfferPath;
use crate::stage::{Messages, Stage};
use crate::stream::protocol;

/// What stands in the second byte of a work request's number; the slot below, the number of a flush
/// above.
const DATA: u64 = 1 << 8;
const MESSAGE: u64 = 2 << 8;
const RECEIVE: u64 = 3 << 8;
const FLUSH: u64 = 4 << 8;
const WHAT: u64 = 0xff << 8;
/// Flushes under way at most: the room that the send queue has for them.
const FLUSHES: u64 = 2;
/// The asking half of an endpoint. The queue pair goes first, then what it used.
pub(crate) struct Requester {
    qp: Qp,
    cq: Cq,
    messages: Messages,
    pub(crate) stage: Option<Stage>,
    nic: Nic,
    pub(crate) device: Option<Device>,
    jobs: VecDeque<Job>,
    /// What is over, until it is asked for.
    results: HashMap<u64, Result<Done>>,
    /// Memory of transfers that nobody waited for, and that are over.
    back: Vec<Arc<HostBuffer>>,
    chunks: [Option<Chunk>; SLOTS],
    /// Slots whose engine is at work, in order.
    engine: VecDeque<usize>,
    /// Slots that the NIC has filled, and where their bytes go; empty between two rounds.
    arrived: VecDeque<(usize, Location)>,
    /// Work requests that will complete.
    on_wire: u32,
    /// Flushes that were begun and those that are over, by number: they complete in order.
    flushes: u64,
    flushed: u64,
    broken: Option<Error>,
    hung_up: Option<Instant>,
}

impl Requester {
    pub(crate) fn new(nic: &Nic, device: Option<&Device>, qp: Qp, cq: Cq) -> Result<Self> {
        let mut requester = Self {
            qp,
            cq,
            messages: Messages::new(nic, nic.pd())?,
            stage: None,
            nic: nic.clone(),
            device: device.cloned(),
            jobs: VecDeque::with_capacity(SLOTS),
            results: HashMap::with_capacity(SLOTS),
            back: Vec::new(),
            chunks: std::array::from_fn(|_| None),
            engine: VecDeque::with_capacity(SLOTS),
            arrived: VecDeque::with_capacity(SLOTS),
            on_wire: 0,
            flushes: 0,
            flushed: 0,
            broken: None,
            hung_up: None,
        };
        for slot in 0..SLOTS {
            requester.receive(slot)?;
        }
        Ok(requester)
    }

    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Transfers that were begun and whose results nobody has taken.
    pub(crate) fn started(&self) -> usize {
        self.jobs.len() + self.results.len()
    }

    pub(crate) fn add(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// The result of a job; `None` while it runs.
    pub(crate) fn take(&mut self, id: u64) -> Option<Result<Done>> {
        if let Some(result) = self.results.remove(&id) {
            return Some(result);
        }
        (self.place_of(id).is_none())
            .then(|| Err(Error::new(ErrorKind::NotFound, "transfer").because("its result was taken before")))
    }

    /// Leaves a transfer to itself: it goes on, keeps this memory until it is over, and tells its
    /// result to nobody. Gives the memory back where it is over already.
    pub(crate) fn abandon(&mut self, id: u64, memory: Arc<HostBuffer>) -> Option<Arc<HostBuffer>> {
        let Some(job) = self.job(id) else {
            // Nothing of a broken connection is used again.
            return self.broken.is_none().then_some(memory);
        };
        job.abandoned = Some(memory);
        None
    }

    /// Whether transfers run, and nobody waits for any of them.
    pub(crate) fn only_abandoned(&self) -> bool {
        !self.jobs.is_empty() && self.jobs.iter().all(|job| job.abandoned.is_some())
    }

    /// Memory of an abandoned transfer that is over.
    pub(crate) fn given_back(&mut self) -> Option<Arc<HostBuffer>> {
        self.back.pop()
    }

    /// Ends the connection: every transfer that is not complete fails with the first error.
    ///
    /// A failed transfer has a result only once neither the NIC nor an engine accesses its memory.
    /// This stops the NIC. [`rest`](Self::rest) waits for engine copies, unless their device is
    /// lost.
    pub(crate) fn fail(&mut self, error: Error) {
        let engines_ended = is_device_loss(&error);
        if self.broken.is_none() {
            // Not `to_error`: it returns while the NIC may still move bytes of a flushed request.
            if let Err(error) = self.qp.reset() {
                tracing::error!(%error, "the NIC did not stop: it may still access memory of failed transfers");
            }
            self.on_wire = 0;
            self.broken = Some(error);
        }
        self.arrived.clear();
        // Regions keep the memory of abandoned transfers until the queue pair is destroyed.
        self.jobs.retain(|job| job.abandoned.is_none());
        for job in &mut self.jobs {
            job.failed = job.failed.take().or_else(|| self.broken.clone());
        }
        for slot in 0..SLOTS {
            let copies = self
                .chunks
                .get(slot)
                .and_then(Option::as_ref)
                .is_some_and(|chunk| matches!(chunk.phase, Phase::Fetching(_) | Phase::Storing(_)));
            if engines_ended || !copies {
                self.finish(slot);
            }
        }
        for at in (0..self.jobs.len()).rev() {
            self.end_if_over(at);
        }
        if engines_ended {
            self.engine.clear();
        }
    }

    fn receive(&mut self, slot: usize) -> Result<()> {
        let place = self.messages.place(slot)?;
        self.qp.post_recv(RECEIVE | slot as u64).post(&[place])
    }

    /// One round without waiting: what is complete is taken, what can begin begins.
    pub(crate) fn progress(&mut self) -> Result<()> {
        if let Some(error) = self.broken.clone() {
            if let Err(lost) = self.reap_engine() {
                self.fail(lost);
            }
            return Err(error);
        }
        let answer = self.round();
        if let Err(error) = &answer {
            self.fail(error.clone());
        }
        answer
    }

    fn round(&mut self) -> Result<()> {
        loop {
            self.take_completions()?;
            self.reap_engine()?;
            self.begin()?;
            // One store, and then again what feeds the NIC and the peer: where an engine works
            // inside the submission, as a mock's does, the peer would else stand still until all
            // that has arrived is stored.
            let Some((slot, memory)) = self.arrived.pop_front() else {
                return Ok(());
            };
            self.engine_copy(slot, memory, false)?;
        }
    }

    fn take_completions(&mut self) -> Result<()> {
        let mut done = [WorkCompletion::EMPTY; SLOTS];
        loop {
            let count = self.cq.poll(&mut done)?;
            for completion in done.iter().take(count) {
                self.completed(completion)?;
            }
            if count < done.len() {
                return Ok(());
            }
        }
    }

    /// Makes chunks while there are slots.
    fn begin(&mut self) -> Result<()> {
        loop {
            let Some(job) = self
                .jobs
                .iter()
                .position(|job| job.failed.is_none() && job.begun < job.len)
            else {
                return Ok(());
            };
            let Some(slot) = self.chunks.iter().position(Option::is_none) else {
                return Ok(());
            };
            let Some(job) = self.jobs.get_mut(job) else {
                return Ok(());
            };
            let mut depth = SLOTS;
            if let (LocalEnd::Staged(_), Some(stage)) = (&job.local, &self.stage) {
                depth = depth.min(stage.depth());
            }
            if let OfferPath::Slots { depth: theirs, .. } = job.remote.offer.path {
                depth = depth.min(theirs as usize);
            }
            if slot >= depth {
                return Ok(());
            }
            let offset = job.begun;
            let len = (job.len - offset).min(job.chunk);
            job.begun += len;
            job.in_flight += 1;
            job.chunks += 1;
            let (id, put, staged_there) = (job.id, job.put, job.staged_at_peer());
            let fetch = match &job.local {
                LocalEnd::Staged(location) if put => Some(location.part(offset, len)),
                _ => None,
            };
            let chunk = Chunk {
                job: id,
                offset,
                // A chunk is at most 64 MiB.
                len: u32::try_from(len).unwrap_or(u32::MAX),
                phase: Phase::Writing,
                sent: true,
                answered: true,
            };
            self.place(slot, chunk);
            match (fetch, put, staged_there) {
                (Some(from), ..) => {
                    self.engine_copy(slot, from, true)?;
                    // What is fetched already goes out before more is fetched: a mock's engine
                    // works inside the submission.
                    self.reap_engine()?;
                }
                (None, true, _) => self.write(slot)?,
                (None, false, true) => {
                    self.phase(slot, Phase::Asked);
                    self.ask(slot, RequestKind::Fetch)?;
                }
                (None, false, false) => self.read(slot)?,
            }
        }
    }

    fn place(&mut self, slot: usize, chunk: Chunk) {
        if let Some(place) = self.chunks.get_mut(slot) {
            *place = Some(chunk);
        }
    }

    fn chunk(&mut self, slot: usize) -> Option<&mut Chunk> {
        self.chunks.get_mut(slot)?.as_mut()
    }

    fn phase(&mut self, slot: usize, phase: Phase) {
        if let Some(chunk) = self.chunk(slot) {
            chunk.phase = phase;
        }
    }

    /// Numbers rise, and who leaves the row leaves the others in order.
    fn place_of(&self, id: u64) -> Option<usize> {
        self.jobs.binary_search_by_key(&id, |job| job.id).ok()
    }

    fn job(&mut self, id: u64) -> Option<&mut Job> {
        let at = self.place_of(id)?;
        self.jobs.get_mut(at)
    }

    /// Between our memory and our slot, by the engine. A failure is the transfer's, and no other's.
    fn engine_copy(&mut self, slot: usize, memory: Location, fetch: bool) -> Result<()> {
        let len = memory.len();
        let place = self.stage.as_ref().and_then(|stage| stage.slot(slot, len));
        let (Some(place), Some(device)) = (place, &self.device) else {
            unreachable!("a staged job has a stage and a device");
        };
        let submitted = if fetch {
            device.copy(place, memory)
        } else {
            device.copy(memory, place)
        };
        match submitted {
            Ok(completion) => {
                self.nic.counters().engine_bytes.add(len);
                self.nic.counters().staged_chunks.add(1);
                self.phase(
                    slot,
                    if fetch {
                        Phase::Fetching(completion)
                    } else {
                        Phase::Storing(completion)
                    },
                );
                self.engine.push_back(slot);
                Ok(())
            }
            Err(error) => self.give_up(slot, error),
        }
    }

    /// Engine copies that are over, oldest first.
    fn reap_engine(&mut self) -> Result<()> {
        while let Some(&slot) = self.engine.front() {
            let Some(chunk) = self.chunks.get(slot).and_then(Option::as_ref) else {
                self.engine.pop_front();
                continue;
            };
            let (fetching, answer) = match &chunk.phase {
                Phase::Fetching(completion) => (true, completion.poll()),
                Phase::Storing(completion) => (false, completion.poll()),
                _ => unreachable!("the engine works on chunks that are fetched or stored"),
            };
            match answer {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    self.engine.pop_front();
                    if fetching && self.broken.is_none() {
                        self.write(slot)?;
                    } else {
                        self.finish(slot);
                    }
                }
                Err(error) => {
                    self.engine.pop_front();
                    self.give_up(slot, error)?;
                }
            }
        }
        Ok(())
    }

    /// Both ends of a chunk, for the NIC, and whether the peer's is a slot.
    fn ends(&self, slot: usize) -> Result<(Sge, RemoteAddr, bool)> {
        let nothing = || Error::new(ErrorKind::Io, "transfer");
        let chunk = self.chunks.get(slot).and_then(Option::as_ref);
        let chunk = chunk.ok_or_else(nothing)?;
        let job = self.place_of(chunk.job).and_then(|at| self.jobs.get(at));
        let job = job.ok_or_else(nothing)?;
        let ours = match &job.local {
            LocalEnd::Region(first) => Sge {
                addr: first.addr.checked_add(chunk.offset).ok_or_else(nothing)?,
                length: chunk.len,
                lkey: first.lkey,
            },
            LocalEnd::Staged(_) => self.stage.as_ref().ok_or_else(nothing)?.sge(slot, chunk.len)?,
        };
        let len = u64::from(chunk.len);
        Ok(match &job.remote.offer.path {
            OfferPath::Direct(region) => (ours, region.at(job.at + chunk.offset, len)?, false),
            OfferPath::Slots { slots, chunk, .. } => {
                (ours, slots.at(slot as u64 * u64::from(*chunk), len)?, true)
            }
        })
    }

    fn write(&mut self, slot: usize) -> Result<()> {
        let (from, to, staged) = self.ends(slot)?;
        self.phase(slot, Phase::Writing);
        let wr = DATA | slot as u64;
        self.qp
            .post_send(wr)
            .signaled(!staged)
            .write(&[from], to)
            .post()?;
        self.nic.counters().nic_put_bytes.add(from.length.into());
        if staged {
            self.ask(slot, RequestKind::Store)
        } else {
            self.on_wire += 1;
            Ok(())
        }
    }

    fn read(&mut self, slot: usize) -> Result<()> {
        let (into, from, _) = self.ends(slot)?;
        self.phase(slot, Phase::Reading);
        self.qp.post_send(DATA | slot as u64).read(&[into], from).post()?;
        self.on_wire += 1;
        self.nic.counters().nic_got_bytes.add(into.length.into());
        Ok(())
    }

    /// Tells the peer to copy between its slot and its memory.
    fn ask(&mut self, slot: usize, what: RequestKind) -> Result<()> {
        let Some(chunk) = self.chunk(slot) else {
            return Ok(());
        };
        (chunk.sent, chunk.answered) = (false, false);
        let (id, offset, len) = (chunk.job, chunk.offset, u64::from(chunk.len));
        let Some(job) = self.job(id) else {
            return Ok(());
        };
        let request = Request {
            what,
            slot: u8::try_from(slot).unwrap_or(u8::MAX),
            offer: job.remote.offer.id,
            offset: job.at + offset,
            len,
        };
        let element = self.messages.write(slot, &request.encode())?;
        self.qp.post_send(MESSAGE | slot as u64).send(&[element]).post()?;
        // The message, and its answer.
        self.on_wire += 2;
        Ok(())
    }

    fn completed(&mut self, completion: &WorkCompletion) -> Result<()> {
        if !completion.is_success() {
            return Err(failed(completion));
        }
        self.on_wire = self.on_wire.saturating_sub(1);
        let slot = usize::try_from(completion.wr_id & 0xff).unwrap_or(SLOTS);
        match completion.wr_id & WHAT {
            FLUSH => self.flushed = self.flushed.max(completion.wr_id >> 16),
            RECEIVE => return self.answered(slot, completion),
            MESSAGE => {
                let Some(chunk) = self.chunk(slot) else {
                    return Ok(());
                };
                chunk.sent = true;
                if chunk.answered && matches!(chunk.phase, Phase::Writing) {
                    self.finish(slot);
                }
            }
            _ => {
                let Some(chunk) = self.chunk(slot) else {
                    return Ok(());
                };
                let (id, offset, len) = (chunk.job, chunk.offset, chunk.len);
                if !matches!(chunk.phase, Phase::Reading) {
                    self.finish(slot);
                    return Ok(());
                }
                let memory = self.job(id).and_then(|job| match &job.local {
                    LocalEnd::Staged(location) => Some(location.part(offset, len.into())),
                    LocalEnd::Region(_) => None,
                });
                match memory {
                    Some(memory) => self.arrived.push_back((slot, memory)),
                    None => self.finish(slot),
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self, place: usize, completion: &WorkCompletion) -> Result<()> {
        let bytes = self.messages.read(place)?;
        self.receive(place)?;
        if completion.opcode != WcOpcode::RECV || completion.byte_len as usize != bytes.len() {
            return Err(protocol("an answer of the wrong size").saw(completion.byte_len, bytes.len()));
        }
        let answer = Answer::decode(&bytes)?;
        let slot = usize::from(answer.slot);
        let waits = self
            .chunk(slot)
            .filter(|chunk| !chunk.answered)
            .map(|chunk| (chunk.sent, matches!(chunk.phase, Phase::Asked)));
        let Some((sent, asked)) = waits else {
            return Err(protocol("an answer that nobody waits for").saw(slot, "a slot in use"));
        };
        if let Some(chunk) = self.chunk(slot) {
            chunk.answered = true;
        }
        if let Some(error) = answer.error() {
            if answer.is_the_end() {
                // The other chunks are never answered.
                return Err(error);
            }
            let id = self.chunk(slot).map(|chunk| chunk.job);
            if let Some(job) = id.and_then(|id| self.job(id)) {
                job.failed = job.failed.take().or(Some(error));
            }
            if asked {
                // Nothing to read; the message is out since the peer has answered it.
                self.phase(slot, Phase::Writing);
            }
        } else if asked {
            return self.read(slot);
        }
        if sent {
            self.finish(slot);
        }
        Ok(())
    }

    /// A chunk whose engine failed: its transfer has.
    fn give_up(&mut self, slot: usize, error: Error) -> Result<()> {
        let lost = is_device_loss(&error);
        let id = self.chunk(slot).map(|chunk| chunk.job);
        if let Some(job) = id.and_then(|id| self.job(id)) {
            job.failed = job.failed.take().or(Some(error.clone()));
        }
        self.finish(slot);
        // All memory of the device is gone, and so is this end.
        if lost { Err(error) } else { Ok(()) }
    }

    fn finish(&mut self, slot: usize) {
        let Some(chunk) = self.chunks.get_mut(slot).and_then(Option::take) else {
            return;
        };
        let Some(at) = self.place_of(chunk.job) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(at) {
            job.in_flight = job.in_flight.saturating_sub(1);
        }
        self.end_if_over(at);
    }

    /// Moves a job that is over to the results.
    pub(crate) fn end_if_over(&mut self, at: usize) {
        if !self.jobs.get(at).is_some_and(Job::is_over) {
            return;
        }
        if let Some(mut job) = self.jobs.remove(at) {
            if let Some(memory) = job.abandoned.take() {
                self.back.push(memory);
                return;
            }
            let result = match job.failed {
                Some(error) => Err(error),
                None => Ok(Done {
                    bytes: job.len,
                    local: job.path,
                    remote: job.remote.offer.report.path,
                    chunks: job.chunks,
                }),
            };
            self.results.insert(job.id, result);
        }
    }

    /// A job without bytes is over at once.
    pub(crate) fn end_empty(&mut self) {
        self.end_if_over(self.jobs.len().saturating_sub(1));
    }

    /// Posts a read of one byte, and gives its number; `None` while the queue has no room for one
    /// more.
    pub(crate) fn flush(&mut self, from: RemoteAddr) -> Result<Option<u64>> {
        if self.flushes - self.flushed >= FLUSHES {
            return Ok(None);
        }
        let into = self.messages.flush()?;
        let number = self.flushes + 1;
        self.qp
            .post_send(FLUSH | number << 16)
            .flush_remote(&into, from)
            .post()?;
        self.flushes = number;
        self.on_wire += 1;
        self.nic.counters().flushes.add(1);
        Ok(Some(number))
    }

    pub(crate) fn is_flushed(&self, number: u64) -> bool {
        self.flushed >= number
    }

    /// Destroys the queue pair, then lets go of what it used.
    pub(crate) fn close(self) -> Result<()> {
        let Self {
            qp,
            cq,
            messages,
            stage,
            ..
        } = self;
        let first = qp.close().map_err(|(_, error)| error);
        drop((messages, stage));
        first.and(cq.close().map_err(|(_, error)| error))
    }
}

/// Whether the device's memory and all copies on its engines ended with this error.
fn is_device_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_softnic::{SoftNic, SoftNicConfig};
    use gaudi_verbs::{Access, Context, MrAddr, Pd, QpInit, Rkey, WcStatus};

    /// A flush that nobody waited for any more must not stand for the next one.
    #[test]
    fn flush_completes_with_its_own_read() {
        let (nic, peer) = SoftNic::pair(SoftNicConfig::default()).unwrap();
        let nic = Nic::new(&Context::open(nic).unwrap()).unwrap();
        let peer = Context::open(peer).unwrap().alloc_pd().unwrap();
        let end = |pd: &Pd| {
            let cq = pd.context().create_cq(64).unwrap();
            let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
            (qp, cq)
        };
        let ((mut ours, cq), (mut theirs, _their_cq)) = (end(nic.pd()), end(&peer));
        let (here, there) = (ours.address().unwrap(), theirs.address().unwrap());
        ours.connect(&there, Access::empty()).unwrap();
        theirs.connect(&here, Access::REMOTE_READ).unwrap();
        let mut requester = Requester::new(&nic, None, ours, cq).unwrap();
        // Where it reads from matters to nobody here: the completions are told by hand.
        let from = RemoteAddr {
            addr: MrAddr(0),
            rkey: Rkey(0),
        };
        let done = |number: u64| WorkCompletion {
            wr_id: FLUSH | number << 16,
            status: WcStatus::SUCCESS,
            ..WorkCompletion::EMPTY
        };
        let (first, second) = (requester.flush(from).unwrap(), requester.flush(from).unwrap());
        assert_eq!((first, second), (Some(1), Some(2)));
        assert_eq!(requester.flush(from).unwrap(), None, "there is room for two");
        requester.completed(&done(1)).unwrap();
        assert!(requester.is_flushed(1) && !requester.is_flushed(2));
        requester.completed(&done(2)).unwrap();
        assert!(requester.is_flushed(2));
    }
}
