//! [`Record`]: the observations of the watchers in a run.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gaudi_seam::fault::Rule;
use gaudi_seam::{Errno, ErrorKind, Operation};
use gaudi_sys::lock;

use crate::invariant::{Invariant, Violation};

/// A refusal that the code under test received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) operation: Operation,
    pub(crate) kind: ErrorKind,
    pub(crate) errno: Option<Errno>,
}

impl Refusal {
    /// Whether queues retry it silently: after a signal, or after a submission to a full queue.
    pub(crate) fn is_retried(&self) -> bool {
        match self.operation {
            Operation::Submit => matches!(self.errno, Some(Errno::EAGAIN | Errno::EINTR)),
            Operation::WaitCs => self.errno == Some(Errno::EINTR),
            _ => false,
        }
    }
}

/// The state of the device in which a fault happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceState {
    /// Nothing is mapped and nothing runs.
    Idle,
    /// Memory is mapped.
    Mapped,
    /// The completion of a submission was not reported.
    Busy,
    /// A fault has reset the device.
    AfterReset,
}

impl DeviceState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Mapped, Self::Busy, Self::AfterReset];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Mapped => "mapped",
            Self::Busy => "busy",
            Self::AfterReset => "after-reset",
        }
    }
}

/// A fault that happened: the form of its verdict, the operation and the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Met {
    /// The form of the verdict ([`VerdictKind::form`](gaudi_seam::fault::VerdictKind::form)).
    pub verdict: &'static str,
    /// The operation.
    pub operation: Operation,
    /// The state before the operation.
    pub state: DeviceState,
}

impl Met {
    pub(crate) fn new(rule: Rule, operation: Operation, state: DeviceState) -> Self {
        Self {
            verdict: rule.verdict.kind().form,
            operation,
            state,
        }
    }
}

/// A mapping for the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) va: u64,
    /// The allocation; `None` for host memory.
    pub(crate) allocation: Option<u64>,
}

/// The observations of the watchers.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) violations: Vec<Violation>,
    /// The refusals during this operation of the code.
    pub(crate) refusals: Vec<Refusal>,
    /// The refusals that ended submissions: later polls and waits may return them again.
    pub(crate) ended: Vec<Refusal>,
    /// Allocations by handle, mappings and command buffers.
    pub(crate) allocations: Vec<u64>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) buffers: Vec<u64>,
    /// Refused releases, by operation and by what was to be released.
    pub(crate) refused: Vec<(Operation, u64)>,
    /// The queues of the open node's submissions, in the order of their sequence numbers.
    submissions: Vec<(u64, u32)>,
    /// Those of which the driver did not report the end.
    running: Vec<(u64, u32)>,
    /// Submissions that the code's calls made.
    pub(crate) accepted: u64,
    /// Submissions without a wait that proves their end.
    pub(crate) unproven: Vec<(u64, u32)>,
    /// A submission or a wait failed: engines may still use memory if a submission is unproven.
    pub(crate) work_failed: bool,
    /// A wait failed with an error that proves no end.
    pub(crate) end_uncertain: bool,
    /// An answer reported the end of work that still runs.
    pub(crate) false_end: bool,
    pub(crate) was_reset: bool,
    /// Operations into which faults were injected, and the state, in order.
    pub(crate) met: Vec<(Operation, DeviceState)>,
    /// Whether violations are ignored, during the run's own calls.
    pub(crate) is_paused: bool,
}

impl Record {
    pub(crate) fn violated(&mut self, invariant: Invariant, what: impl Into<String>) {
        if !self.is_paused {
            let what = what.into();
            self.violations.push(Violation { invariant, what });
        }
    }

    /// Makes the record as new, and keeps its storage.
    pub(crate) fn restart(&mut self) {
        // Every field, so that a new one is not forgotten.
        let Self {
            violations,
            refusals,
            ended,
            allocations,
            mappings,
            buffers,
            refused,
            submissions,
            running,
            accepted,
            unproven,
            work_failed,
            end_uncertain,
            false_end,
            was_reset,
            met,
            is_paused,
        } = self;
        violations.clear();
        refusals.clear();
        ended.clear();
        *accepted = 0;
        allocations.clear();
        mappings.clear();
        buffers.clear();
        refused.clear();
        submissions.clear();
        running.clear();
        unproven.clear();
        (*work_failed, *end_uncertain, *false_end) = (false, false, false);
        (*was_reset, *is_paused) = (false, false);
        met.clear();
    }

    /// Records that the driver accepted a submission.
    pub(crate) fn submitted(&mut self, seq: u64, queue: u32) {
        self.submissions.push((seq, queue));
        self.running.push((seq, queue));
    }

    /// The queue of a submission of the open node.
    fn queue(&self, seq: u64) -> Option<u32> {
        let at = self
            .submissions
            .binary_search_by_key(&seq, |&(seq, _)| seq)
            .ok()?;
        Some(self.submissions[at].1)
    }

    /// Whether the driver has not reported the end of a submission of the open node.
    pub(crate) fn is_running(&self, seq: u64) -> bool {
        self.running.iter().any(|&(running, _)| running == seq)
    }

    /// Records an answer of the driver to a wait.
    pub(crate) fn waited(&mut self, seq: u64, is_done: bool) {
        let Some(queue) = self.queue(seq) else { return };
        if is_done {
            // A queue executes in order.
            self.running.retain(|&(other, of)| other > seq || of != queue);
        } else if !self.is_running(seq) {
            self.violated(
                Invariant::EndsOnce,
                format!("the driver reports submission {seq} as running after its end"),
            );
        }
    }

