//! The queues of one open device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gaudi_seam::Result;
use gaudi_sys::Deadline;

use crate::shared::lock;

/// A queue that may have submissions in flight.
pub(crate) trait ActiveQueue: Send + Sync {
    /// Releases what ended submissions held. Does not wait for a submission.
    fn reap(&self);

    /// Waits until no submission is in flight.
    ///
    /// # Errors
    /// `TimedOut`, or the failure of an earlier submission.
    fn drain(&self, deadline: Deadline) -> Result<()>;

    /// The number of the newest submission, or 0.
    fn newest(&self) -> u64;

    /// How many times submissions in flight hold the buffer of this generation.
    fn holds(&self, generation: u64) -> usize;
}

#[derive(Default)]
pub(crate) struct ActiveQueues {
    queues: Mutex<Vec<Weak<dyn ActiveQueue>>>,
    /// The newest submission of queues that were dropped. It may be in flight.
    newest_of_dropped: AtomicU64,
}

impl ActiveQueues {
    pub(crate) fn add(&self, queue: Weak<dyn ActiveQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Records the newest submission of a queue that is dropped.
    pub(crate) fn record_dropped(&self, newest: u64) {
        self.newest_of_dropped.fetch_max(newest, Ordering::Relaxed);
    }

    fn all(&self) -> Vec<Arc<dyn ActiveQueue>> {
        lock(&self.queues).iter().filter_map(Weak::upgrade).collect()
    }

    /// The submission that must end before the driver accepts one more of this process; `None`
    /// while there are fewer than `max_pending`.
    ///
    /// The driver allows a fixed number in flight. It checks whether the submission with the number
    /// `seq - max_pending` has ended (`command_submission.c:allocate_cs`).
    pub(crate) fn oldest_in_flight(&self, max_pending: u32) -> Option<u64> {
        let of_dropped = self.newest_of_dropped.load(Ordering::Relaxed);
        let newest = self
            .all()
            .iter()
            .fold(of_dropped, |newest, queue| newest.max(queue.newest()));
        (newest + 1)
            .checked_sub(max_pending.into())
            .filter(|&seq| seq > 0)
    }

    /// Releases the memory that ended submissions held.
    pub(crate) fn reap(&self) {
        for queue in self.all() {
            queue.reap();
        }
    }

    /// Waits until each queue has nothing in flight.
    ///
    /// # Errors
    /// The first queue's error; the queues after it are not waited for.
    pub(crate) fn drain(&self, deadline: Deadline) -> Result<()> {
        self.all().iter().try_for_each(|queue| queue.drain(deadline))
    }

    /// As [`drain`](Self::drain), for each queue with its own timeout and whatever others fail
    /// with.
    pub(crate) fn drain_each(&self, timeout: Duration) {
        for queue in self.all() {
            // A failed submission has ended too. Its waiter receives the error.
            let _ = queue.drain(timeout.into());
        }
    }

    pub(crate) fn holds(&self, generation: u64) -> usize {
        self.all().iter().map(|queue| queue.holds(generation)).sum()
    }
}
