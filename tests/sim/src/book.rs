//! What the watchers share: the two references, and everything that was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_layers::time::{Time as _, VirtualTime};
use gaudi_seam::operation::{CbDestroy, MemFree, MemUnmap, WaitCs};
use gaudi_seam::{
    AnyRequest, Errno, Error, ErrorKind, KernelIo, Layer, Operation, Request, Result, SharedIo, WaitStatus,
};

use crate::driver::{Driver, Left};
use crate::observed::Observed;
use crate::plan::{Fate, Reference};

/// Calls to the driver that one operation of the stack may make: beyond, it goes round in circles.
const MOST_CALLS: u64 = 20_000;

/// A refusal that the stack met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) operation: Operation,
    pub(crate) kind: ErrorKind,
    pub(crate) errno: Option<Errno>,
}

/// What queues try again with no word of it: a signal, and a submission that found no room.
pub(crate) fn is_tried_again(met: &Met) -> bool {
    match met.operation {
        Operation::Submit => matches!(met.errno, Some(Errno::EAGAIN | Errno::EINTR)),
        Operation::WaitCs => met.errno == Some(Errno::EINTR),
        _ => false,
    }
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) driver: Driver,
    pub(crate) plan: Reference,
    /// The operation goes to the seam directly and may be wrong on purpose.
    pub(crate) raw: bool,
    /// What the driver answered last, if it was asked.
    below: Option<Observed>,
    /// Refusals within this operation of the stack.
    pub(crate) met: Vec<Met>,
    /// Refusals that ended submissions; every later question is answered so.
    pub(crate) ended: Vec<Met>,
    calls: u64,
    /// Calls to the driver in all.
    pub(crate) all_calls: u64,
    pub(crate) violations: Vec<String>,
    /// Releases that were refused, by what was to be released.
    refused: BTreeSet<(Operation, u64)>,
    /// Left to the close on purpose.
    pub(crate) abandoned: Vec<Left>,
    /// A wait or a submission failed: queues may have given up what engines may still use.
    pub(crate) troubled: bool,
    /// Submissions of the stack that no wait proved to have ended.
    unproven: BTreeSet<u64>,
    /// A wait returned an error that proves no end (device.c:hl_device_cond_reset), or found work
    /// running after an earlier one had failed.
    doubted: bool,
    /// An answer said that work had ended, and it had not.
    pub(crate) misled: bool,
    /// How often each errno was answered to the stack.
    pub(crate) errnos: BTreeMap<String, u64>,
    /// Submissions that the driver took from the crates above the seam.
    pub(crate) taken: u64,
    /// The last close may have met a reset.
    pub(crate) closed_in_reset: bool,
    /// The node is open.
    pub(crate) open: bool,
}

impl Book {
    /// An operation of the stack begins.
    pub(crate) fn begin(&mut self, raw: bool) {
        (self.raw, self.calls) = (raw, 0);
        self.met.clear();
    }

    pub(crate) fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    fn note_refusal(&mut self, request: AnyRequest<'_>, kind: ErrorKind, errno: Option<Errno>) {
        let operation = request.operation();
        let met = Met {
            operation,
            kind,
            errno,
        };
        self.met.push(met);
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
        let again = is_tried_again(&met);
        if matches!(operation, Operation::WaitCs | Operation::Submit) && !again {
            self.troubled = true;
            self.ended.push(met);
        }
    }

    /// Whether the stack must take into account that a submission still runs, though its wait failed.
    pub(crate) fn work_may_run(&self) -> bool {
        self.doubted || (self.troubled && !self.unproven.is_empty())
    }

    /// Whether any release was refused.
    pub(crate) fn has_refused_releases(&self) -> bool {
        !self.refused.is_empty()
    }

