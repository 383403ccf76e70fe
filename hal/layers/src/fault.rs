//! The fault layer: applies a [`Plan`] to every operation.

mod conditions;
mod registry;
mod state;
mod text;
mod verdict;

use std::sync::Arc;

use gaudi_seam::{
    Answer as _, AnyAnswer, AnyRequest, InfoRequest, KernelIo, Layer, MultiWaitAnswer, Operation, Request,
    Result, WaitAnswer, WaitStatus,
};
use gaudi_seam::{WaitCs, WaitMultiCs};
use gaudi_uapi::info::{DeviceStatus, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use zerocopy::IntoBytes as _;

use crate::Below;
use crate::time::Time;
use gaudi_seam::fault::{ChipRules, Hit};
use state::{Attach, Pass, Shared, Waited};
use verdict::signal;

pub use gaudi_seam::fault::{
    ChipEvent, Field, FieldRange, Filter, NicEvent, NicStatus, Plan, PlanError, Resource, Rule, RuleCount,
    Schedule, State, Target, Verdict, VerdictKind,
};
pub(crate) use registry::record as record_handles;
pub use registry::{handles, tally};
pub use state::{ArmedFault, FaultEvent, FaultHandle, FaultLog};
pub use text::{PlanSource, load_plan};

/// The answer of a wait whose timeout has passed.
const BUSY: WaitAnswer = WaitAnswer {
    status: WaitStatus::Busy,
    gone: false,
    timestamp_ns: None,
};

/// The same of a wait for several submissions.
const NONE_COMPLETED: MultiWaitAnswer = MultiWaitAnswer {
    status: WaitStatus::Busy,
    completion_map: 0,
    timestamp_ns: None,
};

/// Injects the faults of a plan. Operations that no rule matches pass unchanged.
///
/// - The layer below does not see an operation that a rule rejects.
/// - The error has the kind and the errno that the driver would return; its cause names the rule.
/// - A lost submission is performed. Waits for it return `Busy` at their timeout. Once the
///   submission's own timeout has passed (30 s, or `timeout_s` with `HL_CS_FLAGS_CUSTOM_TIMEOUT`),
///   the wait in progress is `Hung` (`ETIMEDOUT`) and the device is in reset, as with the driver's
///   watchdog. With `HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT` it stays busy. Waits for interrupts are not
///   changed.
/// - `timeout` and `eintr` end a wait of more than an hour after an hour.
/// - `razwi`, `ecc` and `heartbeat` reach a mock only: see [`InfoOp::MOCK_FAULT`]. With another
///   backend the rule never fires, which is logged.
/// - `reset=compute` fails one operation with `InReset` (`EBUSY`), and every later wait for a
///   submission in flight with `EIO`. Memory stays.
/// - In reset every operation returns `DeviceLost` (`EBUSY`) until the node is opened again.
///   Queries that the driver answers in reset are answered, and the device's status is `IN_RESET`.
/// - Without armed rules a submission or a wait costs one relaxed load. Over a known type `K` no
///   call through a table is added; over `dyn KernelIo` it costs that call too.
#[derive(Debug)]
pub struct FaultLayer<K: KernelIo + ?Sized = dyn KernelIo> {
    inner: Below<K>,
    shared: Arc<Shared>,
}

impl<K: KernelIo + ?Sized> FaultLayer<K> {
    /// A layer over `inner` with the plan's rules armed.
    ///
    /// Rules for events of the chip are handed to a mock; elsewhere they never fire, which is
    /// logged. Rules for a NIC are ignored: [`Stack`](crate::Stack) rejects them.
    pub fn new(inner: Arc<K>, plan: &Plan, time: Arc<dyn Time>) -> Self {
        let device = inner.node().device;
        let log = |rule: &Rule| tracing::warn!("fault injected: in the chip by rule {rule}");
        let chip = Arc::new(ChipRules::new(device.index, plan, log));
        let node = Arc::downgrade(&inner);
        let attach = Attach(Box::new(move |chip| {
            if node.upgrade().is_some_and(|node| node.chip_faults(chip)) {
                return;
            }
            for rule in chip.rules() {
                tracing::warn!("fault not injected: only the compute node of a mock serves {rule}");
            }
        }));
        let shared = Arc::new(Shared::new(device, plan, chip, attach, time));
        if shared.chip().is_armed() {
            shared.attach_chip();
        }
        Self {
            inner: Below(inner),
            shared,
        }
    }

    /// Returns a handle that arms and disarms rules while the layer is in use, and counts their
    /// faults.
    pub fn handle(&self) -> FaultHandle {
        FaultHandle::new(Arc::clone(&self.shared))
    }

    /// Waits for submissions of which some are lost, by a wait for the others. `None` if none is
    /// lost.
    fn wait_multi(&self, wait: &WaitMultiCs<'_>) -> Option<Result<MultiWaitAnswer>> {
        let WaitMultiCs { seqs, timeout } = *wait;
        let (seen, places) = self.shared.without_lost(seqs)?;
        // The driver rejects a longer list before it reads the list.
        if seqs.len() > HL_WAIT_MULTI_CS_LIST_MAX_LEN {
            return None;
        }
        if seen.is_empty() {
            // Only a reset ends this wait early.
            let waited = self.shared.wait(Operation::WaitMultiCs, seqs, timeout);
            return Some(waited.map(|_| NONE_COMPLETED));
        }
        let bit = |map: u32, (from, to): (usize, &u32)| ((map >> from) & 1) << to;
        let answer = self.inner.0.wait_multi_cs(&seen, timeout);
        Some(answer.map(|answer| {
            MultiWaitAnswer {
                completion_map: places
                    .iter()
                    .enumerate()
                    .map(|place| bit(answer.completion_map, place))
                    .sum(),
                ..answer
            }
        }))
    }
}

impl<K: KernelIo + ?Sized> Drop for FaultLayer<K> {
    fn drop(&mut self) {
        self.shared.chip().close();
    }
}

impl<K: KernelIo + ?Sized> Layer for FaultLayer<K> {
    type Below = K;

    #[inline]
    fn below(&self) -> &K {
        &self.inner.0
    }

    #[inline]
    fn is_idle(&self) -> bool {
        !self.shared.is_active()
    }

    // Out of line: the idle layer is one load and a jump, and saves no registers for this function.
    #[cold]
    #[inline(never)]
    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let pass = self.shared.before(request.view())?;
        if let Pass::Signal(hit) = pass {
            self.signal(hit, R::OPERATION);
        }
        let answer = self.perform(request, pass, &mut next)?;
        if let Pass::Corrupt(hit) = pass {
            if corrupt(request.output(), hit.rule.verdict) {
                self.shared.happened(hit, R::OPERATION);
            }
        }
        if self.shared.observes() {
            self.shared.observe(request.view(), answer.view());
        }
        Ok(answer)
    }
}

