//! [`ChipFaults`]: fault rules for the chip's events, and the events that rules hold back.
//!
//! A chip without rules has no such state: each hook is one check of an `Option`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gaudi_seam::engine::ChipError;
use gaudi_seam::fault::{ChipEvent, ChipRules, EventFields, Hit, Verdict};

use crate::gaudi2::event::Event;

/// The most events that are held back, and reports that are not taken.
pub(super) const MOST: usize = 4096;

/// The armed rules, and the events that they hold back.
#[derive(Debug, Default)]
pub(crate) struct ChipFaults {
    pub(super) attached: Vec<Arc<ChipRules>>,
    /// The queue of the transfer in progress.
    pub(super) queue: u32,
    /// A hook accesses memory, which is no work of the chip: its walks are not counted.
    pub(super) in_hook: bool,
    /// Processors whose packet was counted, and is executed again.
    pub(super) repeated: BTreeSet<u32>,
    /// Errors that rules made the chip report.
    pub(super) made: VecDeque<Event>,
    pub(super) held: VecDeque<Held>,
}

/// An event that is late.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) event: Event,
    /// Further events of its kind before it.
    pub(super) after: u64,
}

/// A fault that was decided.
#[derive(Debug)]
pub(crate) struct Struck {
    rules: Arc<ChipRules>,
    hit: Hit,
}

impl Struck {
    /// Counts that the fault happened.
    pub(super) fn happened(&self) {
        self.rules.happened(self.hit);
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.hit.rule.verdict
    }
}

impl ChipFaults {
    pub(crate) fn attach(&mut self, rules: &Arc<ChipRules>) {
        self.attached.retain(|rules| rules.is_open());
        self.attached.push(Arc::clone(rules));
    }

    /// Discards the events that are held back, as a reset of the chip does.
    pub(crate) fn reset(&mut self) {
        self.repeated.clear();
        self.made.clear();
        self.held.clear();
        self.attached.iter().for_each(|rules| rules.record_reset());
    }

    /// Counts an event. Returns its fault, unless the fault is an error that the chip reports: such
    /// an event still happens.
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
    pub(super) fn passed(&mut self, event: &Event) -> Vec<Event> {
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

/// The fault of a packet.
pub(crate) enum PacketFault {
    Lost,
    Hung,
}
