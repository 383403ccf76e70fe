//! The command processors: streams of command buffers, and what each packet does.

use std::collections::VecDeque;

use gaudi_spec::gaudi2::packet::{
    self, CpDma, DecodeError, Fence, LinDma, MAX_FIXED, MsgLong, MsgShort, Packet, Source,
};
use gaudi_spec::gaudi2::{CFG_BASE, INTERRUPTS, QUEUE_DEPTH, qman, queue, sync};
use gaudi_spec::{DeviceVa, QueueId, asic::QueueEngine};

use crate::bus::{Bus, Fault, Place, step};
use crate::chip::{Cb, Chip, PushError, StreamState};
use crate::dma;
use crate::event::{Access, Event, FaultCause, PageFault, Stop, StopReason, Unsupported};
use crate::registers::Block;
use crate::sm::Action;

/// Bytes of a command buffer fetched at once. What lies further ahead can still be changed.
const FETCH: usize = 256;
const QUEUES: usize = queue::COUNT as usize;

/// MSG_SHORT bases as the driver sets them when it initialises a queue manager (gaudi2.c:5395).
const BASES: [u64; qman::MSG_BASES as usize] = {
    let objs = CFG_BASE.0 + sync::OBJS as u64;
    [objs + sync::MON_PAY_ADDRL as u64, objs, 0, 0]
};

/// Streams that can execute a packet, a bit each.
#[derive(Debug, Default)]
pub(crate) struct Ready([u64; QUEUES.div_ceil(64)]);

impl Ready {
    pub(crate) fn set(&mut self, queue: QueueId, ready: bool) {
        if let Some(word) = self.0.get_mut(queue.0 as usize / 64) {
            let bit = 1 << (queue.0 % 64);
            *word = if ready { *word | bit } else { *word & !bit };
        }
    }

    pub(crate) fn get(&self, queue: QueueId) -> bool {
        self.0
            .get(queue.0 as usize / 64)
            .is_some_and(|word| word >> (queue.0 % 64) & 1 != 0)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The first ready stream from `from` on, round the end.
    pub(crate) fn at_or_after(&self, from: u32) -> Option<QueueId> {
        let first = |skip: u32| {
            self.0.iter().zip(0u32..).find_map(|(word, at)| {
                let below = skip.saturating_sub(at * 64).min(64);
                let word = word & u64::MAX.checked_shl(below).unwrap_or(0);
                (word != 0).then(|| QueueId(at * 64 + word.trailing_zeros()))
            })
        };
        first(from).or_else(|| first(0))
    }

    /// The `nth` ready stream.
    pub(crate) fn nth(&self, mut nth: u32) -> Option<QueueId> {
        for (&word, at) in self.0.iter().zip(0u32..) {
            if nth >= word.count_ones() {
                nth -= word.count_ones();
                continue;
            }
            let mut word = word;
            for _ in 0..nth {
                word &= word - 1;
            }
            return Some(QueueId(at * 64 + word.trailing_zeros()));
        }
        None
    }
}

#[derive(Debug)]
struct Piece {
    // Where in the head command buffer the bytes lie.
    offset: u64,
    len: usize,
    bytes: [u8; FETCH],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    No,
    Fence { id: u8, target: u8 },
    Halted,
}

#[derive(Debug)]
pub(crate) struct Stream {
    enabled: bool,
    has_dma: bool,
    queue: VecDeque<Cb>,
    // Command buffers queued, or done and not yet taken as an event.
    outstanding: u32,
    // The next packet of the buffer in work: the head command buffer, or what CP_DMA brought.
    offset: u64,
    // What the lower command processor runs, and where the head command buffer goes on after it.
    //
    // guess: a stream waits for what it handed down, and the streams of a queue manager do not wait for one another there.
    lower: Option<(Cb, u64)>,
    held: Held,
    piece: Piece,
    fences: [u16; qman::FENCES as usize],
    bases: [u64; qman::MSG_BASES as usize],
    // `WR_COMP` of the DMA core; only stream 0's is used.
    completion: (u64, u32),
}

impl Stream {
    pub(crate) fn new(id: QueueId) -> Self {
        let row = queue::row(id);
        let engine = row.map(|row| row.engine);
        Self {
            enabled: row.is_some_and(|row| row.user),
            has_dma: matches!(engine, Some(QueueEngine::Pdma | QueueEngine::Edma)),
            queue: VecDeque::new(),
            outstanding: 0,
            offset: 0,
            lower: None,
            held: Held::No,
            piece: Piece {
                offset: 0,
                len: 0,
                bytes: [0; FETCH],
            },
            fences: [0; qman::FENCES as usize],
            bases: BASES,
            completion: (0, 0),
        }
    }

