//! What each packet does.
//!
//! Where no public text says what the chip does, the choice is marked `source: inferred`; what
//! stays unknown stops the processor by name ([`Unsupported`]). Inferred for all packets:
//!
//! - Work is done at once, in the order of the buffer, so message barriers have nothing to wait
//!   for, and engine barriers wait only for what the processor handed down.
//! - A queue's command buffer is done when it was executed and what it handed down is done.
//! - The lower processor does its work in the order in which it came, and a processor that brings
//!   it more than it holds waits.

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{
    self, ArbPoint, CbList, CpDma, DecodeError, Fence, HEADER, LinDma, LoadAndExe, MAX_FIXED, MsgShort,
    Opcode, Packet, Wait, Wreg32, Wreg64Long, Wreg64Short, WregBulkCtl,
};
use gaudi_spec::gaudi2::{CFG_BASE, qman, queue, rows};

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Access, Event, FaultCause, PageFault, Stop, StopReason, Unsupported};
use crate::gaudi2::space::Initiator;
use crate::gaudi2::stream::{Cb, Cp, Entry, Held, Processor};
use crate::gaudi2::write::WriteError;

/// What a packet did to its processor.
enum Done {
    Next,
    // The packet is executed again when nothing holds the processor any more.
    Hold(Held),
}

/// Why a packet could not be done.
enum Failed {
    Stop(StopReason),
    Fault(Fault),
}

impl From<Unsupported> for Failed {
    fn from(what: Unsupported) -> Self {
        Self::Stop(StopReason::Unsupported(what))
    }
}

impl From<DecodeError> for Failed {
    fn from(error: DecodeError) -> Self {
        Self::Stop(StopReason::Malformed(error))
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        match fault.cause {
            FaultCause::NotMapped => Self::Fault(fault),
            _ => Self::Stop(StopReason::NotMemory(fault.address)),
        }
    }
}

type Outcome = Result<Done, Failed>;

/// A packet as it was fetched: its length, and its first bytes.
struct Fetched {
    len: usize,
    bytes: [u8; MAX_FIXED],
    shown: usize,
}

impl Fetched {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.shown).unwrap_or(&self.bytes)
    }

    /// Its bytes with zeros behind them: what follows it in its buffer is not reported.
    fn shown_alone(&self) -> [u8; MAX_FIXED] {
        let mut bytes = self.bytes;
        bytes.iter_mut().skip(self.shown).for_each(|byte| *byte = 0);
        bytes
    }
}

impl Chip {
    /// Executes the next packet of a ready processor.
    pub(crate) fn execute(&mut self, cp: Cp) {
        let Some(processor) = self.processors.get_mut(cp.0 as usize) else {
            return;
        };
        let (Some(cb), Some(head)) = (processor.current(), processor.head()) else {
            self.ready.set(cp, false);
            return;
        };
        let offset = processor.offset();
        self.bus.act_as(Initiator::Queue(cp.first_queue()));
        let (packet, outcome) = match fetch(processor, &self.bus, &cb) {
            Ok(packet) if packet.len == 0 => (packet, Ok(Done::Next)),
            Ok(packet) => {
                self.counters.packets += 1;
                let outcome = self.packet(cp, &packet);
                (packet, outcome)
            }
            Err((packet, failed)) => (packet, Err(failed)),
        };
        let Some(processor) = self.processors.get_mut(cp.0 as usize) else {
            return;
        };
        let queue = head.queue;
        let mut event = None;
        let mut done = None;
        match outcome {
            Ok(Done::Next) => done = processor.advance(packet.len as u64),
            Ok(Done::Hold(held)) => {
                self.counters.packets -= 1;
                processor.hold(held);
            }
            Err(failed) => {
                processor.hold(Held::Halted);
                event = Some(match failed {
                    Failed::Stop(reason) => Event::Stop(Stop {
                        queue,
                        tag: head.cb.tag,
                        offset,
                        lower: cp.is_lower().then_some((cb.va, cb.len)),
                        reason,
                        bytes: packet.shown_alone(),
                        len: packet.shown as u8,
                    }),
                    Failed::Fault(Fault { address, access, .. }) => Event::PageFault(PageFault {
                        queue,
                        tag: head.cb.tag,
                        offset,
                        address,
                        access,
                    }),
                });
            }
        }
        let ready = processor.is_ready();
        self.ready.set(cp, ready);
        if let Some(event) = event {
            self.report(event);
        }
        if let Some(done) = done {
            self.executed(cp, done);
        }
        self.arbitrate(cp);
    }

