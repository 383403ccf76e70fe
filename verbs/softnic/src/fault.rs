//! [`NicFaults`]: the rules of a fault plan for the events of this NIC.

#![expect(unsafe_code, reason = "a rule reads one byte of claimed memory")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use gaudi_seam::fault::{
    ArmedRules, EventFields, Hit, Met, NicEvent, NicStatus, Plan, Rule, RuleCount, Schedule, Target, Verdict,
};
use gaudi_seam::{Errno, Error};
use gaudi_sys::{IgnorePoison, lock};
use gaudi_verbs::WcStatus;

use crate::clock::Clock;
use crate::cq::SoftCq;
use crate::error::defect;
use crate::region::Piece;
use crate::wire::{Header, Kind};

/// How long a reordered completion waits for a later one.
pub(crate) const REORDER_WAIT: Duration = Duration::from_millis(20);

/// The armed rules of a NIC. Without rules an event costs one relaxed load.
#[derive(Debug)]
pub(crate) struct Faults {
    nic: String,
    pub(crate) clock: Clock,
    is_armed: AtomicBool,
    rules: Mutex<ArmedRules>,
    timers: Mutex<Timers>,
    timer: Condvar,
}

/// The completion queues with late completions, and when the next of each is due.
#[derive(Debug, Default)]
struct Timers {
    due: Vec<(Instant, Weak<SoftCq>)>,
    closing: bool,
}

impl Faults {
    /// Arms the rules of a plan for events of a NIC.
    pub(crate) fn new(nic: &str, plan: &Plan, clock: Clock) -> Self {
        let rules = ArmedRules::new(&plan.of(Target::is_nic));
        Self {
            nic: nic.to_owned(),
            clock,
            is_armed: AtomicBool::new(!rules.is_empty()),
            rules: Mutex::new(rules),
            timers: Mutex::default(),
            timer: Condvar::new(),
        }
    }

    /// Whether a rule makes completions late, for which [`run_timers`](Self::run_timers) must run.
    pub(crate) fn has_late_completions(&self) -> bool {
        let is_late = |rule: &Rule| {
            rule.target == Target::Nic(NicEvent::Completion)
                && matches!(rule.verdict, Verdict::Delay(_) | Verdict::Reorder)
        };
        lock(&self.rules).rules().any(is_late)
    }

    /// Counts an event, and returns its faults. A decided fault is counted by
    /// [`happened`](Self::happened).
    #[inline]
    pub(crate) fn meet(&self, event: NicEvent, fields: &EventFields) -> Met {
        if !self.is_armed.load(Ordering::Relaxed) {
            return Met::default();
        }
        self.judge(event, fields)
    }

    #[cold]
    fn judge(&self, event: NicEvent, fields: &EventFields) -> Met {
        let is_late = |verdict| !matches!(verdict, Verdict::Delay(_));
        lock(&self.rules).meet(
            |rule| rule.matches_event(Target::Nic(event), fields),
            is_late,
            |hit, first| self.log(hit, first),
        )
    }

    /// Counts an event of a queue pair that has no other fields.
    pub(crate) fn meet_qp(&self, event: NicEvent, qpn: u32) -> Met {
        let fields = EventFields {
            queue: qpn.into(),
            ..EventFields::default()
        };
        self.meet(event, &fields)
    }

    /// Counts a frame. A frame with the GID is not a packet and is always sent.
    pub(crate) fn meet_packet(&self, header: &Header) -> Met {
        if header.kind == Kind::Hello {
            return Met::default();
        }
        let fields = EventFields {
            queue: header.src_qpn.into(),
            size: header.payload.into(),
            ..EventFields::default()
        };
        self.meet(NicEvent::Packet, &fields)
    }

    /// Records that a rule injected its fault.
    pub(crate) fn happened(&self, hit: Hit) {
        let first = lock(&self.rules).fire(hit);
        self.log(hit, first);
    }

    /// The first fault of a rule is logged as a warning, later ones at level `DEBUG`, as the fault
    /// layer does.
    fn log(&self, hit: Hit, first: bool) {
        let (nic, number, rule) = (&self.nic, hit.occurrence, hit.rule);
        if first {
            tracing::warn!(nic, number, "softnic (software): fault injected by rule {rule}");
        } else {
            tracing::debug!(nic, number, "softnic (software): fault injected by rule {rule}");
        }
    }

    /// The error of a call that a rule makes fail.
    pub(crate) fn error(&self, operation: &'static str, errno: Errno, hit: Hit) -> Error {
        self.happened(hit);
        Error::from_errno(operation, errno).because(format!("injected by the fault rule {}", hit.rule))
    }

    /// Releases the late completions of a queue at `due`.
    pub(crate) fn schedule(&self, due: Instant, cq: Weak<SoftCq>) {
        lock(&self.timers).due.push((due, cq));
        self.timer.notify_one();
    }

