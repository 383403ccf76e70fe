//! [`ChipFaults`]: fault rules for the chip's events, and the events that rules hold back.
//!
//! A chip without rules has no such state: each hook is one check of an `Option`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use gaudi_seam::engine::ChipError;
use gaudi_seam::fault::{ChipEvent, ChipRules, EventFields, Hit, Verdict};
use gaudi_spec::gaudi2::packet::Opcode;
use gaudi_spec::gaudi2::sync::{SOB_OBJ, SOBS};
use gaudi_spec::{DeviceVa, QueueId};

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Access, Event, FaultCause};
use crate::gaudi2::registers::Block;
use crate::gaudi2::space::register_at;
use crate::gaudi2::stream::{Cp, Processors};

/// The most events that are held back, and reports that are not taken.
const MOST: usize = 4096;

/// The rules that are armed, and what they hold back.
#[derive(Debug, Default)]
pub(crate) struct ChipFaults {
    attached: Vec<Arc<ChipRules>>,
    /// The queue of the transfer in progress.
    queue: u32,
    /// Processors whose packet was counted, and is executed again.
    repeated: Processors,
    /// Errors that rules made the chip report.
    made: VecDeque<Event>,
    held: VecDeque<Held>,
}

/// An event that is late.
#[derive(Debug)]
struct Held {
    event: Event,
    /// Further events of its kind before it.
    after: u64,
}

/// A fault that was decided.
#[derive(Debug)]
pub(crate) struct Struck {
    rules: Arc<ChipRules>,
    hit: Hit,
}

impl Struck {
    /// Counts that the fault happened.
    fn happened(&self) {
        self.rules.happened(self.hit);
    }

    fn verdict(&self) -> Verdict {
        self.hit.rule.verdict
    }
}

/// The fault of a chunk that a DMA engine moves.
#[derive(Debug)]
pub(crate) struct ChunkFault {
    struck: Struck,
    to: DeviceVa,
    /// The bytes before the move.
    before: Vec<u8>,
}

impl ChipFaults {
    pub(crate) fn attach(&mut self, rules: &Arc<ChipRules>) {
        self.attached.retain(|rules| rules.is_open());
        self.attached.push(Arc::clone(rules));
    }

    /// Discards what is held back, as a reset of the chip does.
    pub(crate) fn reset(&mut self) {
        self.repeated = Processors::default();
        self.made.clear();
        self.held.clear();
        self.attached.iter().for_each(|rules| rules.record_reset());
    }

    /// Counts an event. Returns its fault, unless that is an error that the chip reports: the event
    /// happens all the same then.
    pub(crate) fn meet(&mut self, event: ChipEvent, fields: EventFields) -> Option<Struck> {
        let mut met = self.attached.iter().filter_map(|rules| {
            let hit = rules.meet(event, fields)?;
            let rules = Arc::clone(rules);
            Some(Struck { rules, hit })
        });
        let struck = met.next()?;
        let error = match struck.verdict() {
            Verdict::Ecc => ChipError::CorrectedEcc,
            Verdict::FatalEcc => ChipError::Ecc,
            Verdict::Heartbeat => ChipError::Heartbeat,
            _ => return Some(struck),
        };
        if self.made.len() < MOST {
            self.made.push_back(Event::Injected(error));
            struck.happened();
        }
        None
    }

    /// Counts an event towards those that wait for its kind. Returns those that follow it.
    fn passed(&mut self, event: &Event) -> Vec<Event> {
        let mut due = Vec::new();
        self.held.retain_mut(|held| {
            if std::mem::discriminant(&held.event) != std::mem::discriminant(event) {
                return true;
            }
            held.after = held.after.saturating_sub(1);
            if held.after == 0 {
                due.push(held.event);
            }
            held.after > 0
        });
        due
    }
}

/// Counts an event of a bus's chip, if it has rules.
#[cold]
fn meet(faults: &RefCell<ChipFaults>, event: ChipEvent, fields: EventFields) -> Option<Struck> {
    faults.borrow_mut().meet(event, fields)
}