    // A buffer and what it pushed was executed.
    fn executed(&mut self, cp: Cp, done: Entry) {
        let owner = Cp::of(done.queue);
        if cp.is_lower() {
            for stream in 0..queue::STREAMS {
                self.wake(Cp::in_qman(cp.first_queue(), stream), |held| held == Held::Room);
            }
            let Some(processor) = self.processor(owner) else {
                return;
            };
            processor.done_below();
            if !processor.waits_below() {
                self.wake(owner, |held| held == Held::Below);
            }
        } else if let Some(processor) = self.processor(cp) {
            processor.retire(done.cb.tag);
        }
        while let Some(tag) = self.processor(owner).and_then(Processor::next_done) {
            let queue = done.queue;
            self.report(Event::CbDone { queue, tag });
        }
    }

    // Lets the arbiter decide, after each packet of its queue manager.
    fn arbitrate(&mut self, cp: Cp) {
        let first = cp.first_queue();
        let Some(manager) = self.managers.get_mut(cp.qman() as usize) else {
            return;
        };
        if !manager.arbiter.cfg().enable() {
            return;
        }
        let others_run = (0..queue::STREAMS).any(|stream| self.ready.get(Cp::in_qman(first, stream)));
        if let Some(stream) = manager.arbiter.decide(others_run) {
            self.wake(Cp::in_qman(first, stream as u32), |held| held == Held::Arbiter);
        }
    }

    fn packet(&mut self, cp: Cp, packet: &Fetched) -> Outcome {
        let ctl = packet::ctl(packet.bytes());
        let waits = self.processors.get(cp.0 as usize);
        if packet::engine_barrier(ctl) && waits.is_some_and(Processor::waits_below) {
            return Ok(Done::Hold(Held::Below));
        }
        match Opcode::of(ctl) {
            Opcode::WREG_BULK => self.wreg_bulk(cp, WregBulkCtl::from_bits(ctl), packet.len),
            opcode @ Opcode::WRITE_ARC_STREAM => Err(Unsupported::Packet(opcode).into()),
            _ => self.decoded(cp, Packet::decode(packet.bytes())?, false),
        }
    }

    // `nested` says that a LOAD_AND_EXE executes the packet.
    fn decoded(&mut self, cp: Cp, packet: Packet<'_>, nested: bool) -> Outcome {
        if let Some(predicate) = packet.predicate() {
            if !self.holds(cp, predicate) {
                return Ok(Done::Next);
            }
        }
        match packet {
            Packet::Nop(_) => Ok(Done::Next),
            Packet::Stop(_) => Err(Failed::Stop(StopReason::Asked)),
            Packet::MsgLong(packet) => self.message(packet.ctl().op(), packet.address(), packet.value()),
            // No right of the driver's is modelled, and a user's queue has none.
            Packet::MsgProt(packet) => self.message(packet.ctl().op(), packet.address(), packet.value()),
            Packet::MsgShort(packet) => self.msg_short(cp, packet),
            Packet::Fence(packet) => self.fence(cp, packet),
            Packet::Wait(packet) => Ok(self.wait(cp, packet)),
            Packet::LinDma(packet) => self.lin_dma(cp, packet),
            Packet::CpDma(packet) => self.cp_dma(cp, packet),
            Packet::CbList(packet) => self.cb_list(cp, packet),
            Packet::ArbPoint(packet) => Ok(self.arb_point(cp, packet)),
            Packet::Wreg32(packet) => self.wreg_32(cp, packet),
            Packet::WregBulk(packet) => {
                let start = u32::from(packet.ctl().offset());
                for (value, nth) in packet.values().zip(0u32..) {
                    self.wide(cp, start + nth * 8, value, (true, true))?;
                }
                Ok(Done::Next)
            }
            Packet::Wreg64Short(packet) => self.wreg_64_short(cp, packet),
            Packet::Wreg64Long(packet) => self.wreg_64_long(cp, packet),
            Packet::LoadAndExe(_) if nested => Err(Unsupported::Nested.into()),
            Packet::LoadAndExe(packet) => self.load_and_exe(cp, packet),
            other => Err(Unsupported::Packet(other.opcode()).into()),
        }
    }

