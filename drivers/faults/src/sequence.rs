//! Random sequences of operations of `gaudi_device`, with a model of the bytes that they write.

use gaudi_device::{Buffer, Completion, Deadline, Device, HostBuffer, HostMapping, Location};
use gaudi_seam::{CloseError, Error, ErrorKind, Operation, Result};

use crate::invariant::Invariant;
use crate::op::{Kind, Op};
use crate::record::Refusal;
use crate::world::Run;

const BUFFERS: usize = 4;
const HOSTS: usize = 4;
/// Copies to the device, to the host, and within the device. Those of one lane run in the order of
/// their calls.
const LANES: usize = 3;
/// The most bytes of a buffer or a mapping.
const LARGEST: u64 = 6000;
/// Operations whose refusal a copy must report. A failed wait for room belongs to an earlier one.
const NEEDS: &[Operation] = &[
    Operation::Submit,
    Operation::CbCreate,
    Operation::CbInfo,
    Operation::Mmap,
];

/// The library's own deadline ends these calls, after long delays of their waits.
const OWN: &[ErrorKind] = &[ErrorKind::TimedOut];

/// A buffer or mapping with its expected state.
struct Memory<T> {
    object: T,
    id: u64,
    known: Known,
    /// The memory of a mapping that the cache made.
    cached: Option<HostBuffer>,
}

#[derive(Default)]
struct Known {
    /// The expected bytes, if they are known.
    content: Option<Vec<u8>>,
    /// Copies in flight that read it and that write it, by lane.
    reads: [u32; LANES],
    writes: [u32; LANES],
    /// A submission without a completion may still access it.
    untracked: bool,
    /// A failed close may have unmapped it.
    unmapped: bool,
}

impl Known {
    fn is_idle(&self) -> bool {
        !self.untracked && self.reads == [0; LANES] && self.writes == [0; LANES]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Buffer(usize),
    Host(usize),
}

struct Pending {
    completion: Completion,
    lane: usize,
    reads: Option<u64>,
    writes: u64,
    ended: Option<std::result::Result<(), ErrorKind>>,
}

/// The objects of a sequence.
pub(crate) struct Rig<'a, 'r> {
    run: &'a Run<'r>,
    device: &'r Device,
    buffers: [Option<Memory<Buffer>>; BUFFERS],
    hosts: [Option<Memory<HostMapping>>; HOSTS],
    pending: Vec<Pending>,
    next: u64,
    untracked_work: bool,
}

fn among<T>(slots: &[Option<T>], word: u16, is_held: bool) -> usize {
    let fits = |slot: &&(usize, &Option<T>)| slot.1.is_some() == is_held;
    let fitting = slots.iter().enumerate().filter(|slot| fits(&slot));
    match fitting.clone().count() {
        0 => usize::from(word) % slots.len(),
        count => fitting
            .map(|(slot, _)| slot)
            .nth(usize::from(word) % count)
            .unwrap_or(0),
    }
}

fn length(c: u16) -> u64 {
    match c % 3 {
        0 => 1 + u64::from(c / 3) % 200,
        _ => 1 + u64::from(c) % LARGEST,
    }
}

impl<'a, 'r> Rig<'a, 'r> {
    pub(crate) fn new(run: &'a Run<'r>) -> Self {
        Self {
            run,
            device: run.device,
            buffers: Default::default(),
            hosts: Default::default(),
            pending: Vec::new(),
            next: 0,
            untracked_work: false,
        }
    }

