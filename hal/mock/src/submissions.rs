//! The driver's records of submissions (`struct hl_fence`, `struct hl_cs`; driver context.c).

use std::collections::VecDeque;

use gaudi_seam::engine::Job;
use gaudi_seam::{Errno, QueueId};
use gaudi_spec::Asic;

use crate::sync_stream::Sob;

/// Outcomes of submissions with a timestamp that outlive their record (habanalabs.h
/// `HL_CS_OUTCOME_HISTORY_LEN`).
const OUTCOMES: usize = 256;

/// The submissions of a context.
#[derive(Debug)]
pub(crate) struct Submissions {
    pub(crate) next: u64,
    /// No submission below this is unfinished.
    pub(crate) oldest: u64,
    /// One place for each submission that can be in flight.
    pub(crate) records: Box<[Option<Record>]>,
    outcomes: VecDeque<(u64, i64, Option<Errno>)>,
    pub(crate) drops: Drops,
    /// Room for the jobs of a submission, so that none is allocated for each.
    pub(crate) jobs: Vec<Job>,
}

/// Submissions that were refused, by cause (`hl_cs_counters`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drops {
    pub(crate) parsing: u64,
    pub(crate) queue_full: u64,
    pub(crate) max_in_flight: u64,
    pub(crate) validation: u64,
}

impl Drops {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            parsing: self.parsing + other.parsing,
            queue_full: self.queue_full + other.queue_full,
            max_in_flight: self.max_in_flight + other.max_in_flight,
            validation: self.validation + other.validation,
        }
    }
}

/// `struct hl_fence`, with the fields of `struct hl_cs` that are needed.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    /// Jobs that have not ended.
    pub(crate) jobs: u32,
    /// The queue of each job that has ended.
    pub(crate) ended: Vec<QueueId>,
    pub(crate) done: bool,
    pub(crate) error: Option<Errno>,
    pub(crate) wants_timestamp: bool,
    pub(crate) timestamp: i64,
    /// The timeout, in nanoseconds.
    pub(crate) limit: u64,
    pub(crate) deadline: Deadline,
    pub(crate) resets: bool,
    pub(crate) signals: bool,
    /// The sync object that it holds while it runs, and the value that it sets or waits for.
    pub(crate) sob: Option<(Sob, u32)>,
}

/// The timeout of a submission. The driver times only the oldest one that runs (hw_queue.c
/// `hl_hw_queue_schedule_cs`, command_submission.c `cs_handle_tdr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// An older one runs.
    Unset,
    /// When the driver's timer runs out.
    At(u64),
    /// The timer ran out, without effect.
    Past,
}

/// The state of a submission that a wait observes.
pub(crate) enum Seen {
    Future,
    Running,
    /// `gone` (as in [`gaudi_seam::WaitAnswer`]): the record was reused, and the outcome was not
    /// stored or was reported before.
    Ended {
        gone: bool,
        timestamp: i64,
        error: Option<Errno>,
    },
}

impl Submissions {
    pub(crate) fn new(asic: &Asic) -> Self {
        Self {
            next: 1,
            oldest: 1,
            records: (0..asic.max_pending_cs).map(|_| None).collect(),
            outcomes: VecDeque::new(),
            drops: Drops::default(),
            jobs: Vec::new(),
        }
    }

    /// As [`new`](Self::new), in the storage of a released context.
    pub(crate) fn restart(&mut self) {
        let Self {
            next,
            oldest,
            records,
            outcomes,
            drops,
            jobs,
        } = self;
        // A submission has the place of its number.
        records
            .iter_mut()
            .take(*next as usize)
            .for_each(|record| *record = None);
        (*next, *oldest) = (1, 1);
        outcomes.clear();
        *drops = Drops::default();
        jobs.clear();
    }

    pub(crate) fn in_flight(&self) -> usize {
        // A submission has the place of its number.
        let used = self.records.iter().take(self.next as usize);
        used.flatten().filter(|record| !record.done).count()
    }

    /// The place of a submission's record.
    pub(crate) fn slot(&self, seq: u64) -> usize {
        (seq % self.records.len() as u64) as usize
    }

    pub(crate) fn record(&mut self, seq: u64) -> Option<&mut Record> {
        self.records[self.slot(seq)]
            .as_mut()
            .filter(|record| record.seq == seq)
    }

    pub(crate) fn is_signal(&mut self, seq: u64) -> bool {
        self.record(seq).is_some_and(|record| record.signals)
    }

    pub(crate) fn is_running(&mut self, seq: u64) -> bool {
        self.record(seq).is_some_and(|record| !record.done)
    }

    /// Returns the state for a wait (command_submission.c `_hl_cs_wait_ioctl`, context.c
    /// `hl_ctx_get_fence_locked`). An outcome is reported once.
    pub(crate) fn look(&mut self, seq: u64) -> Seen {
        if seq >= self.next {
            return Seen::Future;
        }
        if let Some(record) = self.record(seq) {
            return match record.done {
                true => Seen::Ended {
                    gone: false,
                    timestamp: record.timestamp,
                    error: record.error,
                },
                false => Seen::Running,
            };
        }
        let kept = self.outcomes.iter().position(|outcome| outcome.0 == seq);
        let kept = kept.and_then(|at| self.outcomes.remove(at));
        let (_, timestamp, error) = kept.unwrap_or((seq, 0, None));
        Seen::Ended {
            gone: kept.is_none(),
            timestamp,
            error,
        }
    }

    /// Ends a submission. `now` is called only if its timestamp is wanted.
    pub(crate) fn finish(&mut self, seq: u64, now: impl FnOnce() -> u64, error: Option<Errno>) {
        let Some(record) = self.record(seq).filter(|record| !record.done) else {
            // It ended before: an abort reaches submissions that are done too.
            return;
        };
        record.done = true;
        record.error = error;
        let wants_timestamp = record.wants_timestamp;
        if wants_timestamp {
            // command_submission.c `cs_do_release`: the time of the last job's end; refused and
            // aborted submissions have none.
            let timestamp = match error {
                None => crate::time::timestamp(now()),
                Some(_) => 0,
            };
            record.timestamp = timestamp;
            if self.outcomes.len() == OUTCOMES {
                self.outcomes.pop_front();
            }
            self.outcomes.push_back((seq, timestamp, error));
        }
    }

    /// Starts the timer of the oldest submission that runs, if it is not running.
    pub(crate) fn time_the_oldest(&mut self, now: impl FnOnce() -> u64) {
        while self.oldest < self.next && !self.is_running(self.oldest) {
            self.oldest += 1;
        }
        let oldest = self.oldest;
        if let Some(record) = self
            .record(oldest)
            .filter(|record| record.deadline == Deadline::Unset)
        {
            record.deadline = Deadline::At(now().saturating_add(record.limit));
        }
    }

    /// When the driver's timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let record = self.records[self.slot(self.oldest)].as_ref();
        match record
            .filter(|record| record.seq == self.oldest && !record.done)?
            .deadline
        {
            Deadline::At(then) => Some(then),
            _ => None,
        }
    }
}