    pub(crate) fn push(&mut self, cb: Cb) -> Result<(), PushError> {
        if !self.enabled {
            return Err(PushError::Disabled);
        }
        if self.outstanding >= QUEUE_DEPTH {
            return Err(PushError::Full);
        }
        self.outstanding += 1;
        self.queue.push_back(cb);
        Ok(())
    }

    pub(crate) fn give_credit(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.held == Held::No && !self.queue.is_empty()
    }

    pub(crate) fn state(&self) -> StreamState {
        match self.held {
            Held::Halted => StreamState::Halted,
            Held::Fence { id, target } => StreamState::Blocked { fence: id, target },
            Held::No if self.queue.is_empty() => StreamState::Idle,
            Held::No => StreamState::Ready,
        }
    }

    pub(crate) fn clear_fences(&mut self) {
        self.fences = [0; qman::FENCES as usize];
    }

    // The first `want` bytes of the next packet, fetching where they are not there yet.
    fn peek(&mut self, bus: &Bus, cb: &Cb, want: usize, into: &mut [u8; MAX_FIXED]) -> Result<(), Fault> {
        let piece = &mut self.piece;
        let mut start = self
            .offset
            .checked_sub(piece.offset)
            .and_then(|start| usize::try_from(start).ok());
        if start
            .and_then(|start| start.checked_add(want))
            .is_none_or(|end| end > piece.len)
        {
            let left = u64::from(cb.len).saturating_sub(self.offset).min(FETCH as u64) as usize;
            let va = step(cb.va, self.offset, Access::Fetch)?;
            let (len, fault) = bus.read(va, piece.bytes.get_mut(..left).unwrap_or_default());
            (piece.offset, piece.len, start) = (self.offset, len, Some(0));
            if let Some(fault) = fault.filter(|_| len < want) {
                piece.len = 0;
                return Err(fault);
            }
        }
        let from = start.and_then(|start| piece.bytes.get(start..start + want));
        if let (Some(to), Some(from)) = (into.get_mut(..want), from) {
            to.copy_from_slice(from);
        }
        Ok(())
    }

    // The buffer in work.
    fn current(&self) -> Option<Cb> {
        match &self.lower {
            Some((cb, _)) => Some(*cb),
            None => self.queue.front().copied(),
        }
    }

    // Goes on to another buffer, of which nothing is fetched yet.
    fn go_to(&mut self, offset: u64) {
        self.offset = offset;
        self.piece.len = 0;
    }

    // Moves past a packet; true where that was the last of the head command buffer.
    fn advance(&mut self, len: u64) -> bool {
        self.offset += len;
        loop {
            let Some(cb) = self.current() else {
                return false;
            };
            if self.offset < u64::from(cb.len) {
                return false;
            }
            match self.lower.take() {
                Some((_, back)) => self.go_to(back),
                None => break,
            }
        }
        self.go_to(0);
        self.queue.pop_front();
        true
    }
}

/// What a packet did to its stream.
enum Done {
    Next,
    Wait { id: u8, target: u8 },
    Lower(Cb),
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

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        match fault.cause {
            FaultCause::NotMapped => Self::Fault(fault),
            _ => Self::Stop(StopReason::NotMemory(fault.address)),
        }
    }
}

/// Why a word could not be written.
#[derive(Clone, Copy)]
pub(crate) enum WriteError {
    Fault(Fault),
    UnknownRegister,
    UnknownVector,
    Unsupported(Unsupported),
}

