//! Sequences of operations of a memory domain and its transport, with a model of the bytes.

#![expect(
    unsafe_code,
    reason = "a registration promises that its memory stays, and this memory is never freed"
)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gaudi_copy::{
    AllocOptions, Attached, Completion, Local, Memory, MemoryDomain, MemoryType, Transport, memory_types,
};
use gaudi_device::Deadline;
use gaudi_seam::{Errno, Error, ErrorKind, Operation, Result};
use gaudi_sys::lock;

use crate::bytes::Bytes;
use crate::invariant::Invariant;
use crate::op::{Kind, Op};
use crate::rig::{among, length};
use crate::world::Run;

/// Memories of one type that a sequence holds at most.
const SLOTS: usize = 4;
/// Bytes of memory of the process that sequences register.
const OWN: usize = 16 << 10;
/// The errors of a transport that has no room for the operation now.
const FULL: &[ErrorKind] = &[ErrorKind::WouldBlock];

/// Memory of the domain, with its expected bytes.
struct Held {
    memory: Memory,
    key: Vec<u8>,
    /// The expected bytes, if they are known.
    content: Option<Bytes>,
    /// Whether an operation that uses it was posted and no flush has succeeded since.
    is_busy: bool,
    /// Whether it is memory of the process that the domain registered.
    registered: bool,
}

/// How an operation with a completion ended: its number, and the error.
type End = (u64, Option<(ErrorKind, Option<Errno>)>);

/// The bytes that gets delivered, and the expected ones.
type Gets = Vec<(Vec<u8>, Vec<u8>)>;

/// The objects of a sequence.
pub(crate) struct DomainRig<'a, 'r> {
    run: &'a Run<'r>,
    domain: &'a MemoryDomain,
    /// Dropped before the memory.
    transport: Option<Transport>,
    device: [Option<Held>; SLOTS],
    host: [Option<Held>; SLOTS],
    /// Memory whose free failed: the driver may have unmapped it.
    refused: Vec<Held>,
    /// The direction of the operations that are in flight.
    direction: Option<usize>,
    /// Operations that have a completion.
    posted: u64,
    ends: Arc<Mutex<Vec<End>>>,
    gets: Arc<Mutex<Gets>>,
    /// An operation failed. The bytes are unknown then.
    has_error: bool,
    words: u16,
}

impl<'a, 'r> DomainRig<'a, 'r> {
    pub(crate) fn new(run: &'a Run<'r>, domain: &'a MemoryDomain) -> Result<Self> {
        Ok(Self {
            run,
            domain,
            transport: Some(Transport::new(domain)?),
            device: Default::default(),
            host: Default::default(),
            refused: Vec::new(),
            direction: None,
            posted: 0,
            ends: Arc::default(),
            gets: Arc::default(),
            has_error: false,
            words: 0,
        })
    }

    fn violated(&self, invariant: Invariant, what: String) {
        self.run.record.lock().violated(invariant, what);
    }

    /// Whether bytes may be compared. An operation that was accepted may have ended with an error
    /// that no flush has reported yet.
    fn trusts(&self) -> bool {
        !self.has_error
            && !self.run.record.has_false_end()
            && lock(&self.ends).iter().all(|(_, error)| error.is_none())
    }

    fn judge<T>(&mut self, what: &str, answer: &Result<T>, needs: &[Operation], own: &[ErrorKind]) {
        self.run.judge(what, answer, needs, own);
        if let Err(error) = answer {
            self.has_error |= !own.contains(&error.kind());
        }
    }

    /// As [`judge`](Self::judge), for an operation on memory.
    fn judge_memory<T>(&mut self, what: &str, answer: &Result<T>, needs: &[Operation]) {
        self.run.judge_memory(what, answer, needs, &[]);
        self.has_error |= answer.is_err();
    }

    fn transport(&mut self) -> &mut Transport {
        match &mut self.transport {
            Some(transport) => transport,
            None => unreachable!("the transport is dropped by `close`"),
        }
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        self.words = self.words.wrapping_add(257);
        self.run.pool.random(self.words, len)
    }

