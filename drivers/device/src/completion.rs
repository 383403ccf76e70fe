//! What a submission is waited for with.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gaudi_seam::Result;

use crate::deadline::Deadline;
use crate::lane::Lane;

/// The end of a copy or of a queue's submission. A clone waits for the same end.
///
/// Dropping it cancels nothing: the work goes on and keeps its memory until it is done.
#[derive(Clone)]
pub struct Completion {
    /// `None` where there was nothing to do.
    of: Option<(Arc<Lane>, u64)>,
}

impl Completion {
    /// Of work that was none: a copy of no bytes.
    pub(crate) const fn done() -> Self {
        Self { of: None }
    }

    pub(crate) fn new(lane: &Arc<Lane>, seq: u64) -> Self {
        Self {
            of: Some((Arc::clone(lane), seq)),
        }
    }

    /// Whether the work is done. Never waits; one question to the driver where the answer is not known already. Allocates nothing.
    ///
    /// `Hung`: the driver gave it up after its timeout. `DeviceLost`: it was aborted by a reset.
    pub fn poll(&self) -> Result<bool> {
        self.of.as_ref().map_or(Ok(true), |(lane, seq)| lane.poll(*seq))
    }

    /// Waits until the work is done, in the driver and not by polling; `TimedOut` where the deadline passes first, and the work goes on.
    /// Other errors as [`poll`](Self::poll). Allocates nothing.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.of
            .as_ref()
            .map_or(Ok(()), |(lane, seq)| lane.wait(*seq, deadline.into()))
    }

    /// Drops the handle. Returns the queue's lane if no other handle is left and submissions of it
    /// have not ended: its drop waits for them.
    pub(crate) fn into_busy(self) -> Option<Lane> {
        let lane = Arc::into_inner(self.of?.0)?;
        lane.is_busy().then_some(lane)
    }

    /// The device that the work is on; `None` where there was nothing to do.
    #[cfg(feature = "async")]
    pub(crate) fn context(&self) -> Option<&Arc<crate::context::Context>> {
        self.of.as_ref().map(|(lane, _)| &lane.context)
    }

    /// The number of the driver's submission; `None` where there was nothing to submit.
    pub fn sequence(&self) -> Option<u64> {
        self.of.as_ref().map(|&(_, seq)| seq)
    }

    /// An eventfd (non-blocking, close-on-exec) that becomes readable when the work is done or has failed; then [`poll`](Self::poll)
    /// tells which.
    ///
    /// The driver has no such descriptor for a submission, so one thread a device waits in its place. It starts with the first call
    /// and lives as long as the device; it costs a stack, one question to the driver for each descriptor every 2 ms while any is
    /// outstanding, and up to 2 ms of delay where several are. [`poll`](Self::poll) and [`wait`](Self::wait) never use it.
    pub fn event_fd(&self) -> Result<OwnedFd> {
        crate::waiter::event_fd(self, self.of.as_ref().map(|(lane, _)| &lane.context))
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some((lane, seq)) => write!(f, "Completion({seq} of {lane:?})"),
            None => f.write_str("Completion(nothing to do)"),
        }
    }
}
