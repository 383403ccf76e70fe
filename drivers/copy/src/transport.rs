//! The copy transport `gaudi_cpy`: puts and gets between memory that a key names and local memory.

use std::fmt;
use std::sync::Arc;

use gaudi_device::{Deadline, Direction, Error, ErrorKind, Location, Result};

use crate::attached::Attached;
use crate::card::Card;
use crate::chunk::Place;
use crate::completion::Completion;
use crate::domain::MemoryDomain;
use crate::kind::MemoryType;
use crate::lane::Lane;
use crate::local::Local;
use crate::memory::Memory;
use crate::pending::Pending;
use crate::staged::{self, Part, Stage};

const PUT: &str = "gaudi_cpy put";
const GET: &str = "gaudi_cpy get";

/// The longest run of bytes that is one part: it fits a command buffer with room to spare.
const PART: u64 = 1 << 30;

/// How an operation was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It is complete.
    Done,
    /// It will complete in [`Transport::progress`].
    InProgress,
}

/// Counters of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransportStats {
    /// Operations that were accepted.
    pub operations: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that the processor copied to or from pinned memory: short and bcopy.
    pub buffered_bytes: u64,
    /// Bytes of copies that no engine could do alone.
    pub staged_bytes: u64,
    /// Operations that would have blocked.
    pub blocked: u64,
}

/// A producer of copies on one card.
///
/// - *The remote end is an [`Attached`] key, the local end an iov of [`Local`].* One of the ends is
///   device memory: host memory to host memory is `Unsupported`.
/// - *An operation is in progress until [`progress`](Self::progress) or a flush ends it.* Short
///   puts are submitted together: by `progress`, a flush, another operation, or when a submission
///   is full.
/// - *Operations of one direction complete in order.* [`fence`](Self::fence) orders directions.
/// - *`WouldBlock`*: as many submissions are in flight as the configuration allows. Nothing was
///   done: call `progress` and repeat it, or [add it](Self::pending_add).
///
/// A drop waits for what is in flight.
pub struct Transport {
    domain: MemoryDomain,
    lanes: [Option<Lane>; 3],
    /// One bit for each lane that has operations from before a fence. The next operation of another
    /// lane waits for them.
    fenced: u8,
    pending: Pending<Self, Error>,
    stage: Stage,
    stats: TransportStats,
    /// Parts of the operation that is posted, reused for their capacity.
    parts: Vec<(u64, u64, u64)>,
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::ToDevice => 0,
        Direction::ToHost => 1,
        Direction::InDevice => 2,
    }
}

impl Transport {
    /// Returns a transport of a domain. The first operation opens the compute node.
    ///
    /// # Errors
    /// `Forked`.
    pub fn new(domain: &MemoryDomain) -> Result<Self> {
        domain.card.check_process("gaudi_cpy open")?;
        Ok(Self {
            domain: domain.clone(),
            lanes: [None, None, None],
            fenced: 0,
            pending: Pending::default(),
            stage: Stage::default(),
            stats: TransportStats::default(),
            parts: Vec::new(),
        })
    }

    /// Returns the memory domain.
    pub fn domain(&self) -> &MemoryDomain {
        &self.domain
    }

    /// Returns the counters.
    pub fn stats(&self) -> TransportStats {
        self.stats
    }

    /// The lane of a direction, with room for a submission, and its card. Waits for other lanes
    /// after a fence.
    fn lane(&mut self, operation: &'static str, direction: Direction) -> Result<(&Card, &mut Lane)> {
        let card = &*self.domain.card;
        card.check_process(operation)?;
        let at = index(direction);
        if self.fenced & !(1 << at) != 0 {
            for (other, lane) in self.lanes.iter_mut().enumerate() {
                let is_fenced = other != at && self.fenced & 1 << other != 0;
                if let Some(lane) = lane.as_mut().filter(|_| is_fenced) {
                    lane.drain(Deadline::NEVER)?;
                    self.fenced &= !(1 << other);
                }
            }
        }
        let lane = match &mut self.lanes[at] {
            Some(lane) => lane,
            none => none.insert(Lane::new(card.device()?, direction, &card.config)?),
        };
        match lane.room() {
            Ok(()) => Ok((card, lane)),
            Err(error) => {
                self.stats.blocked += 1;
                Err(error)
            }
        }
    }

    fn count(&mut self, bytes: u64) {
        self.stats.operations += 1;
        self.stats.bytes += bytes;
    }