impl Chip {
    /// Executes the next packet of a ready stream.
    pub(crate) fn execute(&mut self, id: QueueId) {
        let Some(stream) = self.streams.get_mut(id.0 as usize) else {
            return;
        };
        let Some(cb) = stream.current() else {
            self.ready.set(id, false);
            return;
        };
        let offset = stream.offset;
        let lower = stream.lower.is_some().then_some((cb.va, cb.len));
        let mut bytes = [0; MAX_FIXED];
        let (len, result) = match fetch(stream, &self.bus, &cb, &mut bytes) {
            Ok(0) => (0, Ok(Done::Next)),
            Ok(len) => {
                self.counters.packets += 1;
                (len, self.packet(id, bytes.get(..len).unwrap_or_default()))
            }
            Err((len, failed)) => (len, Err(failed)),
        };
        let Some(stream) = self.streams.get_mut(id.0 as usize) else {
            return;
        };
        let mut event = None;
        match result {
            Ok(Done::Next) => {
                if stream.advance(len as u64) {
                    event = Some(Event::CbDone {
                        queue: id,
                        tag: cb.tag,
                    });
                }
            }
            Ok(Done::Lower(lower)) => {
                let back = stream.offset + len as u64;
                stream.lower = Some((lower, back));
                stream.go_to(0);
            }
            Ok(Done::Wait { id, target }) => {
                self.counters.packets -= 1;
                stream.held = Held::Fence { id, target };
            }
            Err(failed) => {
                stream.held = Held::Halted;
                event = Some(match failed {
                    Failed::Stop(reason) => Event::Stop(Stop {
                        queue: id,
                        tag: cb.tag,
                        offset,
                        lower,
                        reason,
                        bytes,
                        len: len as u8,
                    }),
                    Failed::Fault(Fault { address, access, .. }) => Event::PageFault(PageFault {
                        queue: id,
                        tag: cb.tag,
                        offset,
                        address,
                        access,
                    }),
                });
            }
        }
        self.ready.set(id, stream.is_ready());
        if let Some(event) = event {
            self.report(event);
        }
    }

    fn packet(&mut self, id: QueueId, bytes: &[u8]) -> Result<Done, Failed> {
        match Packet::decode(bytes).map_err(|error| Failed::Stop(StopReason::Malformed(error)))? {
            Packet::Nop(_) => Ok(Done::Next),
            Packet::MsgLong(packet) => self.msg_long(packet),
            Packet::MsgShort(packet) => self.msg_short(id, packet),
            Packet::Fence(packet) => self.fence(id, packet),
            Packet::LinDma(packet) => self.lin_dma(id, packet),
            Packet::CpDma(packet) => self.cp_dma(id, packet),
            Packet::Stop(_) => Err(Failed::Stop(StopReason::Asked)),
            // Nothing arbitrates between streams here, as on a queue manager whose arbiter is off.
            Packet::ArbPoint(_) => Ok(Done::Next),
            other => Err(Unsupported::Packet(other.opcode()).into()),
        }
    }

    fn msg_long(&mut self, packet: MsgLong) -> Result<Done, Failed> {
        let ctl = packet.ctl();
        if ctl.predicate() != 0 {
            return Err(Unsupported::Predicate.into());
        }
        if ctl.op() != 0 {
            return Err(Unsupported::TimeStamp.into());
        }
        self.message(packet.address(), packet.value())
    }

    fn msg_short(&mut self, id: QueueId, packet: MsgShort) -> Result<Done, Failed> {
        let ctl = packet.ctl();
        if ctl.op() != 0 {
            return Err(Unsupported::TimeStamp.into());
        }
        if ctl.dw() {
            return Err(Unsupported::MessageWidth.into());
        }
        let stream = self.streams.get(id.0 as usize);
        let base = stream
            .map(|stream| match stream.lower {
                // Bases of its own too, which are as the driver set them: no write to them is modelled.
                Some(_) => &BASES,
                None => &stream.bases,
            })
            .and_then(|bases| bases.get(usize::from(ctl.base())))
            .copied()
            .unwrap_or(0);
        let address = step(DeviceVa(base), u64::from(ctl.offset()), Access::Write)?;
        self.message(address, packet.value())
    }

    fn message(&mut self, address: DeviceVa, value: u32) -> Result<Done, Failed> {
        self.write_word(address, value)
            .map(|()| Done::Next)
            .map_err(|error| match error {
                WriteError::Fault(fault) => fault.into(),
                WriteError::UnknownRegister => Failed::Stop(StopReason::UnknownRegister(address)),
                WriteError::UnknownVector => Failed::Stop(StopReason::UnknownVector(value)),
                WriteError::Unsupported(what) => what.into(),
            })
    }

    fn is_lower(&self, id: QueueId) -> bool {
        self.streams
            .get(id.0 as usize)
            .is_some_and(|stream| stream.lower.is_some())
    }

    fn cp_dma(&self, id: QueueId, packet: CpDma) -> Result<Done, Failed> {
        if packet.ctl().predicate() != 0 || packet.ctl().upper_cp() {
            return Err(Unsupported::Predicate.into());
        }
        let head = self
            .streams
            .get(id.0 as usize)
            .and_then(|stream| stream.queue.front());
        match head {
            // The lower processor hands nothing down.
            _ if self.is_lower(id) => Err(Unsupported::LowerProcessor.into()),
            Some(head) if packet.size() > 0 => Ok(Done::Lower(Cb {
                va: packet.source(),
                len: packet.size(),
                tag: head.tag,
            })),
            _ => Ok(Done::Next),
        }
    }

