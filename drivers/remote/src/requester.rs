//! The requesting end: cuts transfers into chunks and keeps as many in flight as there are slots.
//!
//! The engine fetches a chunk of a put into a slot (if local memory is staged), the NIC writes it,
//! and the peer's engine stores it from its slot (if the peer's memory is staged); a get takes the
//! same steps backwards. While one chunk is on the wire, the engines work on others. Nothing here
//! spins or polls a clock: a wait is for the engine if its copy feeds the NIC, otherwise for the
//! NIC.

mod wait;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gaudi_device::{Device, HostBuffer, Location};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::{MrAddr, RemoteAddr, Sge, WorkCompletion};

use crate::channel::{Channel, DATA, KIND, MESSAGE, RECEIVE, slot_of};
use crate::job::{Chunk, Done, Job, LocalEnd, Phase};
use crate::message::{Answer, Request, RequestKind, SLOTS, failed};
use crate::nic::Nic;
use crate::offer::OfferPath;
use crate::path::is_device_loss;
use crate::stage::Stage;
use crate::stream::protocol;

/// A kind of work request beside those of the channel; the number of a flush is above it.
const FLUSH: u64 = 4 << 8;
/// The most flushes in flight: the send queue has room for them.
const FLUSHES: u64 = 2;

/// The requesting half of an endpoint. The queue pair is dropped first, then what it used.
pub(crate) struct Requester {
    channel: Channel,
    pub(crate) stage: Option<Stage>,
    nic: Nic,
    pub(crate) device: Option<Device>,
    jobs: VecDeque<Job>,
    /// Results of transfers, until the caller takes them.
    results: HashMap<u64, Result<Done>>,
    /// Memory of abandoned transfers that are over.
    back: Vec<Arc<HostBuffer>>,
    chunks: [Option<Chunk>; SLOTS],
    /// Slots that the engine copies, in order.
    engine: VecDeque<usize>,
    /// Slots that the NIC has filled, and the memory of their bytes; empty between two rounds.
    arrived: VecDeque<(usize, Location)>,
    /// Work requests that will complete.
    on_wire: u32,
    /// Flushes that were begun and those that are over, by number: they complete in order.
    flushes: u64,
    flushed: u64,
    /// Why the connection ended.
    pub(crate) broken: Option<Error>,
    hung_up: Option<Instant>,
}