impl Bus {
    /// Whether a rule makes the translation of an address fail.
    #[cold]
    pub(crate) fn walk_fails(&self, va: DeviceVa) -> bool {
        let Some(faults) = &self.faults else { return false };
        let is_translated = match &self.pci {
            Some(space) => space.translates(),
            None => true,
        };
        let sram = self.sram.offset(gaudi_spec::DevicePa(va.get()), 1);
        if !is_translated || register_at(va).is_some() || sram.is_some() {
            return false;
        }
        let fields = EventFields {
            address: va.get(),
            size: 1,
            ..EventFields::default()
        };
        let struck = meet(faults, ChipEvent::PageWalk, fields);
        if let Some(struck) = &struck {
            struck.happened();
        }
        struck.is_some()
    }

    /// Counts a chunk that a DMA engine is about to write. Returns its fault; a page fault is an
    /// error.
    #[inline]
    pub(crate) fn chunk(&self, to: DeviceVa, len: u64) -> Result<Option<ChunkFault>, Fault> {
        match &self.faults {
            None => Ok(None),
            Some(faults) => self.chunk_fault(faults, to, len),
        }
    }

    #[cold]
    fn chunk_fault(
        &self,
        faults: &RefCell<ChipFaults>,
        to: DeviceVa,
        len: u64,
    ) -> Result<Option<ChunkFault>, Fault> {
        let fields = EventFields {
            queue: faults.borrow().queue.into(),
            address: to.get(),
            size: len,
            ..EventFields::default()
        };
        let Some(struck) = meet(faults, ChipEvent::Dma, fields) else {
            return Ok(None);
        };
        if struck.verdict() == Verdict::PageFault {
            struck.happened();
            return Err(Fault {
                address: to,
                access: Access::Write,
                cause: FaultCause::NotMapped,
            });
        }
        let mut before = vec![0; usize::try_from(len).unwrap_or_default()];
        // What cannot be read is not written either: the move reports that.
        let (count, _) = self.read(to, &mut before, Access::Write);
        before.truncate(count);
        Ok(Some(ChunkFault { struck, to, before }))
    }

    /// Changes the bytes of a chunk that was moved as its rule says.
    pub(crate) fn corrupt(&self, chunk: Option<ChunkFault>) -> Result<(), Fault> {
        let Some(ChunkFault { struck, to, before }) = chunk else {
            return Ok(());
        };
        let first = match struck.verdict() {
            Verdict::Flip(bit) => bit / 8,
            Verdict::Torn(bytes) => bytes,
            _ => 0,
        };
        let at = usize::try_from(first).unwrap_or(usize::MAX);
        // The chunk ends before the place.
        let Some(rest) = before.get(at..).filter(|rest| !rest.is_empty()) else {
            return Ok(());
        };
        let from = step(to, first, Access::Write)?;
        match struck.verdict() {
            Verdict::Flip(bit) => {
                let mut byte = [0];
                if let Some(fault) = self.read(from, &mut byte, Access::Write).1 {
                    return Err(fault);
                }
                self.write(from, &[byte[0] ^ 1 << (bit % 8)])?;
            }
            _ => self.write(from, rest)?,
        }
        struck.happened();
        Ok(())
    }
}

/// What a rule makes of a packet.
pub(crate) enum PacketFault {
    Lost,
    Hung,
}

impl Chip {
    /// Arms rules for the events of this chip.
    pub fn attach_faults(&mut self, rules: &Arc<ChipRules>) {
        self.bus.faults.get_or_insert_default().get_mut().attach(rules);
    }

    fn faults(&mut self) -> Option<&mut ChipFaults> {
        self.bus.faults.as_mut().map(|faults| faults.get_mut())
    }

    /// Counts a packet that is about to be executed.
    #[cold]
    pub(crate) fn packet_fault(&mut self, cp: Cp, queue: QueueId, opcode: Opcode) -> Option<PacketFault> {
        let faults = self.faults()?;
        if faults.repeated.get(cp) {
            faults.repeated.set(cp, false);
            return None;
        }
        let fields = EventFields {
            queue: queue.0.into(),
            id: opcode.number().into(),
            ..EventFields::default()
        };
        let struck = faults.meet(ChipEvent::Packet, fields)?;
        struck.happened();
        Some(match struck.verdict() {
            Verdict::Hang => PacketFault::Hung,
            _ => PacketFault::Lost,
        })
    }

