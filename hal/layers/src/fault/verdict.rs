//! What a verdict means for an operation of the driver.

use gaudi_seam::Errno;
use gaudi_seam::fault::{Resource, Verdict};
use gaudi_uapi::info::MockFault;

/// Whether a fault happens after the layer below has accepted it: a loss of a submission, a
/// corrupted answer, an error of a chip that the backend models.
pub(super) fn happens_later(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Lose | Verdict::Short(_) | Verdict::Flip(_)) || signal(verdict).is_some()
}

/// The error that a mock makes for a verdict.
pub(super) fn signal(verdict: Verdict) -> Option<MockFault> {
    match verdict {
        Verdict::Razwi => Some(MockFault::Razwi),
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