    pub(crate) fn step(&mut self, op: Op) {
        let Op { kind, a, b, c } = op;
        match kind {
            Kind::DomainAlloc => self.alloc(b, c),
            Kind::DomainAllocHost => self.alloc_host(c),
            Kind::DomainRegister => self.register(b, c),
            Kind::DomainRegisterDevice => self.register_device(a, c),
            Kind::DomainFree => self.free(a, b % 2 == 0),
            Kind::DomainDrop => {
                let slots = if b % 2 == 0 {
                    &mut self.device
                } else {
                    &mut self.host
                };
                // Registered memory is deregistered: a copy in flight may use it.
                let slot = among(slots, a, true);
                slots[slot].take_if(|held| !held.registered);
            }
            Kind::DomainQuery => self.query(a, b % 2 == 0, c),
            Kind::DomainExport => self.export(a, c),
            Kind::PutShort | Kind::PutBcopy => self.put_buffered(kind, a, c),
            Kind::GetShort | Kind::GetBcopy => self.get_buffered(kind, a, c),
            Kind::PutZcopy | Kind::GetZcopy => self.zcopy(kind, a, b, c),
            Kind::CopyZcopy => self.copy_in_device(a, b, c),
            Kind::Progress => {
                let answer = self.transport().progress();
                self.judge("Transport::progress", &answer, &[], &[]);
            }
            Kind::Flush => {
                self.flush();
            }
            // Of other places.
            _ => {}
        }
    }

