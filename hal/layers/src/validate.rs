//! The validate layer: misuse is named before the driver meets it.

mod counters;
mod held;
mod ledger;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_seam::{
    Answer, AnyRequest, CbInfo, CsRequest, Errno, Error, KernelIo, Layer, NodeKind, Operation, Request,
    Result, SharedIo,
};
use gaudi_sys::fork::Birth;

use ledger::{Ledger, Misuse};

pub use held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped};

/// Findings kept; older ones are counted only.
const FINDINGS: usize = 1024;

/// What is done with an operation that the driver is known to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// It is passed on: the driver refuses it as ever, and its error is told with the cause.
    #[default]
    Explain,
    /// The layer refuses it with the driver's errno, and the driver never sees it.
    Refuse,
}

/// A mistake of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which operation.
    pub operation: Operation,
    /// What is wrong, in a sentence.
    pub sentence: String,
    /// What the driver answers; none where it accepts the operation and the harm comes later, or never.
    pub expected: Option<Errno>,
    /// What became of it.
    pub outcome: Judgement,
}

/// What became of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The layer below accepted it.
    Accepted,
    /// The layer below refused it, with this errno.
    Refused(Option<Errno>),
    /// This layer refused it ([`Policy::Refuse`]).
    Stopped,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.sentence)
    }
}

/// Keeps books of what a program holds, and names what it does wrong before the driver meets it.
///
/// - *The driver stays the judge.* A finding is said through `tracing` before the call, and then the operation is passed on; if the driver
///   refuses it as expected, its error (kind and errno untouched) carries the sentence. So no program behaves differently, valid or not:
///   an errno of this layer is the driver's by construction. [`Policy::Refuse`] keeps from the driver what it is known to refuse.
/// - *What the driver accepts silently is a finding too*: a command buffer that nothing maps, host memory that is pinned twice.
/// - *What is not certain is no finding until the driver refuses*: whether a dma-buf is still alive is known to nobody but the kernel.
/// - *At the end*, what was not given back is told through `tracing`, and by [`leaks`](Self::leaks).
///
/// The books are right where every operation of the open node goes through this layer. Chunks and pages are judged as Gaudi2's.
#[derive(Debug)]
pub struct ValidateLayer {
    inner: Inner,
    policy: Policy,
    ledger: Mutex<Ledger>,
    findings: Mutex<Findings>,
    birth: Birth,
}

struct Inner(SharedIo);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.node().fmt(f)
    }
}

#[derive(Debug, Default)]
struct Findings {
    kept: VecDeque<Finding>,
    forgotten: u64,
}

impl ValidateLayer {
    /// A layer over a node that was just opened.
    pub fn new(inner: SharedIo, policy: Policy) -> Self {
        Self {
            inner: Inner(inner),
            policy,
            ledger: Mutex::default(),
            findings: Mutex::default(),
            birth: Birth::here(),
        }
    }

    /// What was found so far, oldest first: the newest 1024.
    pub fn findings(&self) -> Vec<Finding> {
        lock(&self.findings).kept.iter().cloned().collect()
    }

    /// How many older findings are not kept.
    pub fn forgotten(&self) -> u64 {
        lock(&self.findings).forgotten
    }

    /// What the program holds now: at the end, what it has not given back.
    pub fn leaks(&self) -> Leaks {
        lock(&self.ledger).leaks()
    }

    /// Whether everything is refused below for another reason: on a control node, and in a fork child, where moreover the lock may be held
    /// by a thread that is not there.
    fn is_silent(&self) -> bool {
        self.node().kind == NodeKind::Control || self.birth.is_elsewhere()
    }

    fn book(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    #[cold]
    fn confront<T>(
        &self,
        operation: Operation,
        misuse: Misuse,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let device = self.node().device;
        if misuse.certain {
            tracing::warn!("device {device}: {operation}: {}", misuse.sentence);
        }
        let stopped = misuse
            .errno
            .filter(|_| misuse.certain && self.policy == Policy::Refuse);
        let result = match stopped {
            Some(errno) => {
                let error = Error::from_errno(operation.kernel_name(), errno)
                    .on(device)
                    .with_kind(misuse.kind);
                self.find(operation, &misuse, Judgement::Stopped);
                return Err(explain(error, misuse));
            }
            None => call(),
        };
        match result {
            Ok(answer) => {
                if misuse.certain {
                    self.find(operation, &misuse, Judgement::Accepted);
                }
                Ok(answer)
            }
            Err(error) => {
                let expected = misuse.errno.is_some() && error.errno() == misuse.errno;
                if !misuse.certain && expected {
                    tracing::warn!("device {device}: {operation}: {}", misuse.sentence);
                }
                if misuse.certain || expected {
                    self.find(operation, &misuse, Judgement::Refused(error.errno()));
                }
                // Another errno has another cause: a device in reset refuses good and bad alike.
                Err(if expected { explain(error, misuse) } else { error })
            }
        }
    }

    fn find(&self, operation: Operation, misuse: &Misuse, outcome: Judgement) {
        let mut findings = lock(&self.findings);
        if findings.kept.len() == FINDINGS {
            findings.kept.pop_front();
            findings.forgotten += 1;
        }
        findings.kept.push_back(Finding {
            operation,
            sentence: misuse.sentence.clone(),
            expected: misuse.errno,
            outcome,
        });
    }

    /// Asks where command buffers lie for which the program did not ask, since a chunk may name one.
    fn place_buffers(&self, request: &CsRequest<'_>) {
        let ledger = self.book();
        if !ledger.has_stray_chunk(request) {
            return;
        }
        let unplaced = ledger.unplaced();
        drop(ledger);
        for handle in unplaced {
            if let Ok(CbInfo {
                device_va: Some(va), ..
            }) = self.inner.0.cb_info(handle, true)
            {
                self.book().cb_va(handle, va);
            }
        }
    }
}

/// The driver's error with what is known of its cause.
fn explain(error: Error, misuse: Misuse) -> Error {
    let error = error.because(misuse.sentence);
    let error = match misuse.seen {
        Some((seen, wanted)) => error.saw(seen, wanted),
        None => error,
    };
    match misuse.help {
        Some(help) => error.helped_by(help),
        None => error,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ValidateLayer {
    fn drop(&mut self) {
        if self.is_silent() {
            return;
        }
        let leaks = self.leaks();
        if !leaks.is_empty() {
            tracing::warn!(
                "device {}: closed without giving back: {leaks}",
                self.node().device
            );
        }
    }
}

impl Layer for ValidateLayer {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner.0
    }

    /// The books are not locked while the driver performs the operation.
    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        if self.is_silent() {
            return next(request);
        }
        if let AnyRequest::Submit(request) = request.view() {
            self.place_buffers(request);
        }
        let misuse = self.book().check(request.view());
        let mut perform = || {
            let released = self.book().begin(request.view());
            let result = next(request);
            let answer = result.as_ref().ok().map(Answer::view);
            self.book().end(request.view(), released, answer);
            result
        };
        match misuse {
            None => perform(),
            Some(misuse) => self.confront(R::OPERATION, misuse, perform),
        }
    }
}
