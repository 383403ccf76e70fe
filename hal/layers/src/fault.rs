//! The fault layer: applies a [`Plan`] to every operation.

mod plan;
mod registry;
mod state;
mod text;
mod verdict;

use std::sync::Arc;

use gaudi_seam::{
    Answer as _, AnyAnswer, AnyRequest, KernelIo, Layer, MultiWaitAnswer, Operation, Request, Result,
    WaitAnswer, WaitStatus,
};
use gaudi_seam::{WaitCs, WaitMultiCs};
use gaudi_uapi::info::{DeviceStatus, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use zerocopy::IntoBytes as _;

use crate::Below;
use crate::time::Time;
use state::{Pass, Shared, Waited};

pub use plan::{Plan, PlanError, Rule, Schedule, Target};
pub(crate) use registry::record as record_handles;
pub use registry::{handles, tally};
pub use state::{ArmedFault, FaultEvent, FaultHandle, FaultLog, RuleCount};
pub use text::{PlanSource, load_plan};
pub use verdict::Verdict;

/// Injects the faults of a plan. Operations that no rule matches pass unchanged.
///
/// - The layer below does not see an operation that a rule rejects.
/// - The error has the kind and the errno that the driver would return; its cause names the rule.
/// - A lost submission is performed. Waits for it return `Busy` at their timeout. Once the
///   submission's own timeout has passed (30 s, or `timeout_s` with `HL_CS_FLAGS_CUSTOM_TIMEOUT`),
///   the wait in progress is `Hung` (`ETIMEDOUT`) and the device is in reset, as with the driver's
///   watchdog. With `HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT` it stays busy. Waits for interrupts are not
///   changed.
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
    pub fn new(inner: Arc<K>, plan: &Plan, time: Arc<dyn Time>) -> Self {
        let shared = Arc::new(Shared::new(inner.node().device, plan, time));
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
            return Some(waited.map(|_| MultiWaitAnswer {
                status: WaitStatus::Busy,
                completion_map: 0,
                timestamp_ns: None,
            }));
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
        let pass = self.shared.before(R::OPERATION)?;
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
                if let (Pass::Lose(mark), AnyRequest::Submit(cs), AnyAnswer::Cs(taken)) =
                    (pass, request.view(), answer.view())
                {
                    self.shared.lose(mark, cs, taken.seq);
                }
                Ok(answer)
            }
            AnyRequest::WaitCs(&WaitCs { seq, timeout }) => {
                match self.shared.wait(R::OPERATION, &[seq], timeout)? {
                    Waited::NotLost => next(request),
                    Waited::Busy => Ok(R::reply(WaitAnswer {
                        status: WaitStatus::Busy,
                        gone: false,
                        timestamp_ns: None,
                    })),
                }
            }
            AnyRequest::WaitMultiCs(wait) => match self.wait_multi(wait) {
                Some(answer) => answer.map(R::reply),
                None => next(request),
            },
            _ => next(request),
        }
    }
}
