//! One backend at work: what it was given so far, and how an operation is asked of it.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

mod held;
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
use crate::bench::{Bench, LONG, Place, fault};
use crate::op::{Chunk, End, Memory, Number, Op, Packets, Ref, Word};
use crate::outcome::{Names, Outcome, word};

/// How long a device may clean up after a user.
const PATIENCE: Duration = Duration::from_secs(120);
/// A handle that nobody was given.
const NOBODYS: u64 = 0x0dea_d000_0000;

/// What a sequence was given and has not given back.
#[derive(Debug, Default)]
struct Book {
    given: BTreeMap<Number, u64>,
    names: Names,
    memories: Vec<u64>,
    mappings: Vec<u64>,
    buffers: Vec<u64>,
    exports: BTreeMap<Number, OwnedFd>,
    maps: BTreeMap<Number, RawMapping>,
    reservations: Vec<u64>,
    events: Option<Event>,
    /// Submissions that wait, and who holds them.
    held: Vec<CsSeq>,
    debugs: bool,
    first_seq: Option<u64>,
}

/// One backend at work.
pub(crate) struct Side<'a> {
    spec: DeviceSpec,
    arena: &'a Arena,
    control: SharedIo,
    /// There but while it is opened anew. Dropped before the bench's memory is of no matter: the arena outlives both.
    open: Option<(SharedIo, Bench)>,
    book: Book,
    /// Numbers of timestamps buffers, which live until the close, and of command buffers, since the last open.
    stamps: BTreeSet<u32>,
    buffers: BTreeSet<u32>,
}

/// What the driver looks at of a buffer's handle (common/memory_mgr.c:25): not of which kind it is.
fn buffer_number(handle: u64) -> u32 {
    (handle >> 12) as u32
}