    /// Whether an engine of this card can access the memory.
    fn reaches(&self, memory: &Memory) -> bool {
        Arc::ptr_eq(&memory.shared.card, &self.domain.card)
    }

    fn too_long(&self, operation: &'static str, len: usize, most: usize) -> Error {
        Error::new(ErrorKind::InvalidInput, operation)
            .because("the operation is too long")
            .saw(format!("{len} bytes"), format!("at most {most}"))
            .helped_by("use zcopy, or raise GAUDI_COPY_SHORT_MAX or GAUDI_COPY_BCOPY_MAX")
    }

    /// Copies bytes to remote device memory. The bytes can be reused when the call returns.
    ///
    /// # Errors
    /// - `InvalidInput`: more than [`Config::short_bytes`](crate::Config).
    /// - `BadAddress`: the range leaves the memory of the key. `NotFound`: it was freed.
    /// - `Unsupported`: the key names host memory, or memory of another card.
    /// - `WouldBlock`. `Forked`, the failure of an earlier operation, or the driver's own error.
    pub fn put_short(&mut self, bytes: &[u8], remote: &Attached, address: u64) -> Result<()> {
        let most = self.domain.card.config.short_bytes;
        if bytes.len() > most {
            return Err(self.too_long(PUT, bytes.len(), most));
        }
        let full = self.domain.card.config.batch;
        let posted = self.put_buffered(remote, address, bytes.len(), None, |lane, place| {
            lane.chunks().write(place, bytes)
        })?;
        let lane = &mut self.lanes[index(Direction::ToDevice)];
        match lane {
            Some(lane) if posted == Posted::InProgress && lane.open_packets() >= full => lane.submit(),
            _ => Ok(()),
        }
    }

    /// Calls `pack` with `len` bytes of pinned memory, and copies as many as it returns to remote
    /// device memory. Returns that number.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short), with the limit [`Config::bcopy_bytes`](crate::Config).
    pub fn put_bcopy(
        &mut self,
        len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: &Attached,
        address: u64,
    ) -> Result<usize> {
        let most = self.domain.card.config.bcopy_bytes;
        if len > most {
            return Err(self.too_long(PUT, len, most));
        }
        let (memory, offset) = remote.resolve(PUT, address, len as u64)?;
        let to = self.device_end(&memory)?;
        let (card, lane) = self.lane(PUT, Direction::ToDevice)?;
        if len == 0 {
            return Ok(0);
        }
        let place = lane.reserve(card.device()?, &card.config, len)?;
        let packed = pack(lane.chunks().slice(place)).min(len);
        let place = Place { len: packed, ..place };
        if packed > 0 {
            let from = lane.chunks().location(place)?;
            add(lane, to.into_part(offset, packed as u64), from)?;
            lane.submit()?;
        }
        self.stats.buffered_bytes += packed as u64;
        self.count(packed as u64);
        Ok(packed)
    }

    /// The device memory of a short or buffered operation.
    fn device_end(&self, memory: &Memory) -> Result<Location> {
        if memory.kind() == MemoryType::Host {
            return Err(staged::host_to_host());
        }
        match memory.shared.location() {
            Some(location) if self.reaches(memory) => Ok(location.clone()),
            _ => Err(
                Error::unsupported("gaudi_cpy", "the key names memory of another card")
                    .on(memory.device())
                    .helped_by("use zcopy, which stages the copy"),
            ),
        }
    }

    fn put_buffered(
        &mut self,
        remote: &Attached,
        address: u64,
        len: usize,
        completion: Option<&Completion>,
        fill: impl FnOnce(&mut Lane, Place) -> Result<()>,
    ) -> Result<Posted> {
        let (memory, offset) = remote.resolve(PUT, address, len as u64)?;
        let to = self.device_end(&memory)?;
        let (card, lane) = self.lane(PUT, Direction::ToDevice)?;
        if len > 0 {
            let place = lane.reserve(card.device()?, &card.config, len)?;
            fill(lane, place)?;
            let from = lane.chunks().location(place)?;
            add(lane, to.into_part(offset, len as u64), from)?;
        }
        lane.on_end(completion);
        self.stats.buffered_bytes += len as u64;
        self.count(len as u64);
        Ok(if len > 0 { Posted::InProgress } else { Posted::Done })
    }

    /// Copies remote device memory into bytes, and waits for them.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short).
    pub fn get_short(&mut self, bytes: &mut [u8], remote: &Attached, address: u64) -> Result<()> {
        let most = self.domain.card.config.short_bytes;
        if bytes.len() > most {
            return Err(self.too_long(GET, bytes.len(), most));
        }
        self.get_now(bytes, remote, address)
    }