    fn fence(&mut self, id: QueueId, packet: Fence) -> Result<Done, Failed> {
        if packet.ctl().predicate() != 0 {
            return Err(Unsupported::Predicate.into());
        }
        // The lower processor has fences of its own.
        if self.is_lower(id) {
            return Err(Unsupported::LowerProcessor.into());
        }
        let cfg = packet.cfg();
        let stream = self.streams.get_mut(id.0 as usize);
        let counter = stream.and_then(|stream| stream.fences.get_mut(usize::from(cfg.id())));
        Ok(match counter {
            Some(counter) if *counter >= u16::from(cfg.target()) => {
                *counter = counter.saturating_sub(u16::from(cfg.decrement()));
                Done::Next
            }
            _ => Done::Wait {
                id: cfg.id(),
                target: cfg.target(),
            },
        })
    }

    fn lin_dma(&mut self, id: QueueId, packet: LinDma) -> Result<Done, Failed> {
        let (ctl, size) = (packet.ctl(), u64::from(packet.size()));
        if !self
            .streams
            .get(id.0 as usize)
            .is_some_and(|stream| stream.has_dma)
        {
            return Err(Unsupported::NoDmaEngine.into());
        }
        if ctl.endian() != 0 || ctl.bf16() || ctl.fp16() || ctl.add_offset_0() || ctl.context_id_inc() {
            return Err(Unsupported::DmaConversion.into());
        }
        self.counters.lin_dma += 1;
        match packet.source() {
            Source::Copy(from) => dma::copy(&self.bus, &mut self.counters, packet.destination(), from, size)?,
            Source::Set(pattern) => {
                dma::fill(&self.bus, &mut self.counters, packet.destination(), pattern, size)?;
            }
        }
        if !ctl.wrcomp() {
            return Ok(Done::Next);
        }
        let engine = self.streams.get((id.0 - id.0 % queue::STREAMS) as usize);
        let (address, value) = engine.map_or((0, 0), |stream| stream.completion);
        self.message(DeviceVa(address), value)
    }

    /// Writes a word wherever an engine's address leads.
    pub(crate) fn write_word(&mut self, address: DeviceVa, value: u32) -> Result<(), WriteError> {
        match self.bus.forward(address, 4) {
            Some(Place::Register(register)) => self.write_register(register, value),
            Some(Place::Doorbell) => {
                let vector = u16::try_from(value).ok().filter(|&vector| vector < INTERRUPTS);
                self.report(Event::Interrupt {
                    vector: vector.ok_or(WriteError::UnknownVector)?,
                });
                Ok(())
            }
            _ => self.bus.store(address, value).map_err(WriteError::Fault),
        }
    }

