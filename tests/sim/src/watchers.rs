//! The two watchers, and the record that they share: reference models and observations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_layers::time::VirtualClock;
use gaudi_seam::{
    AnyRequest, Errno, Error, ErrorKind, KernelIo, Layer, Operation, Request, Result, SharedIo, WaitStatus,
};
use gaudi_seam::{CbDestroy, MemFree, MemUnmap, WaitCs};

use crate::driver::{Driver, Unreleased};
use crate::observed::Observed;
use crate::plan::{FaultEffect, Reference};

/// The maximum number of driver calls in one operation of the stack; more is a livelock.
const MOST_CALLS: u64 = 20_000;

/// A refusal that the stack received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) operation: Operation,
    pub(crate) kind: ErrorKind,
    pub(crate) errno: Option<Errno>,
}

/// Whether queues retry silently: after a signal, or after a submission to a full queue.
pub(crate) fn is_retried(refusal: &Refusal) -> bool {
    match refusal.operation {
        Operation::Submit => matches!(refusal.errno, Some(Errno::EAGAIN | Errno::EINTR)),
        Operation::WaitCs => refusal.errno == Some(Errno::EINTR),
        _ => false,
    }
}

/// The reference models and everything observed.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) driver: Driver,
    pub(crate) plan: Reference,
    /// The operation calls the seam directly and may be deliberately invalid.
    pub(crate) raw: bool,
    /// The driver's last answer, if the last call reached the driver.
    below: Option<Observed>,
    /// Refusals within this operation of the stack.
    pub(crate) refusals: Vec<Refusal>,
    /// Refusals that ended submissions. Later polls and waits may return them again.
    pub(crate) ended: Vec<Refusal>,
    calls: u64,
    /// The total number of calls to the driver.
    pub(crate) all_calls: u64,
    pub(crate) violations: Vec<String>,
    /// Refused releases, by operation and by the address or handle to release.
    refused: BTreeSet<(Operation, u64)>,
    /// Objects that the case deliberately leaves to the close.
    pub(crate) left_to_close: Vec<Unreleased>,
    /// A wait or a submission failed: engines may still use memory that queues discarded.
    pub(crate) work_failed: bool,
    /// Submissions of the stack without a wait that proves their end.
    unproven: BTreeSet<u64>,
    /// A wait returned an error that proves no end (device.c:hl_device_cond_reset), or found work
    /// running after an earlier one had failed.
    end_uncertain: bool,
    /// An answer reported the end of work that still runs.
    pub(crate) false_end: bool,
    /// The number of refusals to the stack, by errno.
    pub(crate) errnos: BTreeMap<String, u64>,
    /// The number of submissions accepted from the crates above the seam.
    pub(crate) taken: u64,
    /// A reset may have been pending or in progress at the last close.
    pub(crate) closed_in_reset: bool,
    /// The node is open.
    pub(crate) open: bool,
}

impl Record {
    /// Begins an operation of the stack.
    pub(crate) fn begin(&mut self, raw: bool) {
        (self.raw, self.calls) = (raw, 0);
        self.refusals.clear();
    }

    pub(crate) fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    fn note_refusal(&mut self, request: AnyRequest<'_>, kind: ErrorKind, errno: Option<Errno>) {
        let operation = request.operation();
        let refusal = Refusal {
            operation,
            kind,
            errno,
        };
        self.refusals.push(refusal);
        let name = errno.map_or_else(|| kind.name().to_owned(), |errno| format!("{errno:?}"));
        *self.errnos.entry(name).or_default() += 1;
        let released = match request {
            AnyRequest::MemUnmap(MemUnmap(va)) => Some(va.0),
            AnyRequest::MemFree(MemFree(handle)) => Some(handle.0),
            AnyRequest::CbDestroy(CbDestroy(handle)) => Some(handle.0),
            _ => None,
        };
        if let Some(what) = released {
            self.refused.insert((operation, what));
        }
        let again = is_retried(&refusal);
        if matches!(operation, Operation::WaitCs | Operation::Submit) && !again {
            self.work_failed = true;
            self.ended.push(refusal);
        }
    }

    /// Whether a submission may still run although its wait failed.
    pub(crate) fn work_may_run(&self) -> bool {
        self.end_uncertain || (self.work_failed && !self.unproven.is_empty())
    }