/// Corrupts an answer. Returns whether that changed it.
fn corrupt(answer: &mut [u8], verdict: Verdict) -> bool {
    match verdict {
        Verdict::Short(bytes) => {
            let from = usize::try_from(bytes).unwrap_or(usize::MAX);
            let Some(rest) = answer.get_mut(from..) else {
                return false;
            };
            let is_changed = rest.iter().any(|byte| *byte != 0);
            rest.fill(0);
            is_changed
        }
        Verdict::Flip(bit) => {
            let byte = usize::try_from(bit / 8).ok().and_then(|at| answer.get_mut(at));
            byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
        }
        _ => false,
    }
}

impl<K: KernelIo + ?Sized> FaultLayer<K> {
    /// Makes a mock report an error of the chip. A driver rejects that, and the rule has not fired.
    fn signal(&self, hit: Hit, operation: Operation) {
        let Some(fault) = signal(hit.rule.verdict) else {
            return;
        };
        let request = InfoRequest {
            op: InfoOp::MOCK_FAULT,
            arg: fault as u32,
        };
        match self.inner.0.info(request, &mut []) {
            Ok(_) => self.shared.happened(hit, operation),
            Err(error) => tracing::warn!(%error, "fault not injected: only a mock serves {}", hit.rule),
        }
    }

    fn perform<R: Request>(
        &self,
        request: &mut R,
        pass: Pass,
        next: &mut impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        match request.view() {
            AnyRequest::Info(info) if pass == Pass::InReset => {
                let asked = info.request;
                if asked.needs_operation() {
                    return Err(self.shared.in_reset(R::OPERATION));
                }
                let answer = next(request)?;
                if asked.op == InfoOp::DEVICE_STATUS {
                    let status = DeviceStatus::IN_RESET;
                    for (to, from) in request.output().iter_mut().zip(status.as_bytes()) {
                        *to = *from;
                    }
                }
                Ok(answer)
            }
            AnyRequest::Submit(_) => {
                let answer = next(request)?;
                if let (Pass::Lose(hit), AnyRequest::Submit(cs), AnyAnswer::Cs(taken)) =
                    (pass, request.view(), answer.view())
                {
                    self.shared.lose(hit, cs, taken.seq);
                }
                Ok(answer)
            }
            AnyRequest::WaitCs(_) | AnyRequest::WaitInterrupt(_) if pass == Pass::Timeout => {
                Ok(R::reply(BUSY))
            }
            AnyRequest::WaitMultiCs(_) if pass == Pass::Timeout => Ok(R::reply(NONE_COMPLETED)),
            AnyRequest::WaitCs(&WaitCs { seq, timeout }) => {
                self.shared.check_aborted(R::OPERATION, &[seq])?;
                match self.shared.wait(R::OPERATION, &[seq], timeout)? {
                    Waited::NotLost => next(request),
                    Waited::Busy => Ok(R::reply(BUSY)),
                }
            }
            AnyRequest::WaitMultiCs(wait) => {
                self.shared.check_aborted(R::OPERATION, wait.seqs)?;
                match self.wait_multi(wait) {
                    Some(answer) => answer.map(R::reply),
                    None => next(request),
                }
            }
            _ => next(request),
        }
    }
}
