//! The completion of submitted work.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::Result;
use gaudi_sys::Deadline;

use crate::producer::Producer;
use crate::waiter::{self, Pending};

/// The completion of a copy or of a queue's submission. A clone refers to the same work.
///
/// A drop cancels nothing: the work continues and holds its memory until it has ended.
#[derive(Clone)]
#[must_use = "a copy whose completion is not waited for may fail unnoticed"]
pub struct Completion {
    /// `None` if there was nothing to do.
    work: Option<(Arc<Producer>, u64)>,
}

impl Completion {
    /// The completion of a copy of 0 bytes.
    pub(crate) const fn done() -> Self {
        Self { work: None }
    }

    pub(crate) fn new(producer: &Arc<Producer>, seq: u64) -> Self {
        Self {
            work: Some((Arc::clone(producer), seq)),
        }
    }

    /// Returns whether the work is done. Never waits. Calls the driver once if the result is not
    /// known yet. Allocates nothing.
    ///
    /// # Errors
    /// - `Hung`: the driver aborted the work after its timeout.
    /// - `DeviceLost`: a reset aborted the work.
    /// - `Forked`, or the driver's own error.
    pub fn poll(&self) -> Result<bool> {
        match &self.work {
            Some((producer, seq)) => producer.poll(*seq),
            None => Ok(true),
        }
    }

    /// Waits in the driver until the work is done. Allocates nothing.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed. The work continues.
    /// - As [`poll`](Self::poll).
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Result<()> {
        match &self.work {
            Some((producer, seq)) => producer.wait(*seq, deadline.into()),
            None => Ok(()),
        }
    }

    /// Returns the sequence number of the driver's submission; `None` if there was nothing to
    /// submit.
    pub fn sequence(&self) -> Option<u64> {
        self.work.as_ref().map(|&(_, seq)| seq)
    }

    /// Calls `signal` when the work has ended, in the device's waiter thread.
    #[cfg(feature = "async")]
    pub(crate) fn on_end(&self, signal: Box<dyn FnOnce() + Send>) -> Result<()> {
        let Some((producer, _)) = &self.work else {
            signal();
            return Ok(());
        };
        producer.context.check_process("future")?;
        producer.context.waiter.add(Box::new(self.clone()), signal)
    }

    /// The queue and the sequence number; `None` if there was nothing to submit.
    pub(crate) fn into_parts(self) -> Option<(Arc<Producer>, u64)> {
        self.work
    }

    /// Returns an eventfd (non-blocking, close-on-exec) that becomes readable when the work is done
    /// or has failed. [`poll`](Self::poll) then reports which.
    ///
    /// The driver has no such descriptor for a submission, so one thread for each device waits
    /// instead. It starts with the first call and ends with the device. It polls the driver every
    /// 2 ms for each descriptor that is not signalled, and signals up to 2 ms late if there are
    /// several. [`poll`](Self::poll) and [`wait`](Self::wait) never use it.
    ///
    /// # Errors
    /// - The error of `eventfd` or `clone`: no descriptor or thread is left.
    /// - `Forked`.
    pub fn event_fd(&self) -> Result<OwnedFd> {
        let Some((producer, _)) = &self.work else {
            return waiter::signalled_fd();
        };
        producer.context.check_process("eventfd")?;
        producer.context.waiter.event_fd(Box::new(self.clone()))
    }
}

impl Pending for Completion {
    fn has_ended(&self) -> bool {
        !matches!(self.poll(), Ok(false))
    }

    fn wait(&self, time: Duration) {
        // The descriptor's owner polls for the result.
        let _ = Self::wait(self, time);
    }

    /// The queue, if this is its last handle and submissions of it have not ended.
    fn into_slow_drop(self: Box<Self>) -> Option<Box<dyn Any + Send>> {
        let producer = Arc::into_inner(self.work?.0)?;
        producer.is_busy().then(|| Box::new(producer) as _)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Some((producer, seq)) => write!(f, "Completion({seq} of {producer:?})"),
            None => f.write_str("Completion(nothing to do)"),
        }
    }
}