    fn state(&self) -> DeviceState {
        if self.was_reset {
            DeviceState::AfterReset
        } else if !self.running.is_empty() {
            DeviceState::Busy
        } else if !self.mappings.is_empty() {
            DeviceState::Mapped
        } else {
            DeviceState::Idle
        }
    }

    /// Whether a submission may still run although its wait failed.
    pub(crate) fn work_may_run(&self) -> bool {
        self.end_uncertain || (self.work_failed && !self.unproven.is_empty())
    }

    /// Reports every object that was neither released nor refused its release. The node closes.
    pub(crate) fn close(&mut self) {
        let tried = |operation, what| self.refused.contains(&(operation, what));
        let may_run = self.work_may_run();
        let mut left = Vec::new();
        for &handle in &self.allocations {
            // A mapped allocation cannot be freed; its mapping is checked below.
            let is_mapped = |mapping: &Mapping| mapping.allocation == Some(handle);
            if !tried(Operation::MemFree, handle) && !self.mappings.iter().any(is_mapped) {
                left.push(format!("allocation {handle}"));
            }
        }
        for &Mapping { va, allocation } in &self.mappings {
            let is_host = allocation.is_none();
            if !tried(Operation::MemUnmap, va) && !may_run {
                let what = if is_host { "host" } else { "device" };
                left.push(format!("the mapping of {what} memory at {va:#x}"));
            }
        }
        for &handle in &self.buffers {
            if !tried(Operation::CbDestroy, handle) && !may_run {
                left.push(format!("command buffer {handle:#x}"));
            }
        }
        for what in left {
            self.violated(
                Invariant::Leaks,
                format!("{what} was not released before the close, and no release of it was refused"),
            );
        }
        self.allocations.clear();
        self.mappings.clear();
        self.buffers.clear();
        self.refused.clear();
        self.submissions.clear();
        self.running.clear();
        self.unproven.clear();
    }
}

/// A shared reference to the record of a run.
///
/// What every call needs is read without the lock: most calls change nothing else.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedRecord(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    record: Mutex<Record>,
    /// Of the record, as it was when it was unlocked last: the state's place in
    /// [`DeviceState::ALL`], and the bits below.
    seen: AtomicU8,
    /// Calls of the run, and those before this operation of the code.
    calls: AtomicU64,
    begun: AtomicU64,
    /// Calls that reached the driver.
    driven: AtomicU64,
}

const STATE: u8 = 0b11;
const HAS_FAILED: u8 = 1 << 2;
const IS_REFUSED: u8 = 1 << 3;
const HAS_FALSE_END: u8 = 1 << 4;

impl SharedRecord {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked {
            record: lock(&self.0.record),
            seen: &self.0.seen,
        }
    }

    /// Makes the record as new, and keeps its storage.
    pub(crate) fn restart(&self) {
        self.lock().restart();
        for count in [&self.0.calls, &self.0.begun, &self.0.driven] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Begins an operation of the code.
    pub(crate) fn begin(&self) {
        self.0.begun.store(self.calls(), Ordering::Relaxed);
        if self.is_refused() {
            self.lock().refusals.clear();
        }
    }

    /// Counts a call. Returns its number among those of this operation of the code.
    pub(crate) fn call(&self) -> u64 {
        let number = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        number - self.0.begun.load(Ordering::Relaxed)
    }

    /// Calls of the run.
    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Counts a call that reached the driver.
    pub(crate) fn drive(&self) {
        self.0.driven.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that reached the driver.
    pub(crate) fn driven(&self) -> u64 {
        self.0.driven.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> DeviceState {
        DeviceState::ALL[usize::from(self.seen() & STATE)]
    }

    /// Whether an invariant is broken.
    pub(crate) fn has_failed(&self) -> bool {
        self.seen() & HAS_FAILED != 0
    }

    /// Whether a call of this operation of the code was refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.seen() & IS_REFUSED != 0
    }

    /// Whether an answer reported the end of work that still runs.
    pub(crate) fn has_false_end(&self) -> bool {
        self.seen() & HAS_FALSE_END != 0
    }

    fn seen(&self) -> u8 {
        self.0.seen.load(Ordering::Relaxed)
    }
}

/// The locked record.
pub(crate) struct Locked<'a> {
    record: MutexGuard<'a, Record>,
    seen: &'a AtomicU8,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let record = &*self.record;
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        let seen = record.state() as u8
            | bit(!record.violations.is_empty(), HAS_FAILED)
            | bit(!record.refusals.is_empty(), IS_REFUSED)
            | bit(record.false_end, HAS_FALSE_END);
        self.seen.store(seen, Ordering::Relaxed);
    }
}

impl Deref for Locked<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_mapping_does_not_excuse_allocation() {
        let mut record = Record {
            allocations: vec![1, 2],
            mappings: vec![Mapping {
                va: 0x1000,
                allocation: Some(1),
            }],
            refused: vec![(Operation::MemUnmap, 0x1000)],
            ..Record::default()
        };
        record.close();
        let [violation] = &record.violations[..] else {
            panic!("expected one violation, seen {:?}", record.violations);
        };
        assert!(
            violation.what.starts_with("allocation 2 was not released"),
            "{violation}"
        );
    }
}