    /// Records that a packet is executed again: it is one event.
    pub(crate) fn packet_repeats(&mut self, cp: Cp) {
        if let Some(faults) = self.faults() {
            faults.repeated.set(cp, true);
        }
    }

    /// Records the queue of the transfer that follows.
    #[inline]
    pub(crate) fn transfers_of(&mut self, queue: QueueId) {
        if let Some(faults) = self.faults() {
            faults.queue = queue.0;
        }
    }

    /// Counts a write to a register by a packet or an engine, if it is a sync object. Returns how
    /// often it happens.
    #[cold]
    pub(crate) fn sob_writes(&mut self, register: u32) -> u32 {
        let Some(Block::Objs { dcore, offset }) = self.registers.block(register) else {
            return 1;
        };
        let sob = offset.wrapping_sub(SOB_OBJ) / 4;
        let Some(faults) = self.faults().filter(|_| sob < SOBS) else {
            return 1;
        };
        let fields = EventFields {
            id: u64::from(dcore * SOBS + sob),
            ..EventFields::default()
        };
        let Some(struck) = faults.meet(ChipEvent::Sob, fields) else {
            return 1;
        };
        struck.happened();
        match struck.verdict() {
            Verdict::Duplicate => 2,
            _ => 0,
        }
    }

    /// Counts a packet to the firmware. Returns whether the firmware hangs at it.
    #[cold]
    pub(crate) fn firmware_hangs(&mut self, operation: u16) -> bool {
        let Some(faults) = self.faults() else { return false };
        let fields = EventFields {
            id: operation.into(),
            ..EventFields::default()
        };
        let struck = faults.meet(ChipEvent::Firmware, fields);
        if let Some(struck) = &struck {
            struck.happened();
        }
        struck.is_some()
    }

    /// Counts an interrupt or a completion, and reports it by its faults.
    #[cold]
    pub(crate) fn report_by_rules(&mut self, event: Event) {
        let (what, fields) = match event {
            Event::Interrupt { vector } => (
                ChipEvent::Interrupt,
                EventFields {
                    id: vector.into(),
                    ..EventFields::default()
                },
            ),
            Event::CbDone { queue, tag } => (
                ChipEvent::Completion,
                EventFields {
                    queue: queue.0.into(),
                    id: tag,
                    ..EventFields::default()
                },
            ),
            _ => return self.report(event),
        };
        let Some(faults) = self.faults() else {
            return self.report(event);
        };
        let struck = faults.meet(what, fields);
        let has_room = faults.held.len() < MOST;
        let (happens, late) = match struck.as_ref().map(Struck::verdict) {
            Some(Verdict::Lose) => (false, None),
            Some(Verdict::Reorder) if has_room => (false, Some((event, 1))),
            Some(Verdict::Late(after)) if has_room => (false, Some((event, after))),
            Some(Verdict::Duplicate) if has_room => match event {
                // A second completion is wrong, and the driver drops it.
                Event::CbDone { queue, tag } => (true, Some((Event::DoneTwice { queue, tag }, 0))),
                // The vector is pending until the driver takes it: the second time follows then.
                event => (true, Some((event, u64::MAX))),
            },
            _ => (true, None),
        };
        if let Some(struck) = struck.filter(|_| !happens || late.is_some()) {
            struck.happened();
        }
        // Those that waited for this one. It does not wait for itself.
        let due = if happens {
            faults.passed(&event)
        } else {
            Vec::new()
        };
        if let Some((event, after @ 1..)) = late {
            faults.held.push_back(Held { event, after });
        }
        if happens {
            self.report(event);
        }
        if let Some((event, 0)) = late {
            self.report(event);
        }
        for event in due {
            self.report(event);
        }
    }

    /// Takes an event that rules made, or one that they hold back if the chip has nothing else to
    /// do.
    #[cold]
    pub(crate) fn next_by_rules(&mut self, has_others: bool) -> Option<Event> {
        let is_idle = self.ready.at_or_after(0).is_none() && !self.sm.has_fired();
        let faults = self.faults()?;
        if let Some(made) = faults.made.pop_front() {
            return Some(made);
        }
        if !has_others && is_idle {
            let held = faults.held.pop_front()?;
            self.report(held.event);
        }
        None
    }
}