    fn hold(&mut self, memory: Memory, content: Option<Bytes>, registered: bool) {
        let key = match self.domain.pack(&memory) {
            Ok(key) => key.to_bytes().to_vec(),
            Err(error) => {
                let what = format!("no key of live memory: {error}");
                return self.violated(Invariant::TruthfulErrors, what);
            }
        };
        let slots = match memory.kind() {
            MemoryType::Device => &mut self.device,
            MemoryType::Host => &mut self.host,
        };
        if let Some(slot) = slots.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(Held {
                memory,
                key,
                content,
                is_busy: false,
                registered,
            });
        }
    }

    fn alloc(&mut self, b: u16, c: u16) {
        if self.device.iter().all(Option::is_some) {
            return;
        }
        let options = match b % 3 {
            0 => AllocOptions::POOLED,
            _ => AllocOptions {
                align: 1 << (b % 12),
                ..AllocOptions::PRIVATE
            },
        };
        let answer = self.domain.alloc(length(c), options);
        let needs = [Operation::MemAlloc, Operation::MemMapDevice];
        self.judge_memory("MemoryDomain::alloc", &answer, &needs);
        if let Ok(memory) = answer {
            self.hold(memory, None, false);
        }
    }

    fn alloc_host(&mut self, c: u16) {
        if self.host.iter().all(Option::is_some) {
            return;
        }
        let len = length(c) as usize;
        let answer = self.domain.alloc_host(len);
        self.judge_memory("MemoryDomain::alloc_host", &answer, &[Operation::MemMapHost]);
        if let Ok(memory) = answer {
            let zeros = self.run.pool.filled(0, len);
            self.hold(memory, Some(zeros), false);
        }
    }

    fn register(&mut self, b: u16, c: u16) {
        let is_full = self.host.iter().all(Option::is_some);
        // Two registrations of the same bytes would need one model of them.
        if is_full || self.host.iter().flatten().any(|held| held.registered) {
            return;
        }
        let len = length(c) as usize;
        let offset = usize::from(b) % (OWN - len);
        let Some(start) = NonNull::new(own().as_ptr().wrapping_add(offset)) else {
            unreachable!("the bytes lie inside an allocation");
        };
        // SAFETY:
        // - The bytes stay mapped, readable and writable: the allocation is never freed.
        // - Only the memory object accesses them; no reference to them exists.
        let answer = unsafe { self.domain.register(start, len) };
        self.judge_memory("MemoryDomain::register", &answer, &[Operation::MemMapHost]);
        if let Ok(memory) = answer {
            self.hold(memory, None, true);
        }
    }

    fn register_device(&mut self, a: u16, c: u16) {
        let Some(held) = &self.device[among(&self.device, a, true)] else {
            return;
        };
        let offset = u64::from(c) % held.memory.len();
        let (address, len) = (held.memory.address() + offset, held.memory.len() - offset);
        let answer = self.domain.register_device(address, len);
        self.judge("MemoryDomain::register_device", &answer, &[], &[]);
        let Ok(memory) = answer else { return };
        if (memory.address(), memory.len()) != (address, len) {
            let what = format!("{len} bytes at {address:#x} were registered as {memory:?}");
            self.violated(Invariant::ForeignBytes, what);
        }
        let answer = self.domain.deregister(memory).map_err(Error::from);
        self.judge("MemoryDomain::deregister", &answer, &[], &[]);
    }

    /// Frees or deregisters memory that no operation uses. Its key and its addresses are unknown
    /// then.
    fn free(&mut self, a: u16, of_device: bool) {
        let is_flushed = self.flush();
        self.run.record.begin();
        let slots = if of_device {
            &mut self.device
        } else {
            &mut self.host
        };
        let Some(held) = slots[among(slots, a, true)].take().or_else(|| self.refused.pop()) else {
            return;
        };
        // A copy that no wait has ended holds the memory.
        let may_run = !is_flushed || self.has_error || self.run.record.lock().work_may_run();
        let own: &[ErrorKind] = if may_run { &[ErrorKind::InUse] } else { &[] };
        let (address, kind) = (held.memory.address(), held.memory.kind());
        let (what, answer) = match held.registered {
            true => ("MemoryDomain::deregister", self.domain.deregister(held.memory)),
            false => ("MemoryDomain::free", self.domain.free(held.memory)),
        };
        match answer {
            Ok(()) => {
                let unpacked = Attached::unpack(&held.key).map_err(|error| error.kind());
                if unpacked.as_ref().err() != Some(&ErrorKind::NotFound) {
                    let what = format!("the key of freed memory gives {unpacked:?}");
                    self.violated(Invariant::Leaks, what);
                }
                // After a refused free, later memory may have the addresses.
                let is_reused = self.device.iter().flatten().any(|held| {
                    let start = held.memory.address();
                    (start..start + held.memory.len()).contains(&address)
                });
                let is_device = memory_types().lookup(address, 1).kind == MemoryType::Device;
                if kind == MemoryType::Device && is_device && !is_reused {
                    let what = format!("the freed address {address:#x} is still device memory");
                    self.violated(Invariant::Leaks, what);
                }
            }
            Err(error) => {
                let (memory, error) = error.into_parts();
                self.judge::<()>(what, &Err(error), &[], own);
                self.has_error = true;
                self.refused.push(Held { memory, ..held });
            }
        }
    }

    fn query(&mut self, a: u16, of_device: bool, c: u16) {
        let answer = self.domain.query();
        // Queries that older drivers lack may fail.
        self.run.judge_memory("MemoryDomain::query", &answer, &[], &[]);
        let slots = if of_device { &self.device } else { &self.host };
        let Some(held) = &slots[among(slots, a, true)] else {
            return;
        };
        let (base, len) = (held.memory.address(), held.memory.len());
        let found = self.domain.mem_query(base + u64::from(c) % len, 1);
        let is_found = |found: &gaudi_copy::MemInfo| {
            (found.base, found.len, found.kind) == (base, len, held.memory.kind())
        };
        if !found.as_ref().is_ok_and(is_found) {
            let what = format!("the query of {:?} found {found:?}", held.memory);
            self.violated(Invariant::TruthfulErrors, what);
        }
        let attached = Attached::unpack(&held.key).map(|key| (key.address(), key.len(), key.kind()));
        if !matches!(attached, Ok(attached) if attached == (base, len, held.memory.kind())) {
            let what = format!("the key of {:?} gives {attached:?}", held.memory);
            self.violated(Invariant::TruthfulErrors, what);
        }
        let typed = memory_types().lookup(base, len).kind;
        if typed != held.memory.kind() {
            let what = format!("the type of {:?} is {typed}", held.memory);
            self.violated(Invariant::ForeignBytes, what);
        }
    }

    fn export(&mut self, a: u16, c: u16) {
        let Some(held) = &self.device[among(&self.device, a, true)] else {
            return;
        };
        let offset = u64::from(c) % held.memory.len();
        let address = held.memory.address() + offset;
        let Ok(info) = self.domain.mem_query(address, held.memory.len() - offset) else {
            return;
        };
        let answer = self.domain.dmabuf(&info);
        // Private memory cannot be exported.
        let own = [ErrorKind::InvalidInput];
        self.run
            .judge("MemoryDomain::dmabuf", &answer, &[Operation::ExportDmabuf], &own);
        if let Ok(part) = answer {
            if part.len != held.memory.len() - offset {
                let what = format!("the dma-buf of {:?} has {} bytes", held.memory, part.len);
                self.violated(Invariant::ForeignBytes, what);
            }
        }
    }

    /// Orders an operation after those of other directions.
    fn begin(&mut self, direction: usize) {
        if self
            .direction
            .replace(direction)
            .is_some_and(|other| other != direction)
        {
            self.transport().fence();
        }
    }

    /// A completion that records its end.
    fn completion(&mut self) -> Completion {
        self.posted += 1;
        let (number, ends) = (self.posted, Arc::clone(&self.ends));
        Completion::with(1, move |result| {
            let error = result.err().map(|error| (error.kind(), error.errno()));
            lock(&ends).push((number, error));
        })
    }

    /// Records whether an operation with a completion was posted.
    fn posted<T>(&mut self, answer: &Result<T>) {
        if answer.is_err() {
            // Its completion does not end.
            let number = self.posted;
            lock(&self.ends).push((number, None));
        }
    }

    fn put_buffered(&mut self, kind: Kind, a: u16, c: u16) {
        let slot = among(&self.device, a, true);
        let Some(held) = &self.device[slot] else { return };
        let config = *self.domain.config();
        let most = match kind {
            Kind::PutShort => config.short_bytes,
            _ => config.bcopy_bytes,
        };
        let len = (usize::from(c) % (most + 1)).min(held.memory.len() as usize);
        let start = u64::from(c / 7) % (held.memory.len() - len as u64 + 1);
        let (remote, address) = (Attached::to(&held.memory), held.memory.address() + start);
        let bytes = self.bytes(len);
        self.begin(0);
        let (what, answer) = match kind {
            Kind::PutShort => (
                "Transport::put_short",
                self.transport().put_short(&bytes, &remote, address),
            ),
            _ => {
                let pack = |to: &mut [u8]| {
                    to.copy_from_slice(&bytes);
                    bytes.len()
                };
                let packed = self.transport().put_bcopy(len, pack, &remote, address);
                ("Transport::put_bcopy", packed.map(drop))
            }
        };
        self.judge(what, &answer, &[Operation::CbCreate], FULL);
        if answer.is_ok() {
            self.wrote(slot, start, &bytes);
        }
    }

    /// Records bytes that a put writes.
    fn wrote(&mut self, slot: usize, start: u64, bytes: &[u8]) {
        let Some(held) = &mut self.device[slot] else {
            return;
        };
        held.is_busy = true;
        let (start, len) = (start as usize, held.memory.len() as usize);
        match &mut held.content {
            Some(content) => content[start..start + bytes.len()].copy_from_slice(bytes),
            none if bytes.len() == len => *none = Some(self.run.pool.copy(bytes)),
            None => {}
        }
    }

    fn get_buffered(&mut self, kind: Kind, a: u16, c: u16) {
        let slot = among(&self.device, a, true);
        let Some(held) = &mut self.device[slot] else {
            return;
        };
        let config = *self.domain.config();
        let most = match kind {
            Kind::GetShort => config.short_bytes,
            _ => config.bcopy_bytes,
        };
        let len = (usize::from(c) % (most + 1)).min(held.memory.len() as usize);
        let start = u64::from(c / 7) % (held.memory.len() - len as u64 + 1);
        let (remote, address) = (Attached::to(&held.memory), held.memory.address() + start);
        let range = start as usize..start as usize + len;
        let wanted = held.content.as_ref().map(|content| content[range].to_vec());
        held.is_busy = true;
        self.begin(1);
        if kind == Kind::GetShort {
            let mut seen = vec![0; len];
            let answer = self.transport().get_short(&mut seen, &remote, address);
            self.judge("Transport::get_short", &answer, &[Operation::CbCreate], FULL);
            if answer.is_ok() {
                self.compare("Transport::get_short", wanted.as_deref(), &seen);
            }
            return;
        }
        let gets = Arc::clone(&self.gets);
        let unpack = move |seen: &[u8]| {
            if let Some(wanted) = wanted {
                lock(&gets).push((seen.to_vec(), wanted));
            }
        };
        let completion = self.completion();
        let answer = self
            .transport()
            .get_bcopy(len, unpack, &remote, address, Some(&completion));
        self.posted(&answer);
        self.judge("Transport::get_bcopy", &answer, &[Operation::CbCreate], FULL);
    }

    fn compare(&self, what: &str, wanted: Option<&[u8]>, seen: &[u8]) {
        let Some(wanted) = wanted.filter(|wanted| *wanted != seen && self.trusts()) else {
            return;
        };
        let at = wanted.iter().zip(seen).position(|(wanted, seen)| wanted != seen);
        let what = format!(
            "{what}: {} bytes differ from byte {} on",
            wanted.len(),
            at.unwrap_or(0)
        );
        self.violated(Invariant::ForeignBytes, what);
    }

    /// Copies between host and device memory in one or two entries.
    fn zcopy(&mut self, kind: Kind, a: u16, b: u16, c: u16) {
        let (slot, host) = (among(&self.device, a, true), among(&self.host, b, true));
        let is_put = kind == Kind::PutZcopy;
        if is_put {
            self.write_host(host);
        }
        let (Some(far), Some(near)) = (&mut self.device[slot], &mut self.host[host]) else {
            return;
        };
        let most = far.memory.len().min(near.memory.len());
        let len = match c % 3 {
            0 => most,
            _ => u64::from(c) % (most + 1),
        };
        let start = u64::from(c / 7) % (far.memory.len() - len + 1);
        let from = u64::from(c / 11) % (near.memory.len() - len + 1);
        let (remote, address) = (Attached::to(&far.memory), far.memory.address() + start);
        let (far_range, near_range) = (
            start as usize..(start + len) as usize,
            from as usize..(from + len) as usize,
        );
        (far.is_busy, near.is_busy) = (true, true);
        let memory = near.memory.clone();
        let first = if b % 2 == 0 { len } else { len / 2 };
        let locals = (
            Local::at(&memory, from, first),
            Local::at(&memory, from + first, len - first),
        );
        let (Ok(one), Ok(other)) = locals else { return };
        self.begin(if is_put { 0 } else { 1 });
        let completion = self.completion();
        let transport = self.transport();
        let answer = match is_put {
            true => transport.put_zcopy(&[one, other], &remote, address, Some(&completion)),
            false => transport.get_zcopy(&[one, other], &remote, address, Some(&completion)),
        };
        self.posted(&answer);
        let what = if is_put {
            "Transport::put_zcopy"
        } else {
            "Transport::get_zcopy"
        };
        self.judge(what, &answer, &[Operation::CbCreate], FULL);
        if answer.is_err() || len == 0 {
            return;
        }
        let (Some(far), Some(near)) = (&mut self.device[slot], &mut self.host[host]) else {
            return;
        };
        let (from, from_range, to, to_range) = match is_put {
            true => (near, near_range, far, far_range),
            false => (far, far_range, near, near_range),
        };
        let bytes = from
            .content
            .as_ref()
            .map(|content| self.run.pool.copy(&content[from_range]));
        let is_whole = to_range.len() as u64 == to.memory.len();
        match (bytes, &mut to.content) {
            (Some(bytes), Some(content)) => content[to_range].copy_from_slice(&bytes),
            (Some(bytes), none) if is_whole => *none = Some(bytes),
            (_, content) => *content = None,
        }
    }

    /// Writes new bytes into host memory that no copy uses.
    fn write_host(&mut self, slot: usize) {
        let Some(len) = self.host[slot]
            .as_ref()
            .filter(|held| !held.is_busy)
            .map(|held| held.memory.len())
        else {
            return;
        };
        let bytes = self.bytes(len as usize);
        let Some(held) = &mut self.host[slot] else { return };
        match held.memory.write(0, &bytes) {
            Ok(()) => held.content = Some(bytes),
            Err(error) => {
                let what = format!("writing to host memory failed: {error}");
                self.violated(Invariant::TruthfulErrors, what);
            }
        }
    }

    fn copy_in_device(&mut self, a: u16, b: u16, c: u16) {
        let (to, from) = (among(&self.device, a, true), among(&self.device, b, true));
        let (Some(far), Some(near)) = (&self.device[to], &self.device[from]) else {
            return;
        };
        if to == from {
            return;
        }
        let len = u64::from(c) % (far.memory.len().min(near.memory.len()) + 1);
        let start = far.memory.len() - len;
        let (remote, address) = (Attached::to(&far.memory), far.memory.address() + start);
        let range = ..len as usize;
        let bytes = near
            .content
            .as_ref()
            .map(|content| self.run.pool.copy(&content[range]));
        let memory = near.memory.clone();
        let Ok(local) = Local::at(&memory, 0, len) else {
            return;
        };
        self.begin(2);
        let completion = self.completion();
        let answer = self
            .transport()
            .put_zcopy(&[local], &remote, address, Some(&completion));
        self.posted(&answer);
        self.judge("Transport::put_zcopy", &answer, &[], FULL);
        if answer.is_err() || len == 0 {
            return;
        }
        if let Some(near) = &mut self.device[from] {
            near.is_busy = true;
        }
        match bytes {
            Some(bytes) => self.wrote(to, start, &bytes),
            None => {
                if let Some(far) = &mut self.device[to] {
                    (far.is_busy, far.content) = (true, None);
                }
            }
        }
    }

    /// Flushes. Returns whether every operation has ended without an error.
    fn flush(&mut self) -> bool {
        let answer = self.transport().flush_wait(Deadline::NEVER);
        self.judge("Transport::flush_wait", &answer, &[], &[]);
        self.check_ends();
        for (seen, wanted) in std::mem::take(&mut *lock(&self.gets)) {
            self.compare("Transport::get_bcopy", Some(&wanted), &seen);
        }
        if answer.is_ok() {
            self.direction = None;
            let all = self.device.iter_mut().chain(&mut self.host).flatten();
            all.for_each(|held| held.is_busy = false);
        }
        answer.is_ok()
    }

    /// Checks the ends of operations: none twice, and each error is that of a submission.
    fn check_ends(&mut self) {
        let ends = lock(&self.ends).clone();
        let mut failed = false;
        let record = self.run.record.lock();
        let causes: Vec<_> = record
            .ended
            .iter()
            .map(|cause| (cause.kind, cause.errno))
            .collect();
        drop(record);
        for (at, (number, error)) in ends.iter().enumerate() {
            if ends[..at].iter().any(|(other, _)| other == number) {
                let what = format!("operation {number} of the transport ended twice");
                self.violated(Invariant::EndsOnce, what);
            }
            if let Some(error) = error {
                failed = true;
                if !causes.contains(error) {
                    let what = format!(
                        "operation {number} of the transport ended with {error:?}, and submissions with {causes:?}"
                    );
                    self.violated(Invariant::TruthfulErrors, what);
                }
            }
        }
        self.has_error |= failed;
    }

    /// Compares all memory whose bytes are known. No fault is armed any more.
    pub(crate) fn compare_all(&mut self) {
        self.run.record.begin();
        if self.has_error || !self.flush() || !self.trusts() {
            return;
        }
        for slot in 0..SLOTS {
            if let Some(held) = &self.host[slot] {
                let mut seen = vec![0; held.memory.len() as usize];
                match held.memory.read(0, &mut seen) {
                    Ok(()) => self.compare("host memory", held.content.as_deref(), &seen),
                    Err(error) => {
                        let what = format!("reading host memory failed: {error}");
                        self.violated(Invariant::TruthfulErrors, what);
                    }
                }
            }
            let Some(held) = &self.device[slot] else { continue };
            let mut seen = vec![0; held.memory.len() as usize];
            let (remote, address) = (Attached::to(&held.memory), held.memory.address());
            let wanted = held.content.as_ref().map(|content| content.to_vec());
            let most = self.domain.config().short_bytes;
            for (at, part) in seen.chunks_mut(most).enumerate() {
                self.run.record.begin();
                let at = address + (at * most) as u64;
                let answer = self.transport().get_short(part, &remote, at);
                self.judge("Transport::get_short", &answer, &[], &[]);
            }
            self.compare("device memory", wanted.as_deref(), &seen);
        }
    }

    /// Drops the transport, which ends every operation, and the memory.
    pub(crate) fn close(mut self) {
        self.run.record.begin();
        drop(self.transport.take());
        self.check_ends();
        let ended = lock(&self.ends).len() as u64;
        if ended != self.posted {
            let what = format!("{} operations were posted, and {ended} have ended", self.posted);
            self.violated(Invariant::EndsOnce, what);
        }
        let held = self.device.iter_mut().chain(&mut self.host);
        let all: Vec<Held> = held.filter_map(Option::take).collect();
        for held in all.into_iter().chain(std::mem::take(&mut self.refused)) {
            let (address, kind) = (held.memory.address(), held.memory.kind());
            drop(held.memory);
            if kind == MemoryType::Device && memory_types().lookup(address, 1).kind == kind {
                let what = format!("the dropped address {address:#x} is still device memory");
                self.violated(Invariant::Leaks, what);
            }
        }
    }
}

/// Memory of this thread for registrations. It is never freed.
fn own() -> NonNull<u8> {
    thread_local! {
        static OWN_MEMORY: NonNull<u8> = {
            let bytes: &'static mut [u8] = Box::leak(vec![0; OWN].into_boxed_slice());
            NonNull::from(bytes).cast()
        };
    }
    OWN_MEMORY.with(|&memory| memory)
}
