//! The chip's hooks for fault rules: packets, sync objects, interrupts, completions.

use std::sync::Arc;

use gaudi_seam::fault::{ChipEvent, ChipRules, EventFields, Verdict};
use gaudi_spec::QueueId;
use gaudi_spec::gaudi2::packet::Opcode;
use gaudi_spec::gaudi2::sync::{SOB_OBJ, SOBS};

use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::Event;
use crate::gaudi2::faults::{ChipFaults, Held, MOST, PacketFault, Struck};
use crate::gaudi2::registers::Block;
use crate::gaudi2::stream::Cp;

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
        if faults.repeated.remove(&cp.0) {
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
            faults.repeated.insert(cp.0);
        }
    }

    /// Records the queue of the transfer that follows.
    #[inline]
    pub(crate) fn transfers_of(&mut self, queue: QueueId) {
        if let Some(faults) = self.faults() {
            faults.queue = queue.0;
        }
    }

    /// Counts a write to a register by a packet or an engine, if the register is a sync object.
    /// Returns how often the write is performed.
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
                // The vector is pending until the driver takes it. The duplicate follows then.
                event => (true, Some((event, u64::MAX))),
            },
            _ => (true, None),
        };
        if let Some(struck) = struck.filter(|_| !happens || late.is_some()) {
            struck.happened();
        }
        // The events that waited for this one. This event is not held yet, so it does not count for
        // itself.
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

    /// Returns the next event that rules made. If the chip is idle, reports the oldest event that
    /// rules hold back.
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