    fn violated(&self, invariant: Invariant, what: String) {
        self.run.record.lock().violated(invariant, what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.run.record.lock().violations.is_empty()
    }

    /// Whether memory may be compared: no answer reported the end of work that still runs.
    fn trusts(&self) -> bool {
        !self.run.record.lock().false_end
    }

    /// Checks a result. An error must come from the driver or a fault in this operation, or have
    /// ended a submission earlier. A success must not hide the refusal of an operation in `needs`.
    fn judge<T>(&self, what: &str, answer: &Result<T>, needs: &[Operation], own: &[ErrorKind]) {
        let mut record = self.run.record.lock();
        match answer {
            Err(error) if record.met.is_empty() && !own.contains(&error.kind()) => {
                let text = format!("{what} failed, and no fault was injected: {error}");
                record.violated(Invariant::TruthfulErrors, text);
            }
            Err(error) => {
                let (kind, errno) = (error.kind(), error.errno());
                let is_cause = |refusal: &Refusal| refusal.kind == kind && refusal.errno == errno;
                let mut causes = record.refusals.iter().chain(&record.ended);
                if !own.contains(&kind) && !causes.any(is_cause) {
                    let text = format!(
                        "{what} failed with an error that no call returned: {error}; the refusals: {:?}",
                        record.refusals
                    );
                    record.violated(Invariant::TruthfulErrors, text);
                }
            }
            Ok(_) => {
                // An allocation is retried after the heap has freed its unused memory.
                let may_be_ignored =
                    |refusal: &Refusal| refusal.is_retried() || refusal.kind == ErrorKind::OutOfDeviceMemory;
                let hidden = record
                    .refusals
                    .iter()
                    .find(|refusal| needs.contains(&refusal.operation) && !may_be_ignored(refusal));
                if let Some(refusal) = hidden.copied() {
                    record.violated(
                        Invariant::TruthfulErrors,
                        format!("{what} succeeded despite {refusal:?}"),
                    );
                }
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn bytes(&self, word: u16, len: u64) -> Vec<u8> {
        let (first, step) = ((word ^ self.next as u16) as u8, (word >> 8) as u8 | 1);
        (0..len)
            .map(|at| first.wrapping_add(step.wrapping_mul(at as u8)) ^ (at >> 8) as u8)
            .collect()
    }

    pub(crate) fn step(&mut self, op: Op) {
        self.run.record.lock().begin();
        let Op { kind, a, b, c } = op;
        let (buffer, other) = (among(&self.buffers, a, true), among(&self.buffers, b, true));
        let (host, other_host) = (among(&self.hosts, a, true), among(&self.hosts, b, true));
        match kind {
            Kind::Alloc => self.alloc(among(&self.buffers, a, false), b, c),
            Kind::AllocHost => self.alloc_host(among(&self.hosts, a, false), c),
            Kind::HostWrite => self.host_write(host, c),
            Kind::CopyToDevice => self.copy(At::Buffer(buffer), At::Host(other_host), c),
            Kind::CopyToHost => self.copy(At::Host(host), At::Buffer(other), c),
            Kind::CopyInDevice => self.copy(At::Buffer(buffer), At::Buffer(other), c),
            Kind::Fill => self.fill(
                if b % 2 == 0 {
                    At::Buffer(buffer)
                } else {
                    At::Host(host)
                },
                c,
            ),
            Kind::Write => self.write(buffer, c),
            Kind::Read => self.read(buffer),
            Kind::Map => self.map(among(&self.hosts, a, false), c),
            Kind::DropCached => self.drop_cached(host),
            Kind::Poll => self.poll(a),
            Kind::Wait => self.wait(a, Deadline::NEVER),
            Kind::WaitNot => self.wait(a, std::time::Duration::ZERO.into()),
            Kind::Drain => self.drain(),
            Kind::Info => {
                let answer = self.device.info();
                // Queries that older drivers lack may fail.
                self.judge("Device::info", &answer, &[], &[]);
            }
            Kind::DropBuffer => self.buffers[buffer] = None,
            Kind::DropHost => self.hosts[host] = None,
            Kind::CloseBuffer => self.close_buffer(buffer),
            Kind::CloseHost => self.close_host(host),
            Kind::Check => self.check(if b % 2 == 0 {
                At::Buffer(buffer)
            } else {
                At::Host(host)
            }),
        }
    }

    fn alloc(&mut self, slot: usize, b: u16, c: u16) {
        if self.buffers[slot].is_some() {
            return;
        }
        let align = 1 << (b % 12);
        let answer = self.device.alloc_aligned(length(c), align);
        let needs = [Operation::MemAlloc, Operation::MemMapDevice];
        self.judge("Device::alloc", &answer, &needs, &[]);
        let Ok(buffer) = answer else { return };
        let (at, len) = (buffer.address().0, buffer.len());
        if at % align != 0 {
            let what = format!("{buffer:?} is not aligned to {align}");
            self.violated(Invariant::ForeignBytes, what);
        }
        let mapped = self.buffers.iter().flatten().filter(|one| !one.known.unmapped);
        for other in mapped.map(|memory| &memory.object) {
            if at < other.address().0 + other.len() && other.address().0 < at + len {
                let what = format!("a new buffer at {at:#x} + {len} lies in {other:?}");
                self.violated(Invariant::ForeignBytes, what);
            }
        }
        self.buffers[slot] = Some(Memory {
            object: buffer,
            id: self.id(),
            known: Known::default(),
            cached: None,
        });
    }

    fn host(&mut self, slot: usize, object: HostMapping, cached: Option<HostBuffer>) {
        let content = Some(vec![0; object.len() as usize]);
        let known = Known {
            content,
            ..Known::default()
        };
        let id = self.id();
        self.hosts[slot] = Some(Memory {
            object,
            id,
            known,
            cached,
        });
    }

    fn alloc_host(&mut self, slot: usize, c: u16) {
        if self.hosts[slot].is_some() {
            return;
        }
        let answer = self.device.alloc_host(length(c) as usize);
        self.judge("Device::alloc_host", &answer, &[Operation::MemMapHost], &[]);
        if let Ok(host) = answer {
            self.host(slot, host, None);
        }
    }

    fn map(&mut self, slot: usize, c: u16) {
        if self.hosts[slot].is_some() {
            return;
        }
        let Ok(memory) = HostBuffer::new(length(c) as usize) else {
            return;
        };
        let answer = self.device.map(&memory);
        self.judge("Device::map", &answer, &[Operation::MemMapHost], &[]);
        if let Ok(host) = answer {
            self.host(slot, host, Some(memory));
        }
    }

    fn drop_cached(&mut self, slot: usize) {
        if let Some(host) = &mut self.hosts[slot] {
            host.cached = None;
        }
    }

    fn host_write(&mut self, slot: usize, c: u16) {
        let len = match &self.hosts[slot] {
            Some(host) if host.known.is_idle() => host.object.len(),
            _ => return,
        };
        let start = u64::from(c) % len;
        let bytes = self.bytes(c, len - start);
        let trusts = self.trusts();
        let Some(host) = &mut self.hosts[slot] else { return };
        let answer = host.object.write(start, &bytes);
        match &mut host.known.content {
            Some(content) => content[start as usize..].copy_from_slice(&bytes),
            None if start == 0 && trusts => host.known.content = Some(bytes),
            None => {}
        }
        if let Err(error) = answer {
            let what = format!("writing to host memory failed: {error}");
            self.violated(Invariant::TruthfulErrors, what);
        }
    }

    fn known(&mut self, at: At) -> Option<(u64, &mut Known)> {
        match at {
            At::Buffer(slot) => self.buffers[slot].as_mut().map(|one| (one.id, &mut one.known)),
            At::Host(slot) => self.hosts[slot].as_mut().map(|one| (one.id, &mut one.known)),
        }
    }

    fn len(&self, at: At) -> Option<u64> {
        match at {
            At::Buffer(slot) => {
                let one = self.buffers[slot].as_ref()?;
                (!one.known.unmapped).then(|| one.object.len())
            }
            At::Host(slot) => {
                let one = self.hosts[slot].as_ref()?;
                (!one.known.unmapped).then(|| one.object.len())
            }
        }
    }

    fn location(&self, at: At, start: u64, len: u64) -> Result<Location> {
        let missing = || Error::new(ErrorKind::NotFound, "location");
        let range = start..start + len;
        match at {
            At::Buffer(slot) => self.buffers[slot].as_ref().ok_or_else(missing)?.object.at(range),
            At::Host(slot) => self.hosts[slot].as_ref().ok_or_else(missing)?.object.at(range),
        }
    }

    fn all(&self) -> impl Iterator<Item = At> + use<> {
        let hosts = (0..HOSTS).map(At::Host);
        (0..BUFFERS).map(At::Buffer).chain(hosts)
    }

    /// Waits for copies of other lanes that use the same memory. Returns whether none remains.
    fn finish_others(&mut self, lane: usize, from: Option<At>, to: At) -> bool {
        for patient in [true, false] {
            let others = |counts: &[u32; LANES]| (0..LANES).any(|other| other != lane && counts[other] > 0);
            let from_met = from
                .and_then(|from| self.known(from))
                .is_some_and(|(_, known)| known.untracked || others(&known.writes));
            let to_met = self
                .known(to)
                .is_some_and(|(_, known)| known.untracked || others(&known.writes) || others(&known.reads));
            if !from_met && !to_met {
                return true;
            }
            if patient {
                self.drain();
                self.run.record.lock().begin();
            }
        }
        false
    }

    fn copy(&mut self, to: At, from: At, c: u16) {
        let (Some(to_len), Some(from_len)) = (self.len(to), self.len(from)) else {
            return;
        };
        if to == from {
            return;
        }
        let most = to_len.min(from_len);
        let len = match c % 4 {
            0 => most,
            _ => u64::from(c) % (most + 1),
        };
        let start = u64::from(c / 7) % (to_len - len + 1);
        let from_start = u64::from(c / 11) % (from_len - len + 1);
        let lane = match (to, from) {
            (At::Buffer(_), At::Host(_)) => 0,
            (At::Host(_), _) => 1,
            _ => 2,
        };
        if !self.finish_others(lane, Some(from), to) {
            return;
        }
        let range = from_start as usize..(from_start + len) as usize;
        let bytes = self
            .known(from)
            .and_then(|(_, known)| known.content.as_ref()?.get(range).map(<[u8]>::to_vec));
        let ends = (
            self.location(to, start, len),
            self.location(from, from_start, len),
        );
        let (Ok(dst), Ok(src)) = ends else { return };
        let answer = self.device.copy(dst, src);
        self.record_transfer("Device::copy", answer, (lane, Some(from), to), start, len, bytes);
    }

    fn fill(&mut self, to: At, c: u16) {
        let Some(all) = self.len(to) else { return };
        let len = match c % 3 {
            0 => u64::from(c) % (all + 1),
            _ => all,
        };
        let start = u64::from(c / 5) % (all - len + 1);
        let lane = match to {
            At::Buffer(_) => 2,
            At::Host(_) => 1,
        };
        if !self.finish_others(lane, None, to) {
            return;
        }
        let Ok(dst) = self.location(to, start, len) else {
            return;
        };
        let value = (c >> 8) as u8;
        let answer = self.device.fill(dst, value);
        let bytes = Some(vec![value; len as usize]);
        self.record_transfer("Device::fill", answer, (lane, None, to), start, len, bytes);
    }

    fn record_transfer(
        &mut self,
        what: &str,
        answer: Result<Completion>,
        (lane, from, to): (usize, Option<At>, At),
        start: u64,
        len: u64,
        bytes: Option<Vec<u8>>,
    ) {
        self.judge(what, &answer, NEEDS, OWN);
        let trusts = self.trusts();
        let Ok(completion) = answer else {
            // Some of its submissions may run, and only a drain waits for them.
            self.untracked_work = true;
            for at in from.into_iter().chain([to]) {
                if let Some((_, known)) = self.known(at) {
                    known.untracked = true;
                }
            }
            if let Some((_, known)) = self.known(to) {
                known.content = None;
            }
            return;
        };
        if len == 0 {
            return;
        }
        let reads = from.and_then(|from| self.known(from)).map(|(id, known)| {
            known.reads[lane] += 1;
            id
        });
        let whole = self.len(to) == Some(len);
        let Some((id, known)) = self.known(to) else { return };
        let range = start as usize..(start + len) as usize;
        match (bytes.filter(|_| trusts), &mut known.content) {
            (Some(bytes), Some(content)) => content[range].copy_from_slice(&bytes),
            (Some(bytes), none) if whole => *none = Some(bytes),
            (_, content) => *content = None,
        }
        known.writes[lane] += 1;
        self.pending.push(Pending {
            completion,
            lane,
            reads,
            writes: id,
            ended: None,
        });
    }

    fn write(&mut self, slot: usize, c: u16) {
        let at = At::Buffer(slot);
        let Some(all) = self.len(at) else { return };
        if !self.finish_others(0, None, at) {
            return;
        }
        let start = u64::from(c) % all;
        let bytes = self.bytes(c, all - start);
        let Some(buffer) = self.buffers[slot].as_ref().map(|one| one.object.clone()) else {
            return;
        };
        let answer = self.device.write(&buffer, start, &bytes);
        self.judge("Device::write", &answer, NEEDS, OWN);
        let trusts = self.trusts();
        self.untracked_work |= answer.is_err();
        let Some((_, known)) = self.known(at) else { return };
        match answer {
            Ok(()) => match &mut known.content {
                Some(content) => content[start as usize..].copy_from_slice(&bytes),
                none if start == 0 && trusts => *none = Some(bytes),
                _ => {}
            },
            Err(_) => (known.content, known.untracked) = (None, true),
        }
    }

    fn read(&mut self, slot: usize) {
        let Some(buffer) = &self.buffers[slot] else { return };
        let known = &buffer.known;
        if known.unmapped || known.untracked || known.writes != [0; LANES] {
            return;
        }
        let mut seen = vec![0; buffer.object.len() as usize];
        let answer = self.device.read(&buffer.object, 0, &mut seen);
        self.judge("Device::read", &answer, NEEDS, OWN);
        if answer.is_err() {
            // A part of the read may still run.
            self.untracked_work = true;
        } else if self.trusts() {
            self.compare(At::Buffer(slot), known.content.as_deref(), &seen);
        }
        let failed = answer.is_err();
        if let Some((_, known)) = self.known(At::Buffer(slot)) {
            known.untracked |= failed;
        }
    }

    fn check(&mut self, at: At) {
        match at {
            At::Buffer(slot) => self.read(slot),
            At::Host(slot) => {
                let Some(host) = &self.hosts[slot] else { return };
                if !host.known.is_idle() || !self.trusts() {
                    return;
                }
                let mut seen = vec![0; host.object.len() as usize];
                if host.object.read(0, &mut seen).is_ok() {
                    self.compare(at, host.known.content.as_deref(), &seen);
                }
            }
        }
    }

    fn compare(&self, at: At, wanted: Option<&[u8]>, seen: &[u8]) {
        let Some(wanted) = wanted.filter(|wanted| *wanted != seen) else {
            return;
        };
        let place = wanted.iter().zip(seen).position(|(wanted, seen)| wanted != seen);
        let place = place.unwrap_or(0);
        self.violated(
            Invariant::ForeignBytes,
            format!(
                "{at:?} of {} bytes differs from byte {place} on: expected {:#04x}, seen {:#04x}",
                wanted.len(),
                wanted[place],
                seen[place]
            ),
        );
    }

    /// Records the reported result of a submission, which must not change.
    fn end(&mut self, index: usize, how: std::result::Result<(), ErrorKind>) {
        let pending = &mut self.pending[index];
        if let Some(before) = pending.ended {
            if before.is_ok() != how.is_ok() {
                let what = format!("{:?} ended as {before:?} and then as {how:?}", pending.completion);
                self.violated(Invariant::EndsOnce, what);
            }
            return;
        }
        pending.ended = Some(how);
        let (lane, reads, writes) = (pending.lane, pending.reads, pending.writes);
        for at in self.all() {
            let Some((id, known)) = self.known(at) else {
                continue;
            };
            if Some(id) == reads {
                known.reads[lane] = known.reads[lane].saturating_sub(1);
            }
            if id == writes {
                known.writes[lane] = known.writes[lane].saturating_sub(1);
            }
            if how.is_err() {
                // The results of other copies are unknown now.
                known.content = None;
            }
        }
    }

    /// Checks the answer to a poll or a wait.
    fn record_answer(&mut self, index: usize, what: &str, answer: Result<bool>) {
        self.judge(what, &answer, &[Operation::WaitCs], &[]);
        let pending = &self.pending[index];
        match answer {
            Ok(true) => {
                let seq = pending.completion.sequence().unwrap_or(0);
                let record = self.run.record.lock();
                let runs = record.submissions.get(&seq).is_some_and(|known| !known.is_done);
                drop(record);
                if runs && pending.ended.is_none() {
                    let what = format!(
                        "{:?} is reported complete, and the driver did not report its end",
                        pending.completion
                    );
                    self.violated(Invariant::EndsOnce, what);
                }
                self.end(index, Ok(()));
            }
            Ok(false) => {
                if pending.ended == Some(Ok(())) {
                    let what = format!("{:?} is reported running after its end", pending.completion);
                    self.violated(Invariant::EndsOnce, what);
                }
            }
            Err(error) => {
                let kind = error.kind();
                if matches!(kind, ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io) {
                    self.end(index, Err(kind));
                }
            }
        }
    }

    fn poll(&mut self, a: u16) {
        if self.pending.is_empty() {
            return;
        }
        let index = usize::from(a) % self.pending.len();
        let answer = self.pending[index].completion.poll();
        self.record_answer(index, "Completion::poll", answer);
    }

    fn wait(&mut self, a: u16, deadline: Deadline) {
        if self.pending.is_empty() {
            return;
        }
        let index = usize::from(a) % self.pending.len();
        let answer = match self.pending[index].completion.wait(deadline) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut && deadline != Deadline::NEVER => Ok(false),
            Err(error) => Err(error),
        };
        self.record_answer(index, "Completion::wait", answer);
    }

    fn drain(&mut self) {
        let answer = self.device.drain(Deadline::NEVER);
        self.judge("Device::drain", &answer, &[Operation::WaitCs], &[]);
        let drained = answer.is_ok();
        for index in 0..self.pending.len() {
            self.run.record.lock().begin();
            let answer = self.pending[index].completion.poll();
            let refused = !self.run.record.lock().refusals.is_empty();
            if drained && matches!(answer, Ok(false)) && !refused && self.pending[index].ended.is_none() {
                let what = format!("{:?} runs after a drain", self.pending[index].completion);
                self.violated(Invariant::EndsOnce, what);
            }
            // A drain covers every submission whose failure its queue has recorded.
            if let (true, Err(error), None) = (drained, &answer, self.pending[index].ended) {
                let what = format!("Device::drain succeeded, and a submission failed: {error}");
                if !refused {
                    self.violated(Invariant::TruthfulErrors, what);
                }
            }
            self.record_answer(index, "Completion::poll", answer);
        }
        self.pending.retain(|pending| pending.ended.is_none());
        if drained {
            self.untracked_work = false;
            for at in self.all() {
                if let Some((_, known)) = self.known(at) {
                    known.untracked = false;
                }
            }
        }
    }

    /// The errors that a close may report because of running work.
    fn in_use(&self) -> &'static [ErrorKind] {
        let busy = self.pending.iter().any(|pending| pending.ended != Some(Ok(())));
        match busy || self.untracked_work || self.run.record.lock().work_may_run() {
            true => &[ErrorKind::InUse],
            false => &[],
        }
    }

    fn close_buffer(&mut self, slot: usize) {
        let Some(memory) = self.buffers[slot].take() else {
            return;
        };
        let own = self.in_use();
        match memory.object.close() {
            Ok(()) if own.is_empty() && !memory.known.unmapped => {
                self.judge("Buffer::close", &Ok(()), &[Operation::MemFree], &[]);
            }
            Ok(()) => {}
            Err(CloseError { object, error }) => {
                self.judge::<()>("Buffer::close", &Err(error), &[], own);
                let known = Known {
                    unmapped: true,
                    content: None,
                    ..memory.known
                };
                self.buffers[slot] = Some(Memory {
                    object,
                    known,
                    ..memory
                });
            }
        }
    }

    fn close_host(&mut self, slot: usize) {
        let Some(memory) = self.hosts[slot].take() else {
            return;
        };
        let mut own = self.in_use();
        if memory.cached.is_some() {
            // The cache holds the mapping as well.
            own = &[ErrorKind::InUse];
        }
        match memory.object.close() {
            Ok(()) => {}
            Err(CloseError { object, error }) => {
                self.judge::<()>("HostMapping::close", &Err(error), &[], own);
                let known = Known {
                    unmapped: true,
                    content: None,
                    ..memory.known
                };
                self.hosts[slot] = Some(Memory {
                    object,
                    known,
                    ..memory
                });
            }
        }
    }

    /// Compares all memory whose bytes are known. No fault is armed any more.
    pub(crate) fn finish(mut self) {
        {
            let mut record = self.run.record.lock();
            record.begin();
            if record.work_failed || record.false_end || record.was_reset {
                return;
            }
        }
        self.drain();
        let (counted, taken) = (self.device.stats().submissions, self.run.record.lock().accepted);
        if counted != taken {
            let what = format!("the device counts {counted} submissions, and the driver accepted {taken}");
            self.violated(Invariant::EndsOnce, what);
        }
        for at in self.all() {
            self.run.record.lock().begin();
            self.check(at);
        }
    }
}
