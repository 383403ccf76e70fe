//! [`Closing`]: deregistration on a thread of its own, one per process.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gaudi_seam::{Error, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{Deadline, IgnorePoison, lock};

use crate::mr::Mr;

const OPERATION: &str = "memory region close";

/// A region that the reaper thread deregisters. Dropping this discards the result, not the work.
#[derive(Debug, Clone)]
pub struct Closing {
    slot: Arc<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    answer: Mutex<Option<Result<()>>>,
    done: Condvar,
}

impl Closing {
    /// Returns the result, once there is one.
    pub fn poll(&self) -> Option<Result<()>> {
        lock(&self.slot.answer).clone()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// That of [`Mr::close`]; `TimedOut`, after which the work continues.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let deadline = Deadline::from(timeout);
        let mut answer = lock(&self.slot.answer);
        loop {
            if let Some(answer) = &*answer {
                return answer.clone();
            }
            let left = deadline.remaining(Duration::MAX);
            if left.is_zero() {
                return Err(Error::timed_out(OPERATION));
            }
            answer = self.slot.done.wait_timeout(answer, left).ignore_poison().0;
        }
    }

    fn complete(&self, answer: Result<()>) {
        *lock(&self.slot.answer) = Some(answer);
        self.slot.done.notify_all();
    }
}

type Job = (Mr, Closing);

/// The thread's queue, and the process that it runs in: a fork child has no such thread.
static REAPER: Mutex<Option<(Sender<Job>, OwnerProcess)>> = Mutex::new(None);

impl Mr {
    /// Closes the region on the process's reaper thread, for latency-critical threads. The first
    /// call starts the thread, which closes one region after the other.
    ///
    /// The keys become invalid on that thread, not when this returns. [`Closing::wait`] and the log
    /// report a region that cannot be deregistered.
    pub fn close_later(self) -> Closing {
        let closing = Closing { slot: Arc::default() };
        let job = (self, closing.clone());
        // In a fork child the close fails at once, and another thread may hold the queue's lock
        // forever.
        if job.0.pd().context().check_process(OPERATION).is_err() {
            run_one(job);
        } else if let Err(job) = hand_over(job) {
            // There is no thread: close it here.
            run_one(job);
        }
        closing
    }
}

fn hand_over(job: Job) -> std::result::Result<(), Job> {
    let mut reaper = lock(&REAPER);
    if reaper.as_ref().is_none_or(|(_, owner)| owner.is_foreign()) {
        let (sender, jobs) = channel();
        let spawned = std::thread::Builder::new()
            .name("verbs-reaper".to_owned())
            .spawn(move || jobs.into_iter().for_each(run_one));
        if spawned.is_err() {
            return Err(job);
        }
        *reaper = Some((sender, OwnerProcess::current()));
    }
    match &*reaper {
        Some((sender, _)) => sender.send(job).map_err(|unsent| unsent.0),
        None => Err(job),
    }
}

fn run_one((mr, closing): Job) {
    // Dropping a region that did not close tries again and logs.
    let answer = mr.close().map_err(Error::from);
    closing.complete(answer);
}