impl Requester {
    pub(crate) fn new(nic: &Nic, device: Option<&Device>, channel: Channel) -> Self {
        Self {
            channel,
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
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Transfers that were begun and whose results were not taken.
    pub(crate) fn started(&self) -> usize {
        self.jobs.len() + self.results.len()
    }

    pub(crate) fn add(&mut self, job: Job) {
        let is_empty = job.len == 0;
        self.jobs.push_back(job);
        if is_empty {
            self.end_if_over(self.jobs.len() - 1);
        }
    }

    /// Returns the result of a job, once. `None` while it runs.
    pub(crate) fn take(&mut self, id: u64) -> Option<Result<Done>> {
        if let Some(result) = self.results.remove(&id) {
            return Some(result);
        }
        let taken = || Error::new(ErrorKind::NotFound, "transfer").because("its result was taken before");
        let is_over = self.place_of(id).is_none();
        is_over.then(|| Err(taken()))
    }

    /// Discards the result of a transfer that continues; the transfer owns this memory until it is
    /// over. Returns the memory if it is over already.
    pub(crate) fn abandon(&mut self, id: u64, memory: Arc<HostBuffer>) -> Option<Arc<HostBuffer>> {
        match self.job(id) {
            Some(job) => job.abandoned = Some(memory),
            // Nothing of a broken connection is used again.
            None => return self.broken.is_none().then_some(memory),
        }
        None
    }

    /// Whether transfers run, and all of them are abandoned.
    pub(crate) fn only_abandoned(&self) -> bool {
        !self.jobs.is_empty() && self.jobs.iter().all(|job| job.abandoned.is_some())
    }

    /// Returns the memory of an abandoned transfer that is over.
    pub(crate) fn take_released(&mut self) -> Option<Arc<HostBuffer>> {
        self.back.pop()
    }

    /// Ends the connection: every transfer that is not complete fails with the first error.
    ///
    /// A failed transfer has a result only once neither the NIC nor an engine accesses its memory.
    /// This stops the NIC. [`wait`](Self::wait) waits for engine copies, unless their device is
    /// lost.
    pub(crate) fn fail(&mut self, error: Error) {
        let engines_ended = is_device_loss(&error);
        if self.broken.is_none() {
            // Not `to_error`: it returns while the NIC may still move bytes of a flushed request.
            if let Err(error) = self.channel.qp.reset() {
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
            let chunk = self.chunk(slot);
            let copies = chunk.is_some_and(|chunk| matches!(chunk.phase, Phase::Engine { .. }));
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

    /// Takes what is complete and begins what can begin, without waiting.
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
            // One store, and then again what feeds the NIC and the peer: if an engine works inside
            // the submission, as a mock's does, the peer would otherwise wait until all that has
            // arrived is stored.
            let Some((slot, memory)) = self.arrived.pop_front() else {
                return Ok(());
            };
            self.engine_copy(slot, memory, false)?;
        }
    }

    fn take_completions(&mut self) -> Result<()> {
        let mut done = [WorkCompletion::EMPTY; SLOTS];
        loop {
            let count = self.channel.cq.poll(&mut done)?;
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
            let slot = self.chunks.iter().position(Option::is_none);
            let mut jobs = self.jobs.iter_mut();
            let job = jobs.find(|job| job.failed.is_none() && job.begun < job.len);
            let (Some(slot), Some(job)) = (slot, job) else {
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
            let (put, staged_there) = (job.put, job.staged_at_peer());
            let fetch = match &job.local {
                LocalEnd::Staged(location) if put => Some(location.part(offset, len)),
                _ => None,
            };
            self.chunks[slot] = Some(Chunk {
                job: job.id,
                offset,
                // A chunk is at most 64 MiB.
                len: u32::try_from(len).unwrap_or(u32::MAX),
                phase: Phase::Writing,
                sent: true,
                answered: true,
            });
            match (fetch, put, staged_there) {
                (Some(from), ..) => {
                    self.engine_copy(slot, from, true)?;
                    // Fetched chunks are sent before more are fetched: a mock's engine works
                    // inside the submission.
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

    fn chunk(&mut self, slot: usize) -> Option<&mut Chunk> {
        self.chunks.get_mut(slot)?.as_mut()
    }

    fn phase(&mut self, slot: usize, phase: Phase) {
        if let Some(chunk) = self.chunk(slot) {
            chunk.phase = phase;
        }
    }

    /// Returns a chunk that was begun and is not finished, and its job.
    fn under_way(&self, slot: usize) -> (&Chunk, &Job) {
        let chunk = self.chunks.get(slot).and_then(Option::as_ref);
        let job = chunk.and_then(|chunk| self.jobs.get(self.place_of(chunk.job)?));
        match (chunk, job) {
            (Some(chunk), Some(job)) => (chunk, job),
            _ => unreachable!("a job stays until its last chunk is finished"),
        }
    }

    /// Returns the index of a job. Jobs are sorted by number, and a removal keeps the order.
    fn place_of(&self, id: u64) -> Option<usize> {
        self.jobs.binary_search_by_key(&id, |job| job.id).ok()
    }

    fn job(&mut self, id: u64) -> Option<&mut Job> {
        let at = self.place_of(id)?;
        self.jobs.get_mut(at)
    }

    /// Fails the job of a chunk, unless it failed before.
    fn fail_job(&mut self, slot: usize, error: Error) {
        let id = self.chunk(slot).map(|chunk| chunk.job);
        if let Some(job) = id.and_then(|id| self.job(id)) {
            job.failed.get_or_insert(error);
        }
    }

    /// Starts the engine's copy between memory and slot. A failure fails this transfer only.
    fn engine_copy(&mut self, slot: usize, memory: Location, fetches: bool) -> Result<()> {
        let len = memory.len();
        let place = self.stage.as_ref().and_then(|stage| stage.slot(slot, len));
        let (Some(place), Some(device)) = (place, &self.device) else {
            unreachable!("a staged job has a stage and a device");
        };
        let submitted = match fetches {
            true => device.copy(place, memory),
            false => device.copy(memory, place),
        };
        match submitted {
            Ok(copy) => {
                self.nic.counters().engine_bytes.add(len);
                self.nic.counters().staged_chunks.add(1);
                self.phase(slot, Phase::Engine { copy, fetches });
                self.engine.push_back(slot);
                Ok(())
            }
            Err(error) => self.give_up(slot, error),
        }
    }

    /// Takes engine copies that are complete, oldest first.
    fn reap_engine(&mut self) -> Result<()> {
        while let Some(&slot) = self.engine.front() {
            let Some(chunk) = self.chunk(slot) else {
                self.engine.pop_front();
                continue;
            };
            let Phase::Engine { copy, fetches } = &chunk.phase else {
                unreachable!("the engine works on chunks that are fetched or stored");
            };
            let (answer, fetches) = (copy.poll(), *fetches);
            if matches!(answer, Ok(false)) {
                return Ok(());
            }
            self.engine.pop_front();
            match answer {
                Err(error) => self.give_up(slot, error)?,
                Ok(_) if fetches && self.broken.is_none() => self.write(slot)?,
                Ok(_) => self.finish(slot),
            }
        }
        Ok(())
    }

    /// Returns both ends of a chunk, for the NIC, and whether the peer's is a slot.
    fn ends(&self, slot: usize) -> Result<(Sge, RemoteAddr, bool)> {
        let (chunk, job) = self.under_way(slot);
        let ours = match (&job.local, &self.stage) {
            (LocalEnd::Region(first), _) => Sge {
                // The region has the whole range of the job.
                addr: MrAddr(first.addr.0 + chunk.offset),
                length: chunk.len,
                lkey: first.lkey,
            },
            (LocalEnd::Staged(_), Some(stage)) => stage.sge(slot, chunk.len)?,
            (LocalEnd::Staged(_), None) => unreachable!("a staged job has a stage"),
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
        let wr = self.channel.number(DATA, slot);
        self.channel
            .qp
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
        let wr = self.channel.number(DATA, slot);
        self.channel.qp.post_send(wr).read(&[into], from).post()?;
        self.on_wire += 1;
        self.nic.counters().nic_got_bytes.add(into.length.into());
        Ok(())
    }

    /// Requests a copy between the peer's slot and its memory.
    fn ask(&mut self, slot: usize, what: RequestKind) -> Result<()> {
        let (chunk, job) = self.under_way(slot);
        let request = Request {
            what,
            slot: u8::try_from(slot).unwrap_or(u8::MAX), // below `SLOTS`
            offer: job.remote.offer.id,
            offset: job.at + chunk.offset,
            len: chunk.len.into(),
        };
        if let Some(chunk) = self.chunk(slot) {
            (chunk.sent, chunk.answered) = (false, false);
        }
        self.channel.send(slot, &request.encode())?;
        // The message, and its answer.
        self.on_wire += 2;
        Ok(())
    }

    fn completed(&mut self, completion: &WorkCompletion) -> Result<()> {
        if !completion.is_success() {
            return Err(failed(completion));
        }
        let is_first = match completion.wr_id & KIND {
            FLUSH => completion.wr_id >> 16 > self.flushed,
            _ => self.channel.is_first(completion),
        };
        if !is_first {
            return Ok(());
        }
        self.on_wire = self.on_wire.saturating_sub(1);
        let slot = slot_of(completion);
        match completion.wr_id & KIND {
            FLUSH => self.flushed = completion.wr_id >> 16,
            RECEIVE => return self.answered(completion),
            MESSAGE => {
                if let Some(chunk) = self.chunk(slot) {
                    chunk.sent = true;
                    if chunk.answered && matches!(chunk.phase, Phase::Writing) {
                        self.finish(slot);
                    }
                }
            }
            _ => {
                let Some(chunk) = self.chunk(slot) else {
                    // A transfer that failed has no chunks any more.
                    return Ok(());
                };
                if matches!(chunk.phase, Phase::Reading) {
                    let (chunk, job) = self.under_way(slot);
                    if let LocalEnd::Staged(location) = &job.local {
                        let memory = location.part(chunk.offset, chunk.len.into());
                        self.arrived.push_back((slot, memory));
                        return Ok(());
                    }
                }
                self.finish(slot);
            }
        }
        Ok(())
    }

    fn answered(&mut self, completion: &WorkCompletion) -> Result<()> {
        let answer = Answer::decode(&self.channel.take(completion)?)?;
        let slot = usize::from(answer.slot);
        let Some(chunk) = self.chunk(slot).filter(|chunk| !chunk.answered) else {
            return Err(protocol("an answer without a request").saw(slot, "a slot in use"));
        };
        chunk.answered = true;
        let (sent, asked) = (chunk.sent, matches!(chunk.phase, Phase::Asked));
        if let Some(error) = answer.error() {
            if answer.is_the_end() {
                // The other chunks are never answered.
                return Err(error);
            }
            self.fail_job(slot, error);
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

    /// Fails the transfer of a chunk whose engine copy failed.
    fn give_up(&mut self, slot: usize, error: Error) -> Result<()> {
        self.fail_job(slot, error.clone());
        self.finish(slot);
        // All memory of a lost device is lost: this ends the connection.
        if is_device_loss(&error) {
            Err(error)
        } else {
            Ok(())
        }
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
    fn end_if_over(&mut self, at: usize) {
        if !self.jobs.get(at).is_some_and(Job::is_over) {
            return;
        }
        let Some(mut job) = self.jobs.remove(at) else {
            return;
        };
        if let Some(memory) = job.abandoned.take() {
            self.back.push(memory);
            return;
        }
        let done = Done {
            bytes: job.len,
            local: job.path,
            remote: job.remote.offer.report.path,
            chunks: job.chunks,
        };
        self.results.insert(job.id, job.failed.map_or(Ok(done), Err));
    }

    /// Posts a read of one byte, and returns its number; `None` while the queue has no room for
    /// one more.
    pub(crate) fn flush(&mut self, from: RemoteAddr) -> Result<Option<u64>> {
        if self.flushes - self.flushed >= FLUSHES {
            return Ok(None);
        }
        let into = self.channel.flush()?;
        let number = self.flushes + 1;
        self.channel
            .qp
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

    /// Destroys the queue pair, then releases what it used.
    pub(crate) fn close(self) -> Result<()> {
        self.channel.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_softnic::{SoftNic, SoftNicConfig};
    use gaudi_verbs::{Access, Context, Rkey, WcStatus};

    /// The completion of a flush whose wait timed out must not complete the next flush.
    #[test]
    fn flush_completes_with_its_own_read() {
        let (nic, peer) = SoftNic::pair(SoftNicConfig::default()).unwrap();
        let [nic, peer] = [nic, peer].map(|nic| Nic::new(&Context::open(nic).unwrap()).unwrap());
        let mut ours = Channel::new(nic.pd()).unwrap();
        let mut theirs = Channel::new(peer.pd()).unwrap();
        let (here, there) = (ours.qp.address().unwrap(), theirs.qp.address().unwrap());
        ours.qp.connect(&there, Access::empty()).unwrap();
        ours.open(&nic, nic.pd()).unwrap();
        theirs.qp.connect(&here, Access::REMOTE_READ).unwrap();
        let mut requester = Requester::new(&nic, None, ours);
        // Not read from: the test makes the completions itself.
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
