//! [`Effects`]: what the verdicts on one operation amount to.

use std::time::Duration;

use gaudi_seam::Errno;
use gaudi_seam::fault::{Resource, Verdict};
use gaudi_uapi::info::MockFault;

/// What the verdicts on one operation amount to. `M` is the mark of a rule.
#[derive(Debug)]
pub(super) struct Effects<M> {
    pub(super) delay: Duration,
    pub(super) decided: Option<(Verdict, M)>,
}

impl<M> Default for Effects<M> {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            decided: None,
        }
    }
}

impl<M> Effects<M> {
    /// Adds a verdict: delays add up, and the first other one decides. Returns whether its fault
    /// has happened.
    pub(super) fn add(&mut self, verdict: Verdict, mark: M) -> bool {
        match verdict {
            Verdict::Delay(more) => self.delay = self.delay.saturating_add(more),
            _ if self.decided.is_some() => return false,
            _ => self.decided = Some((verdict, mark)),
        }
        !happens_later(verdict)
    }
}

/// Whether a fault happens after the layer below has accepted it: a loss of a submission, a
/// corrupted answer, an error of a chip that the backend models.
fn happens_later(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Lose | Verdict::Short(_) | Verdict::Flip(_)) || signal(verdict).is_some()
}

/// The error that a mock makes for a verdict.
pub(super) fn signal(verdict: Verdict) -> Option<MockFault> {
    match verdict {
        Verdict::Ecc => Some(MockFault::NonFatalEvent),
        Verdict::FatalEcc => Some(MockFault::FatalEvent),
        Verdict::Heartbeat => Some(MockFault::LossOfHeartbeat),
        _ => None,
    }
}

/// What the driver returns if a resource is exhausted.
pub(super) fn exhausted(resource: Resource) -> Errno {
    match resource {
        Resource::Queue => Errno::EAGAIN,
        Resource::Memory | Resource::Space => Errno::ENOMEM,
        Resource::Fds => Errno::EMFILE,
    }
}