    fn holds(&self, cp: Cp, predicate: u8) -> bool {
        let predicates = self.processors.get(cp.0 as usize).map_or(0, |cp| cp.predicates);
        predicate == 0 || predicates >> predicate & 1 != 0
    }

    fn message(&mut self, op: u8, address: DeviceVa, value: u32) -> Outcome {
        if op != 0 {
            return Err(Unsupported::TimeStamp.into());
        }
        let result = self.write_word(address, value);
        done(result, address, value)
    }

    fn msg_short(&mut self, cp: Cp, packet: MsgShort) -> Outcome {
        let ctl = packet.ctl();
        if ctl.dw() {
            return Err(Unsupported::MessageWidth.into());
        }
        let bases = self.processor(cp).map(|cp| cp.bases).unwrap_or_default();
        let base = bases.get(usize::from(ctl.base())).copied().unwrap_or(0);
        let address = step(DeviceVa(base), u64::from(ctl.offset()), Access::Write)?;
        self.message(ctl.op(), address, packet.value())
    }

    fn fence(&mut self, cp: Cp, packet: Fence) -> Outcome {
        let cfg = packet.cfg();
        let counters = self.processor(cp).map(|cp| &mut cp.fences);
        let counter = counters.and_then(|counters| counters.get_mut(usize::from(cfg.id())));
        Ok(match counter {
            Some(counter) if *counter >= u16::from(cfg.target()) => {
                *counter = counter.saturating_sub(u16::from(cfg.decrement()));
                Done::Next
            }
            _ => Done::Hold(Held::Fence {
                id: cfg.id(),
                target: cfg.target(),
            }),
        })
    }

    // `source: inferred`: the counter rises when the cycles are over, and no time passes between
    // two packets here.
    fn wait(&mut self, cp: Cp, packet: Wait) -> Done {
        let cfg = packet.cfg();
        self.write_fence(cp, u32::from(cfg.id()), true, u32::from(cfg.increment()));
        Done::Next
    }

    fn lin_dma(&mut self, cp: Cp, packet: LinDma) -> Outcome {
        let manager = self.managers.get(cp.qman() as usize);
        if !manager.is_some_and(|manager| manager.has_dma) {
            return Err(Unsupported::NoDmaEngine.into());
        }
        let before = self.processor(cp).map_or(0, |cp| cp.moved);
        self.counters.lin_dma += u64::from(before == 0);
        match self.transfer(cp.first_queue(), packet, before) {
            Ok(moved) if moved < u64::from(packet.size()) => {
                if let Some(processor) = self.processor(cp) {
                    processor.moved = moved;
                }
                // It goes on with the same packet.
                Ok(Done::Hold(Held::No))
            }
            result => done(result.map(drop), packet.destination(), packet.size()),
        }
    }

    fn cp_dma(&mut self, cp: Cp, packet: CpDma) -> Outcome {
        if packet.size() == 0 {
            return Ok(Done::Next);
        }
        let Some(processor) = self.processors.get_mut(cp.0 as usize) else {
            return Ok(Done::Next);
        };
        let Some(head) = processor.head() else {
            return Ok(Done::Next);
        };
        let cb = Cb {
            va: packet.source(),
            len: packet.size(),
            tag: head.cb.tag,
        };
        if packet.ctl().upper_cp() {
            return match processor.push_own(cb) {
                true => Ok(Done::Next),
                false => Err(Failed::Stop(StopReason::UpperOverflow)),
            };
        }
        // There is no processor below the lower one.
        if cp.is_lower() {
            return Err(Unsupported::LowerProcessor.into());
        }
        let below = cp.lower();
        let Some(lower) = self.processor(below) else {
            return Ok(Done::Next);
        };
        if !lower.has_room() {
            return Ok(Done::Hold(Held::Room));
        }
        lower.take(Entry {
            cb,
            queue: head.queue,
        });
        let ready = lower.is_ready();
        self.ready.set(below, ready);
        self.busy.set(below, true);
        if let Some(processor) = self.processor(cp) {
            processor.hands_down();
        }
        Ok(Done::Next)
    }

    fn cb_list(&mut self, cp: Cp, packet: CbList) -> Outcome {
        if packet.ctl().size_desc() {
            return Err(Unsupported::LongEntry.into());
        }
        let mut index = [0; 4];
        self.load(packet.index(), &mut index)?;
        let at = u64::from(u32::from_le_bytes(index)) * CbList::ENTRY;
        let mut entry = [0; CbList::ENTRY as usize];
        self.load(step(packet.table(), at, Access::Read)?, &mut entry)?;
        match Packet::decode(&entry)? {
            packet @ Packet::CpDma(_) => self.decoded(cp, packet, true),
            other => Err(Unsupported::Entry(other.opcode()).into()),
        }
    }

