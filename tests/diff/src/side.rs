//! One backend: performs operations and tracks the objects of the sequence.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

mod hold;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gaudi_seam::{
    CbCreate, CbHandle, CqCounter, CsAnswer, CsArgument, CsRequest, CsSeq, DebugRequest, DeviceSpec,
    DeviceVa, Error, ErrorKind, ExportRequest, InfoRequest, InterruptId, InterruptWait, InterruptWord,
    MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, QueueId, RawMapping, RegisterDmabuf, Result,
    SharedIo, TimestampRegistration, TsHandle, WaitAnswer,
};
use gaudi_spec::asic::VaRange;
use gaudi_spec::gaudi2;
use gaudi_sys::limits::without_descriptors;
use gaudi_sys::{Event, fd, standin};
use gaudi_uapi::cs::{CsFlags, EngineCommand, HlCsChunk};
use gaudi_uapi::memory::MemFlags;
use nix::fcntl::{FcntlArg, fcntl};

use self::steps::{copy, on_control};
use crate::arena::Arena;
use crate::fixtures::{Fixtures, LONG, ProgramSlot, fault};
use crate::op::{Chunk, End, Memory, Op, OpNumber, Packets, Ref, Word};
use crate::outcome::{Numbering, Outcome, word};

/// The timeout of an open while the device cleans up after a user.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// A handle that no object has.
const UNUSED_HANDLE: u64 = 0x0dea_d000_0000;

/// The objects and answers of the current sequence.
#[derive(Debug, Default)]
struct Objects {
    given: BTreeMap<OpNumber, u64>,
    names: Numbering,
    memories: Vec<u64>,
    mappings: Vec<u64>,
    buffers: Vec<u64>,
    exports: BTreeMap<OpNumber, OwnedFd>,
    maps: BTreeMap<OpNumber, RawMapping>,
    reservations: Vec<u64>,
    events: Option<Event>,
    /// Submissions behind a held queue.
    held: Vec<CsSeq>,
    debugs: bool,
    first_seq: Option<u64>,
}

/// One backend.
pub(crate) struct Side<'a> {
    spec: DeviceSpec,
    arena: &'a Arena,
    control: SharedIo,
    /// `None` only while it is reopened.
    open: Option<(SharedIo, Fixtures)>,
    objects: Objects,
    /// Numbers since the last open of timestamps buffers, which live until the close, and of
    /// command buffers.
    stamps: BTreeSet<u32>,
    buffers: BTreeSet<u32>,
}

/// Returns the part of a buffer's handle that the driver uses, without the kind
/// (common/memory_mgr.c:hl_mmap_mem_buf_get).
fn buffer_number(handle: u64) -> u32 {
    (handle >> 12) as u32
}

