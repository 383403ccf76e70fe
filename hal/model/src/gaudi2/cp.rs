//! The packets' effects.
//!
//! Undocumented behaviour of the chip is marked `source: inferred` where it is implemented;
//! otherwise the processor stops with [`Unsupported`]. Inferred for all packets:
//!
//! - Work completes at once, in the order of the buffer. So message barriers wait for nothing, and
//!   engine barriers wait only for buffers passed to the lower processor.
//! - A queue's command buffer is complete when it and the buffers that it passed down are executed.
//! - The lower processor executes buffers in the order of arrival. If it is full, the processor
//!   that passes one down waits.

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{
    self, ArbPoint, CbList, CpDma, DecodeError, Fence, HEADER, LinDma, LoadAndExe, MAX_FIXED, MsgShort,
    Opcode, Packet, Wait, Wreg32, Wreg64Long, Wreg64Short, WregBulkHead,
};
use gaudi_spec::gaudi2::{qman, queue, rows};

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Access, Event, FaultCause, PageFault, Stop, StopReason, Unsupported};
use crate::gaudi2::faults::PacketFault;
use crate::gaudi2::space::Initiator;
use crate::gaudi2::stream::{Cb, Cp, Entry, Held, Processor};
use crate::gaudi2::write::Failed;

/// The state of a processor after a packet.
enum Done {
    Next,
    // The packet is executed again when nothing holds the processor any more.
    Hold(Held),
}

type Outcome = Result<Done, Failed>;

/// A packet as it was fetched: its length, and its first bytes.
#[derive(Default)]
struct Fetched {
    len: usize,
    bytes: [u8; MAX_FIXED],
    shown: usize,
}

impl Fetched {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.shown]
    }

    /// Its bytes with zeros behind them: what follows it in its buffer is not reported.
    fn shown_alone(&self) -> [u8; MAX_FIXED] {
        let mut bytes = self.bytes;
        bytes[self.shown..].fill(0);
        bytes
    }
}