    /// As [`get_short`](Self::get_short), with a chunk's bytes as the limit.
    pub(crate) fn get_now(&mut self, bytes: &mut [u8], remote: &Attached, address: u64) -> Result<()> {
        let Some(place) = self.get_place(remote, address, bytes.len())? else {
            return Ok(());
        };
        let Some(lane) = &mut self.lanes[index(Direction::ToHost)] else {
            unreachable!("`get_place` opened the lane");
        };
        // The chunk is not used again before the next operation on this lane.
        lane.drain(Deadline::NEVER)?;
        lane.chunks().read(place, bytes)
    }

    /// Copies remote device memory and calls `unpack` with it, in [`progress`](Self::progress) or a
    /// flush. A failed operation does not call it. If the submission fails, `completion` has the
    /// error, and the call returns `Ok`.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short), with the limit [`Config::bcopy_bytes`](crate::Config).
    pub fn get_bcopy(
        &mut self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + Send + 'static,
        remote: &Attached,
        address: u64,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let most = self.domain.card.config.bcopy_bytes;
        if len > most {
            return Err(self.too_long(GET, len, most));
        }
        let Some(place) = self.get_place(remote, address, len)? else {
            unpack(&[]);
            end(completion);
            return Ok(Posted::Done);
        };
        let Some(lane) = &mut self.lanes[index(Direction::ToHost)] else {
            unreachable!("`get_place` opened the lane");
        };
        lane.unpack_on_end(place, Box::new(unpack), completion);
        match lane.submit() {
            // The completion has the error of a submission that failed.
            Err(error) if completion.is_none() => Err(error),
            _ => Ok(Posted::InProgress),
        }
    }

    /// Adds a copy of remote memory into pinned memory. `None` for no bytes.
    fn get_place(&mut self, remote: &Attached, address: u64, len: usize) -> Result<Option<Place>> {
        let (memory, offset) = remote.resolve(GET, address, len as u64)?;
        let from = self.device_end(&memory)?;
        let (card, lane) = self.lane(GET, Direction::ToHost)?;
        let place = if len > 0 {
            let place = lane.reserve(card.device()?, &card.config, len)?;
            let to = lane.chunks().location(place)?;
            add(lane, to, from.into_part(offset, len as u64))?;
            Some(place)
        } else {
            None
        };
        self.stats.buffered_bytes += len as u64;
        self.count(len as u64);
        Ok(place)
    }

    /// Copies local memory to remote memory, entry after entry. Ends `completion` when all bytes
    /// have arrived; also if the operation is done when the call returns.
    ///
    /// Between two cards, and with memory that the driver cannot pin, the call stages the bytes and
    /// returns when they have arrived.
    ///
    /// # Errors
    /// - `BadAddress`: the range leaves the memory of the key. `NotFound`: it was freed.
    /// - `Unsupported`: both ends are host memory.
    /// - `InvalidInput`: the ends overlap.
    /// - `WouldBlock`. `Forked`, the failure of an earlier operation, or the driver's own error.
    pub fn put_zcopy(
        &mut self,
        iov: &[Local<'_>],
        remote: &Attached,
        address: u64,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        self.zcopy(PUT, iov, remote, address, completion)
    }

    /// Copies remote memory to local memory, as [`put_zcopy`](Self::put_zcopy) copies the other
    /// way.
    ///
    /// # Errors
    /// As [`put_zcopy`](Self::put_zcopy).
    pub fn get_zcopy(
        &mut self,
        iov: &[Local<'_>],
        remote: &Attached,
        address: u64,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        self.zcopy(GET, iov, remote, address, completion)
    }

    fn zcopy(
        &mut self,
        operation: &'static str,
        iov: &[Local<'_>],
        remote: &Attached,
        address: u64,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let mut len = 0_u64;
        for local in iov {
            len = len.checked_add(local.len).ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, operation).because("the iov has more than 2^64 bytes")
            })?;
        }
        let (memory, offset) = remote.resolve(operation, address, len)?;
        self.domain.card.check_process(operation)?;
        let is_put = operation == PUT;
        let far = memory.shared.location().filter(|_| self.reaches(&memory));
        let is_near =
            |local: &Local<'_>| self.reaches(local.memory) && local.memory.shared.location().is_some();
        let kind = iov
            .iter()
            .find(|local| local.len > 0)
            .map(|local| local.memory.kind());
        let Some(kind) = kind else {
            end(completion);
            return Ok(Posted::Done);
        };
        let posted = match far {
            // Entries of two types need two lanes: they are staged one after another.
            Some(far)
                if iov
                    .iter()
                    .all(|local| local.len == 0 || (is_near(local) && local.memory.kind() == kind)) =>
            {
                let direction = match (kind, memory.kind(), is_put) {
                    (MemoryType::Host, MemoryType::Host, _) => return Err(staged::host_to_host()),
                    (MemoryType::Device, MemoryType::Device, _) => Direction::InDevice,
                    (MemoryType::Host, MemoryType::Device, true)
                    | (MemoryType::Device, MemoryType::Host, false) => Direction::ToDevice,
                    (MemoryType::Device, MemoryType::Host, true)
                    | (MemoryType::Host, MemoryType::Device, false) => Direction::ToHost,
                };
                self.post(operation, iov, far, offset, direction, completion)?;
                Posted::InProgress
            }
            _ => {
                self.stage(iov, &memory, offset, is_put)?;
                end(completion);
                Posted::Done
            }
        };
        self.count(len);
        Ok(posted)
    }

