//! Deregistering off the latency path: one thread a process, started by the first region that is to be closed later.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gaudi_seam::{Error, Result};
use gaudi_sys::fork::OwnerProcess;

use crate::mr::Mr;

const OPERATION: &str = "memory region close";

/// A region that is being deregistered elsewhere. Dropping it forgets the answer, not the work.
#[derive(Debug, Clone)]
pub struct Closing {
    slot: Arc<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    answer: Mutex<Option<Result<()>>>,
    told: Condvar,
}

impl Closing {
    /// The answer, once there is one.
    pub fn poll(&self) -> Option<Result<()>> {
        self.slot
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for the answer: that of [`Mr::close`], or `TimedOut`, after which the work goes on.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        let mut answer = self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = &*answer {
                return answer.clone();
            }
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Error::timed_out(OPERATION));
            }
            answer = self
                .slot
                .told
                .wait_timeout(answer, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn tell(&self, answer: Result<()>) {
        *self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.slot.told.notify_all();
    }
}

type Job = (Mr, Closing);

/// The thread's inbox, and the process that it runs in: a fork child has the inbox and not the thread.
static REAPER: Mutex<Option<(Sender<Job>, OwnerProcess)>> = Mutex::new(None);

pub(crate) fn close_later(mr: Mr) -> Closing {
    let closing = Closing { slot: Arc::default() };
    if mr.pd().context().check_process(OPERATION).is_err() {
        // A fork child: the answer is at hand, and the thread's inbox may be locked by who does not exist here.
        run_one((mr, closing.clone()));
        return closing;
    }
    if let Err((mr, closing)) = hand_over((mr, closing.clone())) {
        // No thread is to be had: late is better than never.
        run_one((mr, closing));
    }
    closing
}

fn hand_over(job: Job) -> std::result::Result<(), Job> {
    let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
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
    let answer = match mr.close() {
        Ok(()) => Ok(()),
        Err((mr, error)) => {
            // Dropping tries once more and logs.
            drop(mr);
            Err(error)
        }
    };
    closing.tell(answer);
}