/// Opens a node; retries while the device cleans up after its last user.
fn open_within(spec: &DeviceSpec) -> Result<SharedIo> {
    let begin = Instant::now();
    loop {
        match gaudi_hal::open(spec) {
            Err(error)
                if matches!(error.kind(), ErrorKind::InReset | ErrorKind::Busy)
                    && begin.elapsed() < REOPEN_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

impl<'a> Side<'a> {
    pub(crate) fn new(spec: &DeviceSpec, arena: &'a Arena) -> Result<Self> {
        let mut this = Self {
            spec: spec.clone(),
            arena,
            control: gaudi_hal::control(spec)?,
            open: None,
            objects: Objects::default(),
            stamps: BTreeSet::new(),
            buffers: BTreeSet::new(),
        };
        this.reopen()?;
        Ok(this)
    }

    /// Closes the device if it is open, and opens it.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.release_held();
        self.objects = Objects::default();
        (self.stamps, self.buffers) = (BTreeSet::new(), BTreeSet::from([1]));
        self.open = None;
        let io = open_within(&self.spec)?;
        let fixtures = Fixtures::new(&*io, self.arena)?;
        self.open = Some((io, fixtures));
        Ok(())
    }

    fn io(&self) -> Result<SharedIo> {
        let closed = || {
            Error::new(
                ErrorKind::DeviceLost,
                "the device, which could not be opened again",
            )
        };
        self.open.as_ref().map(|open| open.0.clone()).ok_or_else(closed)
    }

    fn value(&self, at: Ref) -> u64 {
        let base = match at.of {
            Some(number) => self.objects.given.get(&number).copied().unwrap_or(UNUSED_HANDLE),
            None => 0,
        };
        base.wrapping_add(at.plus)
    }

    /// Whether this handle may be used as that of a timestamps buffer, or of a command buffer. The
    /// driver does not distinguish them and would corrupt kernel memory.
    fn is_safe_handle(&self, at: Ref, for_stamps: bool) -> bool {
        let number = buffer_number(self.value(at));
        match for_stamps {
            true => self.stamps.contains(&number) || !self.buffers.contains(&number),
            false => !self.stamps.contains(&number),
        }
    }

    /// Whether the driver survives this operation. Invalid handles that it does not check are not
    /// sent.
    fn is_safe(&self, op: &Op) -> bool {
        match *op {
            Op::CbDestroy { buffer } | Op::CbInfo { buffer, .. } => self.is_safe_handle(buffer, false),
            Op::WaitInterrupt {
                word: Word::Counter { buffer, .. },
                ..
            } => self.is_safe_handle(buffer, false),
            Op::Register { counter, buffer, .. } => {
                self.is_safe_handle(counter, false) && self.is_safe_handle(buffer, true)
            }
            _ => true,
        }
    }

    fn release_held(&mut self) -> Option<Outcome> {
        let held = std::mem::take(&mut self.objects.held);
        let (io, fixtures) = self.open.as_ref()?;
        if held.is_empty() {
            return None;
        }
        let mut outcome = Outcome::of(fixtures.open(&**io));
        for seq in held {
            outcome = ended(outcome, io.wait_cs(seq, LONG));
        }
        Some(outcome)
    }

    /// Releases all objects of the sequence. An error is a leak that only a close ends.
    pub(crate) fn clean(&mut self) -> Result<()> {
        let _ = self.release_held();
        let objects = std::mem::take(&mut self.objects);
        let io = self.io()?;
        if objects.debugs {
            set_debug_mode(&io, false)?;
        }
        drop((objects.exports, objects.maps));
        for reservation in objects.reservations.iter().rev() {
            // May fail: only the newest of a queue can be released, and not after a signal.
            let _ = io.submit(&CsRequest::unreserve_signals(*reservation as u32));
        }
        if objects.events.is_some() {
            io.unregister_events()?;
        }
        for buffer in objects.buffers {
            io.cb_destroy(CbHandle(buffer))?;
        }
        for mapping in objects.mappings {
            io.mem_unmap(DeviceVa(mapping))?;
        }
        for memory in objects.memories {
            io.mem_free(MemHandle(memory))?;
        }
        Ok(())
    }

    /// Performs an operation and returns the outcome.
    pub(crate) fn perform(&mut self, number: OpNumber, op: &Op) -> Outcome {
        if !self.is_safe(op) {
            return Outcome::nothing_done();
        }
        self.try_perform(number, op)
            .unwrap_or_else(|error| Outcome::refused(&error))
    }

    /// Releases the mapping or export of an operation, if any.
    pub(crate) fn discard(&mut self, number: OpNumber) {
        self.objects.maps.remove(&number);
        self.objects.exports.remove(&number);
    }

    fn give(&mut self, number: OpNumber, value: u64) {
        self.objects.given.insert(number, value);
    }

    /// The outcome of a mapping: its range, its number among the addresses seen, its offset in a
    /// page.
    fn mapped(&mut self, number: OpNumber, va: DeviceVa) -> Outcome {
        self.give(number, va.0);
        self.objects.mappings.push(va.0);
        let range = |range: &VaRange| range.contains(va, 1);
        let name = [
            ("device memory", gaudi2::DRAM_VA),
            ("host", gaudi2::HOST_VA),
            ("host, huge", gaudi2::HOST_HUGE_VA),
        ]
        .iter()
        .find(|row| range(&row.1))
        .map_or("nowhere", |row| row.0);
        Outcome::default()
            .word("range", name)
            .nth("address", self.objects.names.nth("va", va.0))
            .number("inside", va.0 & 0xfff)
    }

    /// A submission's number, relative to the first of this sequence.
    fn sequence(&mut self, number: OpNumber, seq: CsSeq) -> Outcome {
        self.give(number, seq.0);
        if seq.0 == u64::MAX {
            return Outcome::default().word("sequence", "none");
        }
        let first = *self.objects.first_seq.get_or_insert(seq.0);
        Outcome::default().number("sequence", seq.0.wrapping_sub(first))
    }

    fn submitted(&mut self, number: OpNumber, answer: CsAnswer) -> Outcome {
        self.sequence(number, answer.seq)
            .number("status", answer.status.0)
            .number("sob_base_addr_offset", answer.sob_base_addr_offset)
            .number("sob_count_before_submission", answer.sob_count_before_submission)
    }

    /// Waits for a submission, unless a queue is held.
    fn settle(&mut self, io: &SharedIo, outcome: Outcome, seq: CsSeq) -> Outcome {
        match self.objects.held.is_empty() || seq.0 == u64::MAX {
            true if seq.0 == u64::MAX => outcome,
            true => ended(outcome, io.wait_cs(seq, LONG)),
            false => {
                self.objects.held.push(seq);
                outcome
            }
        }
    }

    fn chunk(&self, chunk: &Chunk) -> HlCsChunk {
        let mut made = match (chunk.packets, &self.open) {
            (Packets::Of(program), Some((_, fixtures))) => {
                fixtures.chunk(chunk.queue, ProgramSlot::Ready(program))
            }
            (Packets::Of(_), None) => HlCsChunk::default(),
            (Packets::Wrong { address, size }, _) => HlCsChunk::user(chunk.queue, self.value(address), size),
        };
        if chunk.kernel_buffer {
            made.cs_chunk_flags = gaudi_uapi::cs::CsChunkFlags::NONE;
        }
        made
    }

    fn end(&self, end: End, fixtures: &Fixtures) -> Option<DeviceVa> {
        match end {
            End::Mapped(number) => {
                let va = self.objects.given.get(&number)?;
                self.objects.mappings.contains(va).then_some(DeviceVa(*va))
            }
            other => fixtures.end(other),
        }
    }

    fn try_perform(&mut self, number: OpNumber, op: &Op) -> Result<Outcome> {
        let io = self.io()?;
        Ok(match *op {
            Op::Info {
                op,
                arg,
                room,
                control,
            } => {
                let io = if control { &self.control } else { &io };
                let mut answer = vec![0x5a; room as usize];
                let argument = io.info(InfoRequest { op, arg }, &mut answer)?;
                Outcome::default()
                    .number("argument", argument)
                    .bytes("answer", answer)
            }
            Op::CbCreate { size, map } => {
                let create = CbCreate {
                    size,
                    map_to_device: map,
                };
                let handle = io.cb_create(create)?.0;
                self.give(number, handle);
                self.objects.buffers.push(handle);
                self.buffers.insert(buffer_number(handle));
                Outcome::default().nth("handle", self.objects.names.nth("buffer", handle))
            }
            Op::CbDestroy { buffer } => {
                let buffer = self.value(buffer);
                io.cb_destroy(CbHandle(buffer))?;
                // By number, as the driver does it: a timestamps buffer may have that number later.
                let number = buffer_number(buffer);
                self.objects
                    .buffers
                    .retain(|other| buffer_number(*other) != number);
                Outcome::default()
            }
            Op::CbInfo { buffer, address } => {
                let info = io.cb_info(CbHandle(self.value(buffer)), address)?;
                let outcome = Outcome::default().number("usage_count", info.usage_count);
                match info.device_va {
                    Some(va) => outcome.nth("address", self.objects.names.nth("va", va.0)),
                    None => outcome,
                }
            }
            Op::Mmap { offset, len } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let offset = self.value(offset);
                let map = io.mmap(MmapRequest { offset, len })?;
                let mut first = [0];
                map.read(0, &mut first).map_err(fault)?;
                self.objects.maps.insert(number, map);
                // A timestamps buffer holds times.
                match self.stamps.contains(&buffer_number(offset)) {
                    true => Outcome::default(),
                    false => Outcome::default().number("first", first[0]),
                }
            }
            Op::Munmap { of } => match self.objects.maps.remove(&of) {
                Some(_) => Outcome::default(),
                None => Outcome::nothing_done(),
            },
            Op::Alloc { size, page, flags } => {
                let handle = io.mem_alloc(MemAlloc {
                    size,
                    page_size: page,
                    flags: MemFlags(flags),
                })?;
                self.give(number, handle.0);
                self.objects.memories.push(handle.0);
                Outcome::default().nth("handle", self.objects.names.nth("memory", handle.0))
            }
            Op::Free { memory } => {
                let memory = self.value(memory);
                io.mem_free(MemHandle(memory))?;
                // The driver uses only the lower half.
                self.objects
                    .memories
                    .retain(|other| *other as u32 != memory as u32);
                Outcome::default()
            }
            Op::MapDevice { memory, hint, flags } => {
                let va = io.mem_map_device(MapDevice {
                    handle: MemHandle(self.value(memory)),
                    hint: hint.map(DeviceVa),
                    flags: MemFlags(flags),
                })?;
                self.mapped(number, va)
            }
            Op::MapHost {
                memory,
                size,
                hint,
                flags,
            } => {
                let request = MapHost {
                    address: self.arena.address(memory),
                    size,
                    hint: hint.map(DeviceVa),
                    flags: MemFlags(flags),
                };
                // SAFETY: the arena outlives every side, no reference to it exists, and copies
                // write only to its windows. The driver refuses other ranges.
                let va = unsafe { io.mem_map_host(request) }?;
                self.mapped(number, va)
            }
            Op::Unmap { address } => {
                let va = self.value(address);
                io.mem_unmap(DeviceVa(va))?;
                self.objects.mappings.retain(|other| *other != va);
                Outcome::default()
            }
            Op::MapBlock { address } => {
                let block = io.map_block(address)?;
                self.give(number, block.handle);
                Outcome::default()
                    .number("handle", block.handle)
                    .number("size", block.size)
            }
            Op::Export {
                address,
                size,
                offset,
                flags,
                scarce,
            } => {
                let request = ExportRequest {
                    address: DeviceVa(self.value(address)),
                    size,
                    offset,
                    flags,
                };
                let export = match scarce {
                    false => io.export_dmabuf(request),
                    true => without_descriptors(|| io.export_dmabuf(request)).map_err(fault)?,
                }?;
                // A stand-in's descriptor is all of device memory; its window is the exported part.
                let size = match standin::window(&export).map_err(fault)? {
                    Some(window) => window.len,
                    None => fd::size(&export).map_err(fault)?,
                };
                let closes = fcntl(export.as_fd(), FcntlArg::F_GETFD).map_err(fault)?;
                self.objects.exports.insert(number, export);
                Outcome::default()
                    .number("size", size)
                    .number("close-on-exec", closes as u32)
            }
            Op::CloseExport { of } => match self.objects.exports.remove(&of) {
                Some(_) => Outcome::default(),
                None => Outcome::nothing_done(),
            },
            Op::RegisterDmabuf => {
                let other = File::open("/dev/null").map_err(|error| fault(fd::errno_of(error)))?;
                let request = RegisterDmabuf {
                    dmabuf: other.as_fd(),
                    len: 4096,
                };
                Outcome::of(io.register_dmabuf(request))
            }
            Op::TsAlloc { elements } => {
                let handle = io.ts_alloc(elements)?.0;
                self.give(number, handle);
                self.stamps.insert(buffer_number(handle));
                Outcome::default().nth("handle", self.objects.names.nth("buffer", handle))
            }
            Op::Register {
                interrupt,
                counter,
                offset,
                target,
                buffer,
                index,
            } => Outcome::of(io.register_timestamp(&TimestampRegistration {
                interrupt: InterruptId(interrupt),
                counter: CqCounter {
                    handle: CbHandle(self.value(counter)),
                    offset,
                },
                target,
                buffer: TsHandle(self.value(buffer)),
                index,
            })),
            Op::Submit {
                ref chunks,
                ref restore,
                flags,
                timeout,
            } => {
                let execute: Vec<_> = chunks.iter().map(|chunk| self.chunk(chunk)).collect();
                let restore: Vec<_> = restore.iter().map(|chunk| self.chunk(chunk)).collect();
                let request = CsRequest {
                    execute: &execute,
                    restore: &restore,
                    flags: CsFlags(flags),
                    timeout_s: timeout,
                    argument: CsArgument::None,
                };
                let answer = io.submit(&request)?;
                if !request.is_numbered() {
                    return Ok(Outcome::default());
                }
                let outcome = self.submitted(number, answer);
                self.settle(&io, outcome, answer.seq)
            }
            Op::Copy {
                queue,
                to,
                from,
                at,
                len,
                seed,
            } => {
                let Some((_, fixtures)) = self.open.as_ref() else {
                    return Ok(Outcome::nothing_done());
                };
                let ends = (self.end(to, fixtures), self.end(from, fixtures));
                let ((Some(to), Some(from)), true) = (ends, self.objects.held.is_empty()) else {
                    return Ok(Outcome::nothing_done());
                };
                copy(
                    &io,
                    fixtures,
                    self.arena,
                    QueueId(queue),
                    (to, from),
                    (at, len, seed),
                )?
            }
            Op::Signal {
                queue,
                flags,
                waits_for,
                size,
            } => {
                let chunk = HlCsChunk {
                    queue_index: queue,
                    cb_size: size,
                    cb_handle: match waits_for {
                        None => 0,
                        Some(signal) => {
                            self.arena.put_word(self.value(signal)).map_err(fault)?;
                            self.arena.address(Memory::Arena(Arena::WORD)).0
                        }
                    },
                    ..HlCsChunk::default()
                };
                let answer = io.submit(&CsRequest::jobs(&[chunk]).with_flags(CsFlags(flags)))?;
                let outcome = self.submitted(number, answer);
                self.settle(&io, outcome, answer.seq)
            }
            Op::Reserve { count, queue } => {
                let answer = io.submit(&CsRequest::reserve_signals(count, QueueId(queue)))?;
                let reservation = answer.reservation();
                self.give(number, u64::from(reservation.handle));
                self.objects.reservations.push(u64::from(reservation.handle));
                Outcome::default()
                    .nth(
                        "handle",
                        self.objects
                            .names
                            .nth("reservation", u64::from(reservation.handle)),
                    )
                    .number("count", reservation.count)
                    .number("sob_base_addr_offset", answer.sob_base_addr_offset)
            }
            Op::Unreserve { reservation } => {
                let handle = self.value(reservation);
                io.submit(&CsRequest::unreserve_signals(handle as u32))?;
                self.objects.reservations.retain(|other| *other != handle);
                Outcome::default()
            }
            Op::Engines {
                cores,
                ref ids,
                command,
            } => {
                let command = EngineCommand(command);
                let request = match cores {
                    true => CsRequest::engine_cores(ids, command),
                    false => CsRequest::engines(ids, command),
                };
                Outcome::of(io.submit(&request))
            }
            Op::Hold { queue } => self.hold(&io, number, queue, None)?.1,
            Op::Release => self.release_held().unwrap_or_else(Outcome::nothing_done),
            Op::Fill { queue } => self.fill(&io, number, queue)?,
            Op::TimeoutWithoutReset { queue } => self.timeout_without_reset(&io, number, queue)?,
            Op::TimeoutWithReset { queue } => {
                let outcome = self.timeout_with_reset(&io, number, queue)?;
                drop(io);
                self.close_and_open(false)?;
                outcome
            }
            Op::WaitCs { submission, micros } => {
                let seq = CsSeq(self.value(submission));
                ended(Outcome::default(), io.wait_cs(seq, Duration::from_micros(micros)))
            }
            Op::WaitMulti { ref submissions } => {
                let seqs: Vec<_> = submissions.iter().map(|at| CsSeq(self.value(*at))).collect();
                Outcome::of(io.wait_multi_cs(&seqs, Duration::ZERO))
            }
            Op::WaitInterrupt {
                interrupt,
                word,
                target,
                micros,
            } => {
                if matches!(word, Word::User(Memory::Arena(_))) {
                    self.arena.put_word(5).map_err(fault)?;
                }
                let request = InterruptWait {
                    interrupt: InterruptId(interrupt),
                    word: match word {
                        Word::User(memory) => InterruptWord::User(self.arena.address(memory)),
                        Word::Counter { buffer, offset } => InterruptWord::KernelCq(CqCounter {
                            handle: CbHandle(self.value(buffer)),
                            offset,
                        }),
                    },
                    target,
                    timeout: Duration::from_micros(micros),
                };
                ended(Outcome::default(), io.wait_interrupt(&request))
            }
            Op::RegisterEvents { is_eventfd: true } => {
                let event = Event::new().map_err(fault)?;
                io.register_events(event.as_fd())?;
                self.objects.events = Some(event);
                Outcome::default()
            }
            Op::RegisterEvents { is_eventfd: false } => {
                let other = File::open("/dev/null").map_err(|error| fault(fd::errno_of(error)))?;
                Outcome::of(io.register_events(other.as_fd()))
            }
            Op::UnregisterEvents => {
                io.unregister_events()?;
                self.objects.events = None;
                Outcome::default()
            }
            Op::Debug {
                op,
                index,
                enable,
                input,
                output,
            } => {
                let (input, mut output) = (vec![0; input as usize], vec![0x5a; output as usize]);
                io.debug(DebugRequest {
                    op,
                    reg_idx: index,
                    enable,
                    input: &input,
                    output: &mut output,
                })?;
                if op == gaudi_uapi::debug::DebugOp::SET_MODE {
                    self.objects.debugs = enable;
                }
                Outcome::default().bytes("answer", output)
            }
            Op::SecondOpen => Outcome::of(gaudi_hal::open(&self.spec)),
            Op::OnControl(which) => on_control(&self.control, which),
            Op::Reopen { keep_exports } => {
                drop(io);
                self.close_and_open(keep_exports)?
            }
        })
    }

    fn close_and_open(&mut self, keep_exports: bool) -> Result<Outcome> {
        let _ = self.release_held();
        let mut outcome = Outcome::default();
        let mut objects = std::mem::take(&mut self.objects);
        self.open = None;
        if keep_exports && !objects.exports.is_empty() {
            let kept = Outcome::of(gaudi_hal::open(&self.spec));
            outcome = outcome.word("open while exports live", kept.verdict());
        }
        objects.exports.clear();
        // Mappings may outlive the close; their bytes are not compared.
        drop(objects);
        self.reopen()?;
        Ok(outcome)
    }
}

fn set_debug_mode(io: &SharedIo, enable: bool) -> Result<()> {
    io.debug(DebugRequest {
        op: gaudi_uapi::debug::DebugOp::SET_MODE,
        reg_idx: 0,
        enable,
        input: &[],
        output: &mut [],
    })
}

/// Adds the result of a wait. A refused wait makes the whole outcome refused.
fn ended(outcome: Outcome, answer: Result<WaitAnswer>) -> Outcome {
    match answer {
        Ok(answer) => outcome
            .word("wait", format!("{:?}", answer.status))
            .number("gone", u32::from(answer.gone))
            .number("timestamp", u32::from(answer.timestamp_ns.is_some())),
        Err(error) => {
            let mut outcome = outcome;
            outcome.refused = Some(word(&error));
            outcome
        }
    }
}