    /// Submits a copy that the engines do alone.
    fn post(
        &mut self,
        operation: &'static str,
        iov: &[Local<'_>],
        far: &Location,
        offset: u64,
        direction: Direction,
        completion: Option<&Completion>,
    ) -> Result<()> {
        let mut parts = std::mem::take(&mut self.parts);
        let answer = self.post_parts(operation, iov, far, offset, direction, completion, &mut parts);
        parts.clear();
        self.parts = parts;
        answer
    }

    #[expect(clippy::too_many_arguments, reason = "the parts are a buffer of the caller")]
    fn post_parts(
        &mut self,
        operation: &'static str,
        iov: &[Local<'_>],
        far: &Location,
        mut offset: u64,
        direction: Direction,
        completion: Option<&Completion>,
        parts: &mut Vec<(u64, u64, u64)>,
    ) -> Result<()> {
        let is_put = operation == PUT;
        let (card, lane) = self.lane(operation, direction)?;
        // What was added before is another operation's: an error must not discard it.
        lane.submit()?;
        if let ([local], Direction::InDevice) = (iov, direction) {
            // One range within the card: all its engines share it.
            let (Some(near), far) = (local.memory.shared.location(), far.part(offset, local.len)) else {
                return Err(staged::host_to_host());
            };
            let near = near.part(local.offset, local.len);
            let (dst, src) = if is_put { (far, near) } else { (near, far) };
            let submitted = card.device()?.copy(dst, src)?;
            lane.push_other(submitted, completion);
            return Ok(());
        }
        let mut entries = iov.iter().filter(|local| local.len > 0).peekable();
        while let Some(first) = entries.next() {
            let Some(near) = first.memory.shared.location() else {
                unreachable!("the caller checked that the engines see the memory");
            };
            parts.clear();
            split(parts, first, &mut offset, is_put);
            while let Some(next) = entries.next_if(|next| next.memory.is_same(first.memory)) {
                split(parts, next, &mut offset, is_put);
            }
            let (dst, src) = if is_put { (far, near) } else { (near, far) };
            if let Err(error) = lane.copy_parts(dst, src, parts) {
                lane.discard();
                return Err(error);
            }
        }
        lane.on_end(completion);
        match lane.submit() {
            Ok(()) => Ok(()),
            // The completion has the error.
            Err(_) if completion.is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn stage(&mut self, iov: &[Local<'_>], memory: &Memory, mut offset: u64, is_put: bool) -> Result<()> {
        // Earlier operations of this transport happen before.
        self.drain(Deadline::NEVER)?;
        for local in iov.iter().filter(|local| local.len > 0) {
            let near = Part {
                memory: local.memory,
                offset: local.offset,
            };
            let far = Part { memory, offset };
            let (dst, src) = if is_put { (far, near) } else { (near, far) };
            self.stage.copy(dst, src, local.len)?;
            self.stats.staged_bytes += local.len;
            offset += local.len;
        }
        Ok(())
    }

    /// Orders operations: those that follow begin when all before are complete. The next operation
    /// in another direction waits for them.
    pub fn fence(&mut self) {
        for (at, lane) in self.lanes.iter().enumerate() {
            let is_busy = lane.as_ref().is_some_and(Lane::is_busy);
            self.fenced |= u8::from(is_busy) << at;
        }
    }

    /// Submits what waits to be, ends operations that are complete, and tries pending operations.
    /// Returns the number of submissions and pending operations that ended. Does not wait.
    ///
    /// # Errors
    /// `Forked`, or the failure of a submission.
    pub fn progress(&mut self) -> Result<usize> {
        self.domain.card.check_process("gaudi_cpy progress")?;
        let mut ended = 0;
        let mut answer = Ok(());
        for lane in self.lanes.iter_mut().flatten() {
            if lane.open_packets() > 0 && lane.room().is_ok() {
                answer = answer.and(lane.submit());
            }
            ended += lane.progress();
        }
        if self.pending.len() > 0 {
            let pending = std::mem::take(&mut self.pending);
            let (mut rest, left) = pending.run(self, |error| error.kind() == ErrorKind::WouldBlock);
            rest.append(std::mem::take(&mut self.pending));
            self.pending = rest;
            ended += left;
        }
        answer.map(|()| ended)
    }

    /// Adds an operation that would have blocked. [`progress`](Self::progress) repeats it, after
    /// those that were added before, until it does not fail with `WouldBlock`. The operation
    /// handles its other failures.
    pub fn pending_add(&mut self, work: impl FnMut(&mut Self) -> Result<()> + Send + 'static) {
        self.pending.add(Box::new(work));
    }

    /// Returns the number of pending operations.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Drops the pending operations. Returns their number.
    pub fn pending_purge(&mut self) -> usize {
        self.pending.clear()
    }

    /// Starts to flush: `completion` ends when all operations before are complete. Pending
    /// operations are not among them.
    ///
    /// # Errors
    /// `Forked`, or the failure of a submission.
    pub fn flush(&mut self, completion: Option<&Completion>) -> Result<Posted> {
        self.domain.card.check_process("gaudi_cpy flush")?;
        let mut waits = 0;
        for lane in self.lanes.iter_mut().flatten() {
            lane.submit()?;
            lane.progress();
            match completion {
                Some(completion) => waits += usize::from(lane.on_idle(completion)),
                None => waits += usize::from(lane.is_busy()),
            }
        }
        if waits == 0 {
            end(completion);
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            // Each lane ends it once; the flush is one operation.
            completion.expect_more(waits - 1);
        }
        Ok(Posted::InProgress)
    }

    /// Waits until all operations are complete. Pending operations are not among them.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed.
    /// - `Forked`, or the failure of a submission.
    /// - Another error of the driver's wait: the operations stay in progress.
    pub fn flush_wait(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        self.domain.card.check_process("gaudi_cpy flush")?;
        self.drain(deadline.into())
    }

    fn drain(&mut self, deadline: Deadline) -> Result<()> {
        let mut answer = Ok(());
        for lane in self.lanes.iter_mut().flatten() {
            // Every lane is drained, also after a failure.
            answer = answer.and(lane.drain(deadline));
        }
        if answer.is_ok() {
            self.fenced = 0;
        }
        answer
    }
}

fn end(completion: Option<&Completion>) {
    if let Some(completion) = completion {
        completion.end(Ok(()));
    }
}

/// Adds a copy to a lane. After an error an empty submission is discarded.
fn add(lane: &mut Lane, dst: Location, src: Location) -> Result<()> {
    match lane.copy(dst, src) {
        Ok(()) => Ok(()),
        Err(error) => {
            if lane.open_packets() == 0 {
                lane.discard();
            }
            Err(error)
        }
    }
}

/// Adds an entry of an iov as parts of two ranges: (to, from, length).
fn split(parts: &mut Vec<(u64, u64, u64)>, local: &Local<'_>, offset: &mut u64, is_put: bool) {
    let mut at = 0;
    while at < local.len {
        let len = (local.len - at).min(PART);
        let (near, far) = (local.offset + at, *offset + at);
        parts.push(if is_put {
            (far, near, len)
        } else {
            (near, far, len)
        });
        at += len;
    }
    *offset += local.len;
}

impl Drop for Transport {
    fn drop(&mut self) {
        if self.domain.card.owner.is_foreign() {
            return;
        }
        for lane in self.lanes.iter_mut().flatten() {
            if let Err(error) = lane.drain(Deadline::NEVER) {
                tracing::warn!("transport of {}: {error}", self.domain.target());
                lane.end_all(&Err(error));
            }
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport({:?}, {:?})", self.domain, self.stats)
    }
}
