//! The validate layer: reports misuse before the driver sees it.

mod held;
mod ledger;
mod witness;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_seam::{
    Answer, AnyRequest, CbInfo, CsRequest, Errno, Error, KernelIo, Layer, NodeKind, Operation, Request,
    Result, SharedIo,
};
use gaudi_sys::fork::OwnerProcess;

use crate::Below;
use ledger::{Ledger, Misuse};

pub use held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped};

/// The findings that are stored. Older ones are counted only.
const FINDINGS: usize = 1024;

/// What the layer does with an operation that the driver is known to reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Pass it on. The driver's error gets the cause.
    #[default]
    Explain,
    /// Reject it with the driver's errno. The driver does not see it.
    Refuse,
}

/// A mistake of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The operation.
    pub operation: Operation,
    /// The mistake, as a sentence.
    pub sentence: String,
    /// The driver's errno. `None` if it accepts the operation.
    pub expected: Option<Errno>,
    /// The result.
    pub outcome: Judgement,
}

/// The result of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The layer below accepted it.
    Accepted,
    /// The layer below rejected it, with this errno.
    Refused(Option<Errno>),
    /// This layer rejected it ([`Policy::Refuse`]).
    Stopped,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.sentence)
    }
}

/// Records the objects of a program, and reports its mistakes before the driver sees them.
///
/// - *The driver decides.* A finding is logged through `tracing`, and the operation is passed on.
///   If the driver rejects it as expected, its error gets the sentence; kind and errno stay the
///   driver's. So no program behaves differently. [`Policy::Refuse`] rejects what the driver is
///   known to reject.
/// - *Mistakes that the driver accepts are findings too*: a command buffer that is not mapped, host
///   memory that is pinned twice.
/// - *Uncertain findings are reported only if the driver rejects the call*: only the kernel knows
///   whether a dma-buf is alive.
/// - *At the close*, objects that were not released are logged; [`leaks`](Self::leaks) returns
///   them.
///
/// The records are complete if every operation of the node passes through this layer.
#[derive(Debug)]
pub struct ValidateLayer {
    inner: Below,
    policy: Policy,
    ledger: Mutex<Ledger>,
    findings: Mutex<Findings>,
    owner: OwnerProcess,
}

#[derive(Debug, Default)]
struct Findings {
    kept: VecDeque<Finding>,
    forgotten: u64,
}

impl ValidateLayer {
    /// A layer over a node without objects.
    pub fn new(inner: SharedIo, policy: Policy) -> Self {
        Self {
            inner: Below(inner),
            policy,
            ledger: Mutex::default(),
            findings: Mutex::default(),
            owner: OwnerProcess::current(),
        }
    }

    /// The newest 1024 findings, oldest first.
    pub fn findings(&self) -> Vec<Finding> {
        lock(&self.findings).kept.iter().cloned().collect()
    }

    /// The number of older findings, which are not stored.
    pub fn forgotten(&self) -> u64 {
        lock(&self.findings).forgotten
    }

    /// The objects that the program has not released.
    pub fn leaks(&self) -> Leaks {
        lock(&self.ledger).leaks()
    }

    /// Whether the layer is off: on a control node, and in a fork child, where another thread of
    /// the parent may hold the lock. The node below rejects everything there.
    fn is_silent(&self) -> bool {
        self.node().kind == NodeKind::Control || self.owner.is_foreign()
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
        let (rule, seen, certain) = match misuse {
            Misuse::Accepted(sentence, help) => {
                tracing::warn!("device {device}: {operation}: {sentence}; {help}");
                let result = call();
                let outcome = match &result {
                    Ok(_) => Judgement::Accepted,
                    Err(error) => Judgement::Refused(error.errno()),
                };
                self.find(operation, sentence, None, outcome);
                return result;
            }
            Misuse::Refused(rule, seen, certain) => (rule, seen, certain),
        };
        let sentence = format!("{} (saw {seen})", rule.condition);
        let result = match certain && self.policy == Policy::Refuse {
            true => Err(Error::from_rule(operation, rule).on(device)),
            false => call(),
        };
        let expected = result
            .as_ref()
            .is_err_and(|error| error.errno() == Some(rule.errno));
        if certain || expected {
            tracing::warn!("device {device}: {operation}: {sentence}");
            let outcome = match &result {
                Ok(_) => Judgement::Accepted,
                Err(_) if certain && self.policy == Policy::Refuse => Judgement::Stopped,
                Err(error) => Judgement::Refused(error.errno()),
            };
            self.find(operation, sentence, Some(rule.errno), outcome);
        }
        // Another errno has another cause: a device in reset rejects valid operations too.
        result.map_err(|error| match expected {
            true => error
                .with_rule(operation, rule)
                .because(rule.condition)
                .showing(seen),
            false => error,
        })
    }

    fn find(&self, operation: Operation, sentence: String, expected: Option<Errno>, outcome: Judgement) {
        let mut findings = lock(&self.findings);
        if findings.kept.len() == FINDINGS {
            findings.kept.pop_front();
            findings.forgotten += 1;
        }
        findings.kept.push_back(Finding {
            operation,
            sentence,
            expected,
            outcome,
        });
    }

    /// Queries the device addresses of command buffers that the program did not query: a chunk may
    /// name one.
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
                "device {}: closed with objects that were not released: {leaks}",
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

    /// The records are not locked while the driver performs the operation.
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