    /// What is left at the close must have a reason.
    fn close(&mut self) {
        for left in self.driver.left() {
            let tried = |operation, what| self.refused.contains(&(operation, what));
            let excused = self.abandoned.contains(&left)
                || match left {
                    // A refused unmapping keeps the memory; that one is looked at itself.
                    Left::Allocation { handle, mapped } => mapped || tried(Operation::MemFree, handle),
                    // What engines may still use is kept until the close: host memory only while a
                    // submission may still run.
                    Left::Mapping { va, host } => {
                        let may_be_used = self.work_may_run() || (self.troubled && !host);
                        tried(Operation::MemUnmap, va) || may_be_used
                    }
                    Left::Buffer { handle } => tried(Operation::CbDestroy, handle) || self.troubled,
                };
            if !excused {
                self.violations.push(format!(
                    "leak: {left:x?} was not given back, and no release of it was refused"
                ));
            }
        }
        self.open = false;
        self.closed_in_reset = self.driver.lost || self.driver.doomed || self.driver.holds_any();
        let exports = std::mem::take(&mut self.driver.exports);
        self.driver = Driver::default();
        self.driver.exports = exports;
        let struck = self.plan.struck;
        self.plan = Reference::default();
        self.plan.struck = struck;
        self.refused.clear();
        self.abandoned.clear();
        self.ended.clear();
        self.unproven.clear();
        (self.troubled, self.doubted, self.misled, self.taken) = (false, false, false, 0);
    }
}

/// The book as the watchers hold it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Book>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands on the mock, and compares it with the reference driver.
pub(crate) struct Referee {
    pub(crate) inner: SharedIo,
    pub(crate) book: Shared,
}

impl Layer for Referee {
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
        let mut book = self.book.lock();
        book.below = Some(observed);
        if let Err(wanted) = book.driver.judge(request, observed) {
            book.violated(format!(
                "the driver answered {observed:?} to {request:?}, wanted {wanted}"
            ));
        }
        let misuse = matches!(observed, Observed::Refused(ErrorKind::InvalidInput, _));
        if misuse && !book.raw {
            book.violated(format!(
                "misuse: the stack asked the driver for what is wrong: {request:?}"
            ));
        }
        book.driver.apply(request, observed);
        answer
    }
}

impl Drop for Referee {
    fn drop(&mut self) {
        self.book.lock().close();
    }
}

/// Stands between the stack and the fault layer, and compares the layer with the reference plan.
pub(crate) struct Auditor {
    pub(crate) inner: SharedIo,
    pub(crate) book: Shared,
    pub(crate) time: Arc<VirtualTime>,
}

impl Layer for Auditor {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let mut book = self.book.lock();
        book.calls += 1;
        book.all_calls += 1;
        if book.calls > MOST_CALLS {
            if book.calls == MOST_CALLS + 1 {
                let state = format!("{:?}", book.driver);
                book.violated(format!(
                    "stall: one operation made {MOST_CALLS} calls, the last {:?}; the driver's state: {state}",
                    request.view()
                ));
            }
            return Err(Error::new(ErrorKind::DeviceLost, R::OPERATION.kernel_name())
                .because("the run was ended because it stalled"));
        }
        let fate = book.plan.fate(request.view(), self.time.now_ns());
        book.below = None;
        drop(book);
        let answer = next(request);
        let observed = Observed::of(&answer);
        let request = request.view();
        let mut book = self.book.lock();
        let below = book.below.take();
        let wanted = match fate {
            Fate::Answered(wanted) => (wanted, None),
            Fate::Performed | Fate::Lost => (below.unwrap_or(observed), below),
        };
        if wanted.0 != observed
            || wanted.1 != below
            || (below.is_none() && !matches!(fate, Fate::Answered(_)))
        {
            book.violated(format!(
                "the plan's fate of {request:?} is {fate:?}; the driver below answered {below:?}, the layer {observed:?}"
            ));
        }
        if let (Fate::Lost, Observed::Number(seq)) = (fate, observed) {
            let now = self.time.now_ns();
            book.plan.lose(seq, now);
        }
        if let (AnyRequest::Submit(_), Observed::Number(seq), false) = (request, observed, book.raw) {
            book.taken += 1;
            book.unproven.insert(seq);
        }
        if let AnyRequest::WaitCs(WaitCs { seq, .. }) = request {
            match observed {
                Observed::Wait(WaitStatus::Completed)
                | Observed::Refused(_, Some(Errno::ETIMEDOUT | Errno::ENODEV)) => {
                    book.unproven.remove(&seq.0);
                }
                Observed::Refused(..) => book.doubted = true,
                Observed::Wait(_) => book.doubted |= book.troubled,
                _ => {}
            }
        }
        if let Observed::Refused(kind, errno) = observed {
            book.note_refusal(request, kind, errno);
            let said_ended = matches!(kind, ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io)
                || errno == Some(Errno::ENODEV);
            let really = book.driver.lost || book.driver.doomed || book.plan.in_reset;
            if matches!(request, AnyRequest::WaitCs(_)) && said_ended && !really {
                book.misled = true;
                book.driver.deserted = true;
            }
        }
        answer
    }
}
