//! The reference model of the fault layer: the effect of a plan on each operation.

use std::collections::BTreeMap;
use std::time::Duration;

use gaudi_layers::fault::{Plan, Rule, Verdict};
use gaudi_seam::WaitCs;
use gaudi_seam::{AnyRequest, Errno, ErrorKind, Operation, WaitStatus};

use crate::observed::Observed;

const SECOND: u64 = 1_000_000_000;
/// The driver's own limit on a submission.
const LIMIT: u64 = 30 * SECOND;

/// The effect of the plan on one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultEffect {
    /// The driver performs it and answers.
    Performed,
    /// The driver performs it, and its completion is lost.
    Lost,
    /// The layer answers, and the driver does not perform it.
    Answered(Observed),
}

/// The state of an armed plan.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    rules: Vec<(Rule, u64)>,
    pub(crate) in_reset: bool,
    /// The time at which the driver's timer would end each lost submission.
    lost: BTreeMap<u64, u64>,
    pub(crate) injected: u64,
}

impl Reference {
    /// Applies `plan` from now on.
    pub(crate) fn arm(&mut self, plan: &Plan) {
        self.rules = plan.rules.iter().map(|&rule| (rule, 0)).collect();
    }

    pub(crate) fn is_lost(&self, seq: u64) -> bool {
        self.lost.contains_key(&seq)
    }

    fn expire(&mut self, now: u64) -> Option<u64> {
        let late = self
            .lost
            .iter()
            .find(|&(_, &at)| at <= now)
            .map(|(&seq, _)| seq)?;
        self.lost.clear();
        self.in_reset = true;
        Some(late)
    }

    /// Returns the effect of the plan on `request` at time `now` of the layer's clock.
    pub(crate) fn effect(&mut self, request: AnyRequest<'_>, now: u64) -> FaultEffect {
        let operation = request.operation();
        self.expire(now);
        let (mut decided, mut delay) = (None, Duration::ZERO);
        if !self.in_reset {
            for (rule, seen) in self.rules.iter_mut().filter(|(rule, _)| rule.matches(0, request)) {
                *seen += 1;
                if !rule.strikes(*seen) {
                    continue;
                }
                match rule.verdict {
                    Verdict::Delay(more) => {
                        self.injected += 1;
                        delay += more;
                    }
                    verdict if decided.is_none() => {
                        self.injected += 1;
                        decided = Some(verdict);
                    }
                    _ => {}
                }
            }
            self.in_reset = decided == Some(Verdict::Reset);
        }
        let in_reset = FaultEffect::Answered(Observed::Refused(ErrorKind::DeviceLost, Some(Errno::EBUSY)));
        match decided {
            Some(Verdict::Error(errno)) => {
                FaultEffect::Answered(Observed::Refused(kind(operation, errno), Some(errno)))
            }
            _ if self.in_reset && matches!(operation, Operation::Info | Operation::UnregisterEvents) => {
                FaultEffect::Performed
            }
            _ if self.in_reset => in_reset,
            Some(Verdict::Lose) => FaultEffect::Lost,
            _ => match request {
                AnyRequest::WaitCs(WaitCs { seq, timeout }) if self.is_lost(seq.0) => {
                    let now = now.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
                    FaultEffect::Answered(self.wait_for_lost(seq.0, now, *timeout))
                }
                _ => FaultEffect::Performed,
            },
        }
    }

    fn wait_for_lost(&mut self, seq: u64, now: u64, timeout: Duration) -> Observed {
        let end = now.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let first = self.lost.values().copied().min().unwrap_or(u64::MAX);
        match self.expire(end.min(first.max(now))) {
            Some(late) if late == seq => Observed::Refused(ErrorKind::Hung, Some(Errno::ETIMEDOUT)),
            Some(_) => Observed::Refused(ErrorKind::DeviceLost, Some(Errno::EIO)),
            None => Observed::Wait(WaitStatus::Busy),
        }
    }

    /// Records an accepted submission whose completion is lost.
    pub(crate) fn lose(&mut self, seq: u64, now: u64) {
        self.lost.insert(seq, now.saturating_add(LIMIT));
    }
}

/// Returns the kind of a driver's refusal, by operation and errno, as `ErrorKind` documents it.
pub(crate) fn kind(operation: Operation, errno: Errno) -> ErrorKind {
    use Operation as Op;
    let is_wait = matches!(
        operation,
        Op::WaitCs | Op::WaitMultiCs | Op::WaitInterrupt | Op::RegisterTimestamp
    );
    match (operation, errno) {
        (_, Errno::EAGAIN) => ErrorKind::WouldBlock,
        (_, Errno::EBUSY) => ErrorKind::DeviceLost,
        (_, Errno::EIO) if is_wait => ErrorKind::DeviceLost,
        (_, Errno::EPERM) if is_wait || operation == Op::Submit => ErrorKind::Unsupported,
        (Op::MemAlloc | Op::MemMapDevice, Errno::ENOMEM) => ErrorKind::OutOfDeviceMemory,
        (_, errno) => ErrorKind::of_errno(errno),
    }
}