    /// Releases late completions until the NIC closes.
    pub(crate) fn run_timers(&self) {
        let mut timers = lock(&self.timers);
        while !timers.closing {
            let now = self.clock.now();
            let ready = take_due(&mut timers.due, now);
            if !ready.is_empty() {
                drop(timers);
                for cq in ready.iter().filter_map(Weak::upgrade) {
                    cq.release_due();
                }
                timers = lock(&self.timers);
                continue;
            }
            let next = timers.due.iter().map(|(due, _)| *due).min();
            timers = match next {
                Some(due) => {
                    let left = due.saturating_duration_since(now);
                    self.timer.wait_timeout(timers, left).ignore_poison().0
                }
                None => self.timer.wait(timers).ignore_poison(),
            };
        }
    }

    /// Releases the late completions that are due now. Returns when the next ones are.
    pub(crate) fn release_due(&self) -> Option<Instant> {
        let ready = take_due(&mut lock(&self.timers).due, self.clock.now());
        for cq in ready.iter().filter_map(Weak::upgrade) {
            cq.release_due();
        }
        lock(&self.timers).due.iter().map(|(due, _)| *due).min()
    }

    /// Ends [`run_timers`](Self::run_timers).
    pub(crate) fn close(&self) {
        lock(&self.timers).closing = true;
        self.timer.notify_one();
    }
}

/// Removes and returns the queues that are due.
fn take_due(due: &mut Vec<(Instant, Weak<SoftCq>)>, now: Instant) -> Vec<Weak<SoftCq>> {
    let mut ready = Vec::new();
    due.retain(|(at, cq)| {
        let waits = *at > now;
        if !waits {
            ready.push(Weak::clone(cq));
        }
        waits
    });
    ready
}

/// The status of a completion that a rule names.
pub(crate) fn status_of(status: NicStatus) -> WcStatus {
    match status {
        NicStatus::LocalProtection => WcStatus::LOC_PROT_ERR,
        NicStatus::RemoteInvalidRequest => WcStatus::REM_INV_REQ_ERR,
        NicStatus::RemoteAccess => WcStatus::REM_ACCESS_ERR,
        NicStatus::RemoteOperation => WcStatus::REM_OP_ERR,
        NicStatus::RetryExceeded => WcStatus::RETRY_EXC_ERR,
        NicStatus::RnrRetryExceeded => WcStatus::RNR_RETRY_EXC_ERR,
    }
}

/// Replaces the byte of a frame's payload that has bit `bit` by a copy in `byte` with that bit
/// inverted. Returns whether the payload has the bit.
pub(crate) fn flip(pieces: &mut Vec<Piece>, bit: u64, byte: &mut [u8; 1]) -> bool {
    let Ok(mut offset) = usize::try_from(bit / 8) else {
        return false;
    };
    for index in 0..pieces.len() {
        let Some(piece) = pieces.get(index).copied() else {
            break;
        };
        if offset >= piece.len {
            offset -= piece.len;
            continue;
        }
        let (head, tail) = piece.split(offset);
        // SAFETY: the piece is claimed, hence mapped and readable.
        let Some(right) = (unsafe { tail.first_byte() }) else {
            defect("the byte to flip lies outside of its piece");
            return false;
        };
        *byte = [right ^ 1 << (bit % 8)];
        let wrong = Piece::of_bytes(byte);
        pieces.splice(index..=index, [head, wrong, tail.split(1).1]);
        return true;
    }
    false
}

/// The fault rules of a [`SoftNic`](crate::SoftNic), for a test or a report in the same process.
/// It stays valid when the NIC closes.
#[derive(Debug, Clone)]
pub struct NicFaults(pub(crate) Arc<Faults>);

impl NicFaults {
    /// Returns the counts of each rule, in the plan's order.
    pub fn rules(&self) -> Vec<RuleCount> {
        lock(&self.0.rules).counts()
    }

    /// Returns the rules that have injected nothing. A test that expects a fault checks that this
    /// is empty.
    pub fn unfired(&self) -> Vec<Rule> {
        let counts = self.rules().into_iter();
        counts
            .filter(|count| count.fired == 0)
            .map(|count| count.rule)
            .collect()
    }

    /// Sets every count to 0, so that the plan starts again.
    pub fn rearm(&self) {
        lock(&self.0.rules).rearm();
    }
}

/// Returns a plan that loses, corrupts, duplicates, delays and reorders packets, `percent` of them
/// each, as a network may. Connections recover.
pub fn lossy_network(percent: u8, seed: u64) -> Plan {
    let verdicts = [
        Verdict::Lose,
        Verdict::Damage,
        Verdict::Duplicate,
        Verdict::Reorder,
        Verdict::Delay(Duration::from_micros(500)),
    ];
    let rule = |(index, verdict)| Rule {
        schedule: Schedule::ALWAYS.with_chance(percent, seed.wrapping_add(index)),
        ..Rule::new(Target::Nic(NicEvent::Packet), verdict)
    };
    Plan {
        rules: (0..).zip(verdicts).map(rule).collect(),
    }
}