    /// Whether any release was refused.
    pub(crate) fn has_refused_releases(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Reports every unreleased object without a reason, and resets the record.
    fn close(&mut self) {
        for left in self.driver.unreleased() {
            let tried = |operation, what| self.refused.contains(&(operation, what));
            let excused = self.left_to_close.contains(&left)
                || match left {
                    // A mapped allocation cannot be freed; its mapping is checked separately.
                    Unreleased::Allocation { handle, mapped } => mapped || tried(Operation::MemFree, handle),
                    // The stack leaves memory that engines may still use to the close; host memory
                    // only while a submission may still run.
                    Unreleased::Mapping { va, host } => {
                        let may_be_used = self.work_may_run() || (self.work_failed && !host);
                        tried(Operation::MemUnmap, va) || may_be_used
                    }
                    Unreleased::Buffer { handle } => tried(Operation::CbDestroy, handle) || self.work_failed,
                };
            if !excused {
                self.violations.push(format!(
                    "leak: {left:x?} was not released, and no release of it was refused"
                ));
            }
        }
        self.open = false;
        self.closed_in_reset = self.driver.lost || self.driver.reset_pending || self.driver.holds_any();
        let exports = std::mem::take(&mut self.driver.exports);
        self.driver = Driver::default();
        self.driver.exports = exports;
        let injected = self.plan.injected;
        self.plan = Reference::default();
        self.plan.injected = injected;
        self.refused.clear();
        self.left_to_close.clear();
        self.ended.clear();
        self.unproven.clear();
        (self.work_failed, self.end_uncertain, self.false_end, self.taken) = (false, false, false, 0);
    }
}

/// A shared reference to the record.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedRecord(Arc<Mutex<Record>>);

impl SharedRecord {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The layer above the mock, which compares the mock with the reference driver.
pub(crate) struct DriverWatcher {
    pub(crate) inner: SharedIo,
    pub(crate) record: SharedRecord,
}

impl Layer for DriverWatcher {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let answer = next(request);
        let observed = Observed::of(&answer);
        let request = request.view();
        let mut record = self.record.lock();
        record.below = Some(observed);
        if let Err(wanted) = record.driver.judge(request, observed) {
            record.violated(format!(
                "the driver answered {observed:?} to {request:?}, expected {wanted}"
            ));
        }
        let misuse = matches!(observed, Observed::Refused(ErrorKind::InvalidInput, _));
        if misuse && !record.raw {
            record.violated(format!("misuse: the stack sent an invalid request: {request:?}"));
        }
        record.driver.apply(request, observed);
        answer
    }
}

impl Drop for DriverWatcher {
    fn drop(&mut self) {
        self.record.lock().close();
    }
}

/// The layer between the stack and the fault layer, which compares the fault layer with the
/// reference plan.
pub(crate) struct LayerWatcher {
    pub(crate) inner: SharedIo,
    pub(crate) record: SharedRecord,
    pub(crate) time: Arc<VirtualClock>,
}

impl Layer for LayerWatcher {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let mut record = self.record.lock();
        record.calls += 1;
        record.all_calls += 1;
        if record.calls > MOST_CALLS {
            if record.calls == MOST_CALLS + 1 {
                let state = format!("{:?}", record.driver);
                record.violated(format!(
                    "livelock: one operation made {MOST_CALLS} calls, the last {:?}; the driver's state: {state}",
                    request.view()
                ));
            }
            return Err(Error::new(ErrorKind::DeviceLost, R::OPERATION.kernel_name())
                .because("the simulation stopped a livelock"));
        }
        let effect = record.plan.effect(request.view(), self.time.now_ns());
        record.below = None;
        drop(record);
        let answer = next(request);
        let observed = Observed::of(&answer);
        let request = request.view();
        let mut record = self.record.lock();
        let below = record.below.take();
        let wanted = match effect {
            FaultEffect::Answered(wanted) => (wanted, None),
            FaultEffect::Performed | FaultEffect::Lost => (below.unwrap_or(observed), below),
        };
        if wanted.0 != observed
            || wanted.1 != below
            || (below.is_none() && !matches!(effect, FaultEffect::Answered(_)))
        {
            record.violated(format!(
                "the plan's effect on {request:?} is {effect:?}; the driver answered {below:?}, the layer {observed:?}"
            ));
        }
        if let (FaultEffect::Lost, Observed::Number(seq)) = (effect, observed) {
            let now = self.time.now_ns();
            record.plan.lose(seq, now);
        }
        if let (AnyRequest::Submit(_), Observed::Number(seq), false) = (request, observed, record.raw) {
            record.taken += 1;
            record.unproven.insert(seq);
        }
        if let AnyRequest::WaitCs(WaitCs { seq, .. }) = request {
            match observed {
                Observed::Wait(WaitStatus::Completed)
                | Observed::Refused(_, Some(Errno::ETIMEDOUT | Errno::ENODEV)) => {
                    record.unproven.remove(&seq.0);
                }
                Observed::Refused(..) => record.end_uncertain = true,
                Observed::Wait(_) => record.end_uncertain |= record.work_failed,
                _ => {}
            }
        }
        if let Observed::Refused(kind, errno) = observed {
            record.note_refusal(request, kind, errno);
            let claims_end = matches!(kind, ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io)
                || errno == Some(Errno::ENODEV);
            let in_reset = record.driver.lost || record.driver.reset_pending || record.plan.in_reset;
            if matches!(request, AnyRequest::WaitCs(_)) && claims_end && !in_reset {
                record.false_end = true;
                record.driver.stalled = true;
            }
        }
        answer
    }
}