    /// Writes a register of the configuration space.
    pub(crate) fn write_register(&mut self, register: u32, value: u32) -> Result<(), WriteError> {
        let written = match self
            .registers
            .block(register)
            .ok_or(WriteError::UnknownRegister)?
        {
            Block::Objs { dcore, offset } => self.sm.write(dcore, offset, value),
            Block::Glbl { dcore, offset } => self.sm.write_global(dcore, offset, value),
            Block::Fence { queue, fence, add } => {
                self.write_fence(queue, fence, add, value);
                Some(Ok(()))
            }
            Block::MessageBase { queue, base, high } => {
                let stream = self.streams.get_mut(queue.0 as usize);
                stream
                    .and_then(|stream| stream.bases.get_mut(base as usize))
                    .map(|base| {
                        *base = halves(*base, value, high);
                        Ok(())
                    })
            }
            Block::Dma { queue, offset } => self.streams.get_mut(queue.0 as usize).map(|stream| {
                let (address, data) = &mut stream.completion;
                match offset {
                    qman::WR_COMP_WDATA => *data = value,
                    _ => *address = halves(*address, value, offset == qman::WR_COMP_ADDR_HI),
                }
                Ok(())
            }),
        };
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(what)) => Err(WriteError::Unsupported(what)),
            None => Err(WriteError::UnknownRegister),
        }
    }

    pub(crate) fn read_register(&self, register: u32) -> Option<u32> {
        let half = |value: u64, high: bool| if high { (value >> 32) as u32 } else { value as u32 };
        let stream = |queue: QueueId| self.streams.get(queue.0 as usize);
        match self.registers.block(register)? {
            Block::Objs { dcore, offset } => self.sm.read(dcore, offset),
            Block::Glbl { dcore, offset } => self.sm.read_global(dcore, offset),
            Block::Fence { queue, fence, .. } => {
                stream(queue)?.fences.get(fence as usize).map(|&f| u32::from(f))
            }
            Block::MessageBase { queue, base, high } => stream(queue)?
                .bases
                .get(base as usize)
                .map(|&base| half(base, high)),
            Block::Dma { queue, offset } => stream(queue).map(|stream| match offset {
                qman::WR_COMP_WDATA => stream.completion.1,
                _ => half(stream.completion.0, offset == qman::WR_COMP_ADDR_HI),
            }),
        }
    }

    fn write_fence(&mut self, queue: QueueId, fence: u32, add: bool, value: u32) {
        let Some(stream) = self.streams.get_mut(queue.0 as usize) else {
            return;
        };
        let Some(counter) = stream.fences.get_mut(fence as usize) else {
            return;
        };
        let value = if add {
            u32::from(*counter) + (value & qman::FENCE_INC_MASK)
        } else {
            value
        };
        *counter = value.min(qman::FENCE_MAX) as u16;
        // The stream looks at its FENCE again, takes its share off the counter, and goes on.
        if let Held::Fence { id, target } = stream.held {
            if u32::from(id) == fence && *counter >= u16::from(target) {
                stream.held = Held::No;
                self.ready.set(queue, stream.is_ready());
            }
        }
    }

    /// Carries out monitors that fired, each for one of the budget.
    pub(crate) fn settle(&mut self, left: &mut u64) {
        while *left > 0 {
            let Some(fired) = self.sm.take_fired() else { return };
            *left -= 1;
            self.counters.monitors += 1;
            let mut write = |address, value| {
                let event = match self.write_word(address, value) {
                    Ok(()) => return true,
                    Err(WriteError::Unsupported(what)) => Event::Unsupported { address, value, what },
                    Err(error) => {
                        let cause = match error {
                            WriteError::Fault(fault) => fault.cause,
                            WriteError::UnknownVector => FaultCause::UnknownVector,
                            _ => FaultCause::UnknownRegister,
                        };
                        Event::MonitorFault {
                            dcore: fired.dcore,
                            monitor: fired.monitor,
                            address,
                            cause,
                        }
                    }
                };
                self.report(event);
                false
            };
            match fired.action {
                Action::Writes(count, writes) => {
                    for (address, value) in writes.into_iter().take(usize::from(count)) {
                        write(address, value);
                    }
                }
                Action::Cq {
                    entry: (address, value),
                    message,
                } => {
                    if write(address, value) {
                        if let Some((address, value)) = message {
                            write(address, value);
                        }
                    }
                }
            }
            self.sm.carried_out(&fired);
        }
    }
}

// The next packet's bytes: how many were put into `bytes`; 0 at the end of an empty command buffer. An error comes with the bytes that
// are there to be shown.
fn fetch(
    stream: &mut Stream,
    bus: &Bus,
    cb: &Cb,
    bytes: &mut [u8; MAX_FIXED],
) -> Result<usize, (usize, Failed)> {
    let left = u64::from(cb.len).saturating_sub(stream.offset);
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    if left == 0 {
        return Ok(0);
    }
    let shown = left.min(packet::HEADER);
    stream
        .peek(bus, cb, shown, bytes)
        .map_err(|fault| (0, Failed::from(fault)))?;
    let size = packet::size(bytes.get(..shown).unwrap_or_default());
    let malformed = |error| Failed::Stop(StopReason::Malformed(error));
    let needed = size.map_err(|error| (shown, malformed(error)))?;
    if needed > left {
        return Err((
            shown,
            malformed(DecodeError::Truncated {
                needed,
                available: left,
            }),
        ));
    }
    if needed > MAX_FIXED {
        let ctl = [4, 5, 6, 7].map(|at| bytes.get(at).copied().unwrap_or(0));
        let opcode = packet::Opcode::of(u32::from_le_bytes(ctl));
        return Err((shown, Unsupported::Packet(opcode).into()));
    }
    stream
        .peek(bus, cb, needed, bytes)
        .map_err(|fault| (shown, Failed::from(fault)))?;
    Ok(needed)
}

fn halves(whole: u64, value: u32, high: bool) -> u64 {
    if high {
        whole & 0xffff_ffff | u64::from(value) << 32
    } else {
        whole & !0xffff_ffff | u64::from(value)
    }
}