/// Opens a node, for as long as the device cleans up after its last user.
fn open_within(spec: &DeviceSpec) -> Result<SharedIo> {
    let begin = Instant::now();
    loop {
        match gaudi_hal::open(spec) {
            Err(error)
                if matches!(error.kind(), ErrorKind::InReset | ErrorKind::Busy)
                    && begin.elapsed() < PATIENCE =>
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
            book: Book::default(),
            stamps: BTreeSet::new(),
            buffers: BTreeSet::new(),
        };
        this.reopen()?;
        Ok(this)
    }

    /// Closes, if it is open, and opens.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.let_go();
        self.book = Book::default();
        (self.stamps, self.buffers) = (BTreeSet::new(), BTreeSet::from([1]));
        self.open = None;
        let io = open_within(&self.spec)?;
        let bench = Bench::new(&*io, self.arena)?;
        self.open = Some((io, bench));
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
            Some(number) => self.book.given.get(&number).copied().unwrap_or(NOBODYS),
            None => 0,
        };
        base.wrapping_add(at.plus)
    }

    /// Whether this handle may be asked for as a command buffer's, or a timestamps buffer's. The driver takes the one for the other and writes
    /// beside it: that kernel does not live on.
    fn is_fit(&self, at: Ref, for_stamps: bool) -> bool {
        let number = buffer_number(self.value(at));
        match for_stamps {
            true => self.stamps.contains(&number) || !self.buffers.contains(&number),
            false => !self.stamps.contains(&number),
        }
    }

    /// Whether the driver lives through this operation: where it does not look at what it is given, nothing wrong is asked.
    fn is_bearable(&self, op: &Op) -> bool {
        match *op {
            Op::CbDestroy { buffer } | Op::CbInfo { buffer, .. } => self.is_fit(buffer, false),
            Op::WaitInterrupt {
                word: Word::Counter { buffer, .. },
                ..
            } => self.is_fit(buffer, false),
            Op::Register { counter, buffer, .. } => self.is_fit(counter, false) && self.is_fit(buffer, true),
            _ => true,
        }
    }

    fn let_go(&mut self) -> Option<Outcome> {
        let held = std::mem::take(&mut self.book.held);
        let (io, bench) = self.open.as_ref()?;
        if held.is_empty() {
            return None;
        }
        let mut outcome = Outcome::of(bench.open(&**io));
        for seq in held {
            outcome = ended(outcome, io.wait_cs(seq, LONG));
        }
        Some(outcome)
    }

    /// Gives back all that the sequence still has. An error is a leak that only a close mends.
    pub(crate) fn clean(&mut self) -> Result<()> {
        let _ = self.let_go();
        let book = std::mem::take(&mut self.book);
        let io = self.io()?;
        if book.debugs {
            set_debug_mode(&io, false)?;
        }
        drop((book.exports, book.maps));
        for reservation in book.reservations.iter().rev() {
            // Only the newest of a queue can be given back, and not after a signal.
            let _ = io.submit(&CsRequest::unreserve_signals(*reservation as u32));
        }
        if book.events.is_some() {
            io.unregister_events()?;
        }
        for buffer in book.buffers {
            io.cb_destroy(CbHandle(buffer))?;
        }
        for mapping in book.mappings {
            io.mem_unmap(DeviceVa(mapping))?;
        }
        for memory in book.memories {
            io.mem_free(MemHandle(memory))?;
        }
        Ok(())
    }

    /// Performs an operation and tells what was answered.
    pub(crate) fn perform(&mut self, number: Number, op: &Op) -> Outcome {
        if !self.is_bearable(op) {
            return Outcome::nothing();
        }
        self.try_perform(number, op)
            .unwrap_or_else(|error| Outcome::refused(&error))
    }

    /// Gives back what this operation mapped or exported, if anything.
    pub(crate) fn forget(&mut self, number: Number) {
        self.book.maps.remove(&number);
        self.book.exports.remove(&number);
    }

    fn give(&mut self, number: Number, value: u64) {
        self.book.given.insert(number, value);
    }

    /// The outcome of a mapping: which range, which of those seen so far, and how it lies in its page.
    fn mapped(&mut self, number: Number, va: DeviceVa) -> Outcome {
        self.give(number, va.0);
        self.book.mappings.push(va.0);
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
            .nth("address", self.book.names.nth("va", va.0))
            .number("inside", va.0 & 0xfff)
    }

    /// A sequence number, counted from the first that this sequence was given.
    fn sequence(&mut self, number: Number, seq: CsSeq) -> Outcome {
        self.give(number, seq.0);
        if seq.0 == u64::MAX {
            return Outcome::default().word("sequence", "none");
        }
        let first = *self.book.first_seq.get_or_insert(seq.0);
        Outcome::default().number("sequence", seq.0.wrapping_sub(first))
    }

    fn submitted(&mut self, number: Number, answer: CsAnswer) -> Outcome {
        self.sequence(number, answer.seq)
            .number("status", answer.status.0)
            .number("sob_base_addr_offset", answer.sob_base_addr_offset)
            .number("sob_count_before_submission", answer.sob_count_before_submission)
    }

    /// What became of a submission: told at once, unless something is held.
    fn settle(&mut self, io: &SharedIo, outcome: Outcome, seq: CsSeq) -> Outcome {
        match self.book.held.is_empty() || seq.0 == u64::MAX {
            true if seq.0 == u64::MAX => outcome,
            true => ended(outcome, io.wait_cs(seq, LONG)),
            false => {
                self.book.held.push(seq);
                outcome
            }
        }
    }

    fn chunk(&self, chunk: &Chunk) -> HlCsChunk {
        let mut made = match (chunk.packets, &self.open) {
            (Packets::Of(program), Some((_, bench))) => bench.chunk(chunk.queue, Place::Ready(program)),
            (Packets::Of(_), None) => HlCsChunk::default(),
            (Packets::Wrong { address, size }, _) => HlCsChunk::user(chunk.queue, self.value(address), size),
        };
        if chunk.of_kernel {
            made.cs_chunk_flags = gaudi_uapi::cs::CsChunkFlags::NONE;
        }
        made
    }

    fn end(&self, end: End, bench: &Bench) -> Option<DeviceVa> {
        match end {
            End::Mapped(number) => {
                let va = self.book.given.get(&number)?;
                self.book.mappings.contains(va).then_some(DeviceVa(*va))
            }
            other => bench.end(other),
        }
    }

    fn try_perform(&mut self, number: Number, op: &Op) -> Result<Outcome> {
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
                let told = io.info(InfoRequest { op, arg }, &mut answer)?;
                Outcome::default()
                    .number("argument", told)
                    .bytes("answer", answer)
            }
            Op::CbCreate { size, map } => {
                let create = CbCreate {
                    size,
                    map_to_device: map,
                };
                let handle = io.cb_create(create)?.0;
                self.give(number, handle);
                self.book.buffers.push(handle);
                self.buffers.insert(buffer_number(handle));
                Outcome::default().nth("handle", self.book.names.nth("buffer", handle))
            }
            Op::CbDestroy { buffer } => {
                let buffer = self.value(buffer);
                io.cb_destroy(CbHandle(buffer))?;
                // By number, as the driver does it: under that number there may be a timestamps buffer when all is given back.
                let number = buffer_number(buffer);
                self.book.buffers.retain(|other| buffer_number(*other) != number);
                Outcome::default()
            }
            Op::CbInfo { buffer, address } => {
                let info = io.cb_info(CbHandle(self.value(buffer)), address)?;
                let outcome = Outcome::default().number("usage_count", info.usage_count);
                match info.device_va {
                    Some(va) => outcome.nth("address", self.book.names.nth("va", va.0)),
                    None => outcome,
                }
            }
            Op::Mmap { offset, len } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let offset = self.value(offset);
                let map = io.mmap(MmapRequest { offset, len })?;
                let mut first = [0];
                map.read(0, &mut first).map_err(fault)?;
                self.book.maps.insert(number, map);
                // A timestamps buffer holds times.
                match self.stamps.contains(&buffer_number(offset)) {
                    true => Outcome::default(),
                    false => Outcome::default().number("first", first[0]),
                }
            }
            Op::Munmap { of } => match self.book.maps.remove(&of) {
                Some(_) => Outcome::default(),
                None => Outcome::nothing(),
            },
            Op::Alloc { size, page, flags } => {
                let handle = io.mem_alloc(MemAlloc {
                    size,
                    page_size: page,
                    flags: MemFlags(flags),
                })?;
                self.give(number, handle.0);
                self.book.memories.push(handle.0);
                Outcome::default().nth("handle", self.book.names.nth("memory", handle.0))
            }
            Op::Free { memory } => {
                let memory = self.value(memory);
                io.mem_free(MemHandle(memory))?;
                // The driver looks at the lower half alone.
                self.book.memories.retain(|other| *other as u32 != memory as u32);
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
                // SAFETY: the arena outlives every side, nobody makes references to it, and copies go to its windows only. Other
                // ranges are there to be refused.
                let va = unsafe { io.mem_map_host(request) }?;
                self.mapped(number, va)
            }
            Op::Unmap { address } => {
                let va = self.value(address);
                io.mem_unmap(DeviceVa(va))?;
                self.book.mappings.retain(|other| *other != va);
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
                // A stand-in's descriptor is all of device memory; its window says how much of it was exported.
                let size = match standin::window(&export).map_err(fault)? {
                    Some(window) => window.len,
                    None => fd::size(&export).map_err(fault)?,
                };
                let closes = fcntl(export.as_fd(), FcntlArg::F_GETFD).map_err(fault)?;
                self.book.exports.insert(number, export);
                Outcome::default()
                    .number("size", size)
                    .number("close-on-exec", closes as u32)
            }
            Op::CloseExport { of } => match self.book.exports.remove(&of) {
                Some(_) => Outcome::default(),
                None => Outcome::nothing(),
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
                Outcome::default().nth("handle", self.book.names.nth("buffer", handle))
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
                let Some((_, bench)) = self.open.as_ref() else {
                    return Ok(Outcome::nothing());
                };
                let ends = (self.end(to, bench), self.end(from, bench));
                let ((Some(to), Some(from)), true) = (ends, self.book.held.is_empty()) else {
                    return Ok(Outcome::nothing());
                };
                copy(
                    &io,
                    bench,
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
                self.book.reservations.push(u64::from(reservation.handle));
                Outcome::default()
                    .nth(
                        "handle",
                        self.book.names.nth("reservation", u64::from(reservation.handle)),
                    )
                    .number("count", reservation.count)
                    .number("sob_base_addr_offset", answer.sob_base_addr_offset)
            }
            Op::Unreserve { reservation } => {
                let handle = self.value(reservation);
                io.submit(&CsRequest::unreserve_signals(handle as u32))?;
                self.book.reservations.retain(|other| *other != handle);
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
            Op::LetGo => self.let_go().unwrap_or_else(Outcome::nothing),
            Op::Fill { queue } => self.fill(&io, number, queue)?,
            Op::Late { queue } => self.late(&io, number, queue)?,
            Op::Expire { queue } => {
                let outcome = self.expire(&io, number, queue)?;
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
                self.book.events = Some(event);
                Outcome::default()
            }
            Op::RegisterEvents { is_eventfd: false } => {
                let other = File::open("/dev/null").map_err(|error| fault(fd::errno_of(error)))?;
                Outcome::of(io.register_events(other.as_fd()))
            }
            Op::UnregisterEvents => {
                io.unregister_events()?;
                self.book.events = None;
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
                    self.book.debugs = enable;
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
        let _ = self.let_go();
        let mut outcome = Outcome::default();
        let mut book = std::mem::take(&mut self.book);
        self.open = None;
        if keep_exports && !book.exports.is_empty() {
            let kept = Outcome::of(gaudi_hal::open(&self.spec));
            outcome = outcome.word("open while exports live", kept.verdict());
        }
        book.exports.clear();
        // What was mapped may outlive the close; nothing of it is compared.
        drop(book);
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

/// Adds how a wait ended. A wait that was refused makes the whole so.
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