    fn arb_point(&mut self, cp: Cp, packet: ArbPoint) -> Done {
        // `source: inferred`: the lower processor does not take part.
        let Some(stream) = cp.stream() else {
            return Done::Next;
        };
        let Some(manager) = self.managers.get_mut(cp.qman() as usize) else {
            return Done::Next;
        };
        let cfg = packet.cfg();
        if cfg.release() {
            manager.arbiter.release(stream);
        } else if !manager.arbiter.acquire(stream, cfg.priority()) {
            return Done::Hold(Held::Arbiter);
        }
        Done::Next
    }

    fn load_and_exe(&mut self, cp: Cp, packet: LoadAndExe) -> Outcome {
        let cfg = packet.cfg();
        if cfg.load() && cfg.scalars() {
            let mut bytes = [0; LoadAndExe::SCALARS];
            self.load(packet.source(), &mut bytes)?;
            if let Some(processor) = self.processor(cp) {
                for (scalar, word) in processor.scalars.iter_mut().zip(words(&bytes)) {
                    *scalar = word;
                }
            }
        } else if cfg.load() {
            let mut bytes = [0; LoadAndExe::PREDICATE_WORDS];
            let len = if cfg.consecutive() {
                4
            } else {
                LoadAndExe::PREDICATE_WORDS
            };
            let bytes = bytes.get_mut(..len).unwrap_or_default();
            self.load(packet.source(), bytes)?;
            let loaded = if cfg.consecutive() {
                words(bytes).next().unwrap_or(0)
            } else {
                words(bytes)
                    .zip(0u32..)
                    .fold(0, |all, (word, nth)| all | (word & 1) << nth)
            };
            if let Some(processor) = self.processor(cp) {
                let keep = processor.predicates & !processor.loadable;
                processor.predicates = keep | loaded & processor.loadable;
            }
        }
        if !cfg.exe() {
            return Ok(Done::Next);
        }
        let scalars = self.processor(cp).map(|cp| cp.scalars).unwrap_or_default();
        let mut bytes = [0; LoadAndExe::SCALARS];
        for (four, scalar) in bytes.chunks_exact_mut(4).zip(scalars) {
            four.copy_from_slice(&scalar.to_le_bytes());
        }
        let from = if cfg.upper() { HEADER } else { 0 };
        self.decoded(cp, Packet::decode(bytes.get(from..).unwrap_or_default())?, true)
    }