impl Chip {
    /// Executes the next packet of a ready processor.
    pub(crate) fn execute(&mut self, cp: Cp) {
        debug_assert!(
            self.is_touched(cp),
            "a reset would pass over a processor with work"
        );
        let processor = &mut self.processors[cp.index()];
        let head = processor.head().expect("a ready processor has a command buffer");
        let cb = processor.current().unwrap_or(head.cb);
        let offset = processor.offset();
        self.bus.act_as(Initiator::Queue(cp.first_queue()));
        let mut packet = Fetched::default();
        let fetched = fetch(processor, &self.bus, &cb, &mut packet);
        let outcome = fetched.and_then(|()| match packet.len {
            0 => Ok(Done::Next),
            _ => {
                self.counters.packets += 1;
                let fault = match self.bus.faults.is_some() {
                    true => self.packet_fault(cp, head.queue, Opcode::of(packet::ctl(packet.bytes()))),
                    false => None,
                };
                match fault {
                    None => self.packet(cp, &packet),
                    Some(PacketFault::Lost) => Ok(Done::Next),
                    Some(PacketFault::Hung) => Ok(Done::Hold(Held::Halted)),
                }
            }
        });
        let processor = &mut self.processors[cp.index()];
        let (queue, tag) = (head.queue, head.cb.tag);
        let mut event = None;
        let mut done = None;
        match outcome {
            Ok(Done::Next) => done = processor.advance(packet.len as u64),
            Ok(Done::Hold(held)) => {
                self.counters.packets -= 1;
                processor.hold(held);
                if self.bus.faults.is_some() {
                    self.packet_repeats(cp);
                }
            }
            Err(failed) => {
                processor.hold(Held::Halted);
                let stop = |reason| {
                    Event::Stop(Stop {
                        queue,
                        tag,
                        offset,
                        lower: cp.is_lower().then_some((cb.va, cb.len)),
                        reason,
                        bytes: packet.shown_alone(),
                        len: packet.shown as u8,
                    })
                };
                event = Some(match failed {
                    Failed::Stop(reason) => stop(reason),
                    Failed::Fault(Fault {
                        address,
                        access,
                        cause: FaultCause::NotMapped,
                    }) => Event::PageFault(PageFault {
                        queue,
                        tag,
                        offset,
                        address,
                        access,
                    }),
                    // guess: an engine whose access was refused starts no further packet.
                    Failed::Fault(Fault {
                        address,
                        cause: FaultCause::Refused,
                        ..
                    }) => Event::Razwi { queue, address },
                    Failed::Fault(fault) => stop(StopReason::NotMemory(fault.address)),
                });
            }
        }
        self.ready.set(cp, self.processors[cp.index()].is_ready());
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
            self.wake_streams(cp.first_queue(), Held::Room);
            let processor = self.processor(owner);
            processor.done_below();
            if !processor.waits_below() {
                self.wake(owner, |held| held == Held::Below);
            }
        } else {
            self.processor(cp).retire(done.cb.tag);
        }
        while let Some(tag) = self.processor(owner).next_done() {
            let queue = done.queue;
            match self.bus.faults.is_some() {
                true => self.report_by_rules(Event::CbDone { queue, tag }),
                false => self.report(Event::CbDone { queue, tag }),
            }
        }
    }

    // Lets the arbiter decide, after each packet of its queue manager.
    fn arbitrate(&mut self, cp: Cp) {
        let first = cp.first_queue();
        let arbiter = &mut self.managers[cp.qman()].arbiter;
        if !arbiter.cfg.enable() {
            return;
        }
        let others_run = (0..queue::STREAMS).any(|stream| self.ready.get(Cp::in_qman(first, stream)));
        if let Some(stream) = arbiter.decide(others_run) {
            self.wake(Cp::in_qman(first, stream as u32), |held| held == Held::Arbiter);
        }
    }

    fn packet(&mut self, cp: Cp, packet: &Fetched) -> Outcome {
        let ctl = packet::ctl(packet.bytes());
        if packet::engine_barrier(ctl) && self.processors[cp.index()].waits_below() {
            return Ok(Done::Hold(Held::Below));
        }
        match Opcode::of(ctl) {
            Opcode::WREG_BULK => {
                self.wreg_bulk(cp, WregBulkHead::from_bits(u64::from(ctl) << 32), packet.len)
            }
            opcode @ Opcode::WRITE_ARC_STREAM => Err(Unsupported::Packet(opcode).into()),
            _ => match &Packet::decode(packet.bytes()) {
                Ok(packet) => self.decoded(cp, packet, false),
                Err(error) => Err((*error).into()),
            },
        }
    }

    // `nested`: a LOAD_AND_EXE executes the packet.
    fn decoded(&mut self, cp: Cp, packet: &Packet<'_>, nested: bool) -> Outcome {
        if let Some(predicate) = packet.predicate() {
            if !self.holds(cp, predicate) {
                return Ok(Done::Next);
            }
        }
        match *packet {
            Packet::Nop(_) => Ok(Done::Next),
            Packet::Stop(_) => Err(Failed::Stop(StopReason::Asked)),
            Packet::MsgLong(packet) => self.message(packet.op(), packet.address(), packet.value()),
            // No right of the driver's is modelled, and a user's queue has none.
            Packet::MsgProt(packet) => self.message(packet.op(), packet.address(), packet.value()),
            Packet::MsgShort(packet) => self.msg_short(cp, packet),
            Packet::Fence(packet) => self.fence(cp, packet),
            Packet::Wait(packet) => Ok(self.wait(cp, packet)),
            Packet::LinDma(ref packet) => self.lin_dma(cp, packet),
            Packet::CpDma(packet) => self.cp_dma(cp, packet),
            Packet::CbList(packet) => self.cb_list(cp, packet),
            Packet::ArbPoint(packet) => Ok(self.arb_point(cp, packet)),
            Packet::Wreg32(packet) => self.wreg_32(cp, packet),
            Packet::WregBulk(packet) => {
                let start = u32::from(packet.head().offset());
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
        predicate == 0 || self.processors[cp.index()].predicates >> predicate & 1 != 0
    }

    fn message(&mut self, op: u8, address: DeviceVa, value: u32) -> Outcome {
        if op != 0 {
            return Err(Unsupported::TimeStamp.into());
        }
        self.write_word(address, value)?;
        Ok(Done::Next)
    }

    fn msg_short(&mut self, cp: Cp, packet: MsgShort) -> Outcome {
        if packet.dw() {
            return Err(Unsupported::MessageWidth.into());
        }
        let base = self.processor(cp).bases[usize::from(packet.base())];
        let address = step(DeviceVa(base), u64::from(packet.offset()), Access::Write)?;
        self.message(packet.op(), address, packet.value())
    }

    fn fence(&mut self, cp: Cp, packet: Fence) -> Outcome {
        let (id, target) = (packet.id(), packet.target());
        let counter = &mut self.processor(cp).fences[usize::from(id)];
        if *counter < u16::from(target) {
            return Ok(Done::Hold(Held::Fence { id, target }));
        }
        *counter = counter.saturating_sub(u16::from(packet.decrement()));
        Ok(Done::Next)
    }

    // `source: inferred`: the counter rises when the cycles are over, and no time passes between
    // two packets here.
    fn wait(&mut self, cp: Cp, packet: Wait) -> Done {
        self.write_fence(cp, u32::from(packet.id()), true, u32::from(packet.increment()));
        Done::Next
    }

    fn lin_dma(&mut self, cp: Cp, packet: &LinDma) -> Outcome {
        if !self.managers[cp.qman()].has_dma {
            return Err(Unsupported::NoDmaEngine.into());
        }
        let before = self.processor(cp).moved;
        self.counters.lin_dma += u64::from(before == 0);
        let moved = self.transfer(cp.first_queue(), packet, before)?;
        if moved < u64::from(packet.size) {
            self.processor(cp).moved = moved;
            // It continues with the same packet.
            return Ok(Done::Hold(Held::No));
        }
        Ok(Done::Next)
    }

    fn cp_dma(&mut self, cp: Cp, packet: CpDma) -> Outcome {
        let processor = self.processor(cp);
        let Some(head) = processor.head().filter(|_| packet.size() != 0) else {
            return Ok(Done::Next);
        };
        let (va, len, tag) = (packet.source(), packet.size(), head.cb.tag);
        let cb = Cb { va, len, tag };
        if packet.upper_cp() {
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
        let lower = self.processor(below);
        if !lower.has_room() {
            return Ok(Done::Hold(Held::Room));
        }
        let queue = head.queue;
        lower.take(Entry { cb, queue });
        let ready = lower.is_ready();
        self.ready.set(below, ready);
        self.busy.set(below, true);
        self.processor(cp).hands_down();
        Ok(Done::Next)
    }

    fn cb_list(&mut self, cp: Cp, packet: CbList) -> Outcome {
        if packet.ctl.size_desc() {
            return Err(Unsupported::LongEntry.into());
        }
        let at = u64::from(u32::from_le_bytes(self.load(packet.index)?)) * CbList::ENTRY;
        let entry: [u8; CbList::ENTRY as usize] = self.load(step(packet.table, at, Access::Read)?)?;
        match Packet::decode(&entry)? {
            ref packet @ Packet::CpDma(_) => self.decoded(cp, packet, true),
            other => Err(Unsupported::Entry(other.opcode()).into()),
        }
    }

    fn arb_point(&mut self, cp: Cp, packet: ArbPoint) -> Done {
        // `source: inferred`: the lower processor does not take part.
        let Some(stream) = cp.stream() else {
            return Done::Next;
        };
        let arbiter = &mut self.managers[cp.qman()].arbiter;
        if packet.release() {
            arbiter.release(stream);
        } else if !arbiter.acquire(stream, packet.priority()) {
            return Done::Hold(Held::Arbiter);
        }
        Done::Next
    }

    fn load_and_exe(&mut self, cp: Cp, packet: LoadAndExe) -> Outcome {
        if packet.load() && packet.scalars() {
            self.processor(cp).scalars = self.load(packet.source())?;
        } else if packet.load() {
            let loaded = if packet.consecutive() {
                u32::from_le_bytes(self.load(packet.source())?)
            } else {
                let words_of: [u8; 128] = self.load(packet.source())?;
                words(&words_of)
                    .zip(0..)
                    .fold(0, |all, (word, nth)| all | (word & 1) << nth)
            };
            let processor = self.processor(cp);
            let keep = processor.predicates & !processor.loadable;
            processor.predicates = keep | loaded & processor.loadable;
        }
        if !packet.exe() {
            return Ok(Done::Next);
        }
        let scalars = self.processor(cp).scalars;
        let from = if packet.upper() { HEADER } else { 0 };
        self.decoded(cp, &Packet::decode(&scalars[from..])?, true)
    }

    // Reads data, all of it or a fault.
    fn load<const N: usize>(&self, at: DeviceVa) -> Result<[u8; N], Failed> {
        let mut bytes = [0; N];
        match self.bus.read(at, &mut bytes, Access::Read).1 {
            Some(fault) => Err(fault.into()),
            None => Ok(bytes),
        }
    }

    // Writes a register of the processor's own queue manager and engine.
    fn own_register(&mut self, cp: Cp, offset: u32, value: u32) -> Result<(), Failed> {
        let register = self.managers[cp.qman()].window + offset;
        // Across PCI there are registers that queues and engines have not.
        let is_none = self.bus.pci.is_some() && rows::find(register).is_none();
        if offset >= qman::WREG_WINDOW || is_none {
            return Err(Failed::unknown_register(register));
        }
        self.write_register(register, value)
    }

    fn wide(&mut self, cp: Cp, offset: u32, value: u64, (low, high): (bool, bool)) -> Outcome {
        if low {
            self.own_register(cp, offset, value as u32)?;
        }
        if high {
            self.own_register(cp, offset + 4, (value >> 32) as u32)?;
        }
        Ok(Done::Next)
    }

    fn scalar(&self, cp: Cp, word: u32) -> u32 {
        // Four words: the masked index always names one.
        let at = (word & 3) as usize * 4;
        words(&self.processors[cp.index()].scalars[at..])
            .next()
            .unwrap_or_default()
    }

    fn wreg_32(&mut self, cp: Cp, packet: Wreg32) -> Outcome {
        let value = match packet.reg() {
            true => self.scalar(cp, packet.value()),
            false => packet.value(),
        };
        self.own_register(cp, u32::from(packet.offset()), value)?;
        Ok(Done::Next)
    }

    // The values are read from the buffer as they are written: a packet may be longer than what is
    // fetched at once.
    fn wreg_bulk(&mut self, cp: Cp, head: WregBulkHead, len: usize) -> Outcome {
        if !self.holds(cp, head.predicate()) {
            return Ok(Done::Next);
        }
        let mut bytes = [0; 256];
        for (from, start) in (HEADER..len)
            .step_by(256)
            .zip((u32::from(head.offset())..).step_by(256))
        {
            let bytes = &mut bytes[..(len - from).min(256)];
            let at = self.processors[cp.index()].address(from as u64)?;
            if let Some(fault) = self.bus.read(at, bytes, Access::Fetch).1 {
                return Err(fault.into());
            }
            for (value, at) in words(bytes).zip((start..).step_by(4)) {
                self.own_register(cp, at, value)?;
            }
        }
        Ok(Done::Next)
    }

    fn base(&self, cp: Cp, base: u8) -> u64 {
        self.managers[cp.qman()].wide[usize::from(base)]
    }

    fn wreg_64_short(&mut self, cp: Cp, packet: Wreg64Short) -> Outcome {
        let offset = match packet.reg() {
            true => self.scalar(cp, packet.offset() as u32) as i32,
            false => packet.offset(),
        };
        let value = self
            .base(cp, packet.base())
            .wrapping_add_signed(i64::from(offset));
        self.wide(cp, u32::from(packet.dreg_offset()) * 4, value, (true, true))
    }

    fn wreg_64_long(&mut self, cp: Cp, packet: Wreg64Long) -> Outcome {
        let base = if packet.rel() {
            self.base(cp, packet.base())
        } else {
            0
        };
        let value = base.wrapping_add(packet.offset());
        let halves = (packet.low(), packet.high());
        self.wide(cp, u32::from(packet.dreg_offset()) * 4, value, halves)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let word = |word: &[u8]| word.first_chunk().map(|word| u32::from_le_bytes(*word));
    bytes.chunks_exact(4).filter_map(word)
}

// The next packet: its length is 0 at the end of an empty command buffer. After an error `packet`
// has the bytes that are there to be shown.
fn fetch(processor: &mut Processor, bus: &Bus, cb: &Cb, packet: &mut Fetched) -> Result<(), Failed> {
    // A device address and a command buffer's length fit a `usize`.
    let available = u64::from(cb.len).saturating_sub(processor.offset()) as usize;
    if available == 0 {
        return Ok(());
    }
    let head = available.min(HEADER);
    let there = processor.peek(bus, cb, head, &mut packet.bytes)?;
    packet.shown = head;
    let needed = packet::size(packet.bytes())?;
    if needed > available {
        return Err(DecodeError::Truncated { needed, available }.into());
    }
    packet.len = needed;
    let shown = needed.min(MAX_FIXED);
    if there < shown {
        processor.peek(bus, cb, shown, &mut packet.bytes)?;
    }
    packet.shown = shown;
    Ok(())
}
