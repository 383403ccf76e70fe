//! [`ChipRules`]: the rules for events of a chip, which a fault layer and the chip share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::armed::{ArmedRules, Hit, RuleCount};
use super::filter::EventFields;
use super::plan::{Plan, Rule};
use super::target::{ChipEvent, Target};

/// The rules for events of a chip. The chip counts its events and injects the faults. The owner of
/// the rules reads the counts, also after the device is closed.
#[derive(Debug)]
pub struct ChipRules {
    device: u32,
    /// Whether a rule is armed. Otherwise an event costs one relaxed load.
    is_armed: AtomicBool,
    is_open: AtomicBool,
    was_reset: AtomicBool,
    rules: Mutex<ArmedRules>,
    /// Logs the first fault of a rule.
    log: fn(&Rule),
}

impl ChipRules {
    /// Arms the rules of a plan for events of the chip of device number `device`. `log` is called
    /// with each rule that injects its first fault.
    pub fn new(device: u32, plan: &Plan, log: fn(&Rule)) -> Self {
        let rules = ArmedRules::new(&plan.of(Target::is_chip));
        Self {
            device,
            is_armed: AtomicBool::new(!rules.is_empty()),
            is_open: AtomicBool::new(true),
            was_reset: AtomicBool::new(false),
            rules: Mutex::new(rules),
            log,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ArmedRules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms a rule, and returns its number.
    pub fn arm(&self, rule: Rule) -> u64 {
        let id = self.lock().arm(rule);
        self.is_armed.store(true, Ordering::Relaxed);
        id
    }

    /// Disarms a rule.
    pub fn disarm(&self, id: u64) {
        let mut rules = self.lock();
        rules.disarm(id);
        self.is_armed.store(!rules.is_empty(), Ordering::Relaxed);
    }

    /// Whether a rule is armed.
    pub fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    /// The armed rules, in order.
    pub fn rules(&self) -> Vec<Rule> {
        self.lock().rules().copied().collect()
    }

    /// Returns the counts of each rule, in order.
    pub fn counts(&self) -> Vec<RuleCount> {
        self.lock().counts()
    }

    /// Returns the counts of a rule. `None` if it is disarmed.
    pub fn count_of(&self, id: u64) -> Option<RuleCount> {
        self.lock().count_of(id)
    }

    /// Ends the injection when the layer that armed the rules closes. The counts remain.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Whether the layer that armed the rules is open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Counts an event of the chip. Returns the fault of the first rule that it gets; the chip
    /// counts it with [`happened`](Self::happened).
    pub fn meet(&self, event: ChipEvent, fields: EventFields) -> Option<Hit> {
        if !self.is_armed() || !self.is_open() {
            return None;
        }
        let device = self.device;
        let fields = EventFields { device, ..fields };
        let was_reset = self.was_reset.load(Ordering::Relaxed);
        // The grammar allows no other state in a rule for a chip.
        let is_state = |rule: &Rule| rule.schedule.state.is_none() || was_reset;
        let matches = |rule: &Rule| is_state(rule) && rule.matches_event(Target::Chip(event), &fields);
        // No verdict on a chip is a delay.
        self.lock().meet(matches, |_| true, |_, _| ()).decided
    }

    /// Counts that a rule injected its fault.
    pub fn happened(&self, hit: Hit) {
        let first = self.lock().fire(hit);
        if first {
            (self.log)(&hit.rule);
        }
    }

    /// Records a reset of the chip, for rules with `after=reset`.
    pub fn record_reset(&self) {
        self.was_reset.store(true, Ordering::Relaxed);
    }
}