    // Reads data, all of it or a fault.
    fn load(&self, at: DeviceVa, into: &mut [u8]) -> Result<(), Failed> {
        match self.bus.read(at, into, Access::Read).1 {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }

    // Writes a register of the processor's own queue manager and engine.
    fn own_register(&mut self, cp: Cp, offset: u32, value: u32) -> Result<(), Failed> {
        let manager = self.managers.get(cp.qman() as usize);
        let window = manager.map_or(0, |manager| manager.window);
        let register = window + offset;
        let address = DeviceVa(CFG_BASE.get() + u64::from(register));
        // Across PCI there are registers that queues and engines have not.
        let is_none = self.bus.pci.is_some() && rows::find(register).is_none();
        if offset >= qman::WREG_WINDOW || is_none {
            return Err(Failed::Stop(StopReason::UnknownRegister(address)));
        }
        let result = self.write_register(register, value);
        done(result, address, value).map(|_| ())
    }

    fn wide(&mut self, cp: Cp, offset: u32, value: u64, (low, high): (bool, bool)) -> Result<(), Failed> {
        if low {
            self.own_register(cp, offset, value as u32)?;
        }
        if high {
            self.own_register(cp, offset + 4, (value >> 32) as u32)?;
        }
        Ok(())
    }

    fn scalar(&self, cp: Cp, word: u32) -> u32 {
        let scalars = self.processors.get(cp.0 as usize).map(|cp| cp.scalars);
        let number = (word & 3) as usize;
        scalars
            .unwrap_or_default()
            .get(number)
            .copied()
            .unwrap_or_default()
    }

    fn wreg_32(&mut self, cp: Cp, packet: Wreg32) -> Outcome {
        let ctl = packet.ctl();
        let value = match ctl.reg() {
            true => self.scalar(cp, packet.value()),
            false => packet.value(),
        };
        self.own_register(cp, u32::from(ctl.offset()), value)
            .map(|()| Done::Next)
    }

    // The values are read from the buffer as they are written: a packet may be longer than what is
    // fetched at once.
    fn wreg_bulk(&mut self, cp: Cp, ctl: WregBulkCtl, len: usize) -> Outcome {
        if !self.holds(cp, ctl.predicate()) {
            return Ok(Done::Next);
        }
        let mut bytes = [0; 256];
        for (from, nth) in (HEADER..len).step_by(bytes.len()).zip(0u32..) {
            let size = bytes.len().min(len - from);
            let bytes = bytes.get_mut(..size).unwrap_or_default();
            let Some(processor) = self.processors.get(cp.0 as usize) else {
                break;
            };
            let at = processor.address(from as u64)?;
            if let Some(fault) = self.bus.read(at, bytes, Access::Fetch).1 {
                return Err(fault.into());
            }
            let start = u32::from(ctl.offset()) + nth * 256;
            for (value, at) in words(bytes).zip((start..).step_by(4)) {
                self.own_register(cp, at, value)?;
            }
        }
        Ok(Done::Next)
    }

    fn base(&self, cp: Cp, base: u8) -> u64 {
        let manager = self.managers.get(cp.qman() as usize);
        let base = manager.and_then(|manager| manager.wide.get(usize::from(base)));
        base.copied().unwrap_or(0)
    }

    fn wreg_64_short(&mut self, cp: Cp, packet: Wreg64Short) -> Outcome {
        let ctl = packet.ctl();
        let offset = match ctl.reg() {
            true => self.scalar(cp, packet.offset() as u32) as i32,
            false => packet.offset(),
        };
        let value = self.base(cp, ctl.base()).wrapping_add_signed(i64::from(offset));
        let register = u32::from(ctl.dreg_offset()) * 4;
        self.wide(cp, register, value, (true, true)).map(|()| Done::Next)
    }

    fn wreg_64_long(&mut self, cp: Cp, packet: Wreg64Long) -> Outcome {
        let (ctl, cfg) = (packet.ctl(), packet.cfg());
        let base = match ctl.rel() {
            true => self.base(cp, ctl.base()),
            false => 0,
        };
        let register = u32::from(ctl.dreg_offset()) * 4;
        self.wide(
            cp,
            register,
            base.wrapping_add(packet.offset()),
            (cfg.low(), cfg.high()),
        )
        .map(|()| Done::Next)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| match *word {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    })
}

fn done(result: Result<(), WriteError>, address: DeviceVa, value: u32) -> Outcome {
    result.map(|()| Done::Next).map_err(|error| match error {
        WriteError::Fault(fault) => fault.into(),
        WriteError::UnknownRegister => Failed::Stop(StopReason::UnknownRegister(address)),
        WriteError::UnknownVector => Failed::Stop(StopReason::UnknownVector(value)),
        WriteError::Unsupported(what) => what.into(),
    })
}

// The next packet: its length is 0 at the end of an empty command buffer. An error comes with the
// bytes that are there to be shown.
fn fetch(processor: &mut Processor, bus: &Bus, cb: &Cb) -> Result<Fetched, (Fetched, Failed)> {
    let mut packet = Fetched {
        len: 0,
        bytes: [0; MAX_FIXED],
        shown: 0,
    };
    let left = u64::from(cb.len).saturating_sub(processor.offset());
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    if left == 0 {
        return Ok(packet);
    }
    let head = left.min(HEADER);
    let there = match processor.peek(bus, cb, head, &mut packet.bytes) {
        Ok(there) => there,
        Err(fault) => return Err((packet, fault.into())),
    };
    packet.shown = head;
    match packet::size(packet.bytes()) {
        Ok(needed) if needed > left => {
            let available = left;
            Err((packet, DecodeError::Truncated { needed, available }.into()))
        }
        Ok(needed) => {
            packet.len = needed;
            let shown = needed.min(MAX_FIXED);
            if there < shown {
                if let Err(fault) = processor.peek(bus, cb, shown, &mut packet.bytes) {
                    return Err((packet, fault.into()));
                }
            }
            packet.shown = shown;
            Ok(packet)
        }
        Err(error) => Err((packet, error.into())),
    }
}
