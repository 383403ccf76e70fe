//! Polls, waits and drains in a sequence.

use gaudi_device::Deadline;
use gaudi_seam::{ErrorKind, Operation, Result};

use crate::invariant::Invariant;
use crate::rig::Rig;

impl Rig<'_, '_> {
    /// Records the reported result of a submission, which must not change.
    pub(crate) fn end(&mut self, index: usize, how: std::result::Result<(), ErrorKind>) {
        let pending = &mut self.pending[index];
        if let Some(before) = pending.ended {
            if before.is_ok() != how.is_ok() {
                let what = format!("{:?} ended as {before:?} and then as {how:?}", pending.completion);
                self.violated(Invariant::EndsOnce, what);
            }
            return;
        }
        pending.ended = Some(how);
        let (lane, reads, writes) = (pending.lane, pending.reads, pending.writes);
        for at in self.all() {
            let Some((id, known)) = self.known(at) else {
                continue;
            };
            if Some(id) == reads {
                known.reads[lane] = known.reads[lane].saturating_sub(1);
            }
            if id == writes {
                known.writes[lane] = known.writes[lane].saturating_sub(1);
            }
            if how.is_err() {
                // The results of other copies are unknown now.
                known.content = None;
            }
        }
    }

    /// Checks the answer to a poll or a wait.
    pub(crate) fn record_answer(&mut self, index: usize, what: &str, answer: Result<bool>) {
        self.judge(what, &answer, &[Operation::WaitCs], &[]);
        let pending = &self.pending[index];
        match answer {
            Ok(true) => {
                let seq = pending.completion.sequence().unwrap_or(0);
                let record = self.run.record.lock();
                let runs = record.is_running(seq);
                drop(record);
                if runs && pending.ended.is_none() {
                    let what = format!(
                        "{:?} is reported complete, and the driver did not report its end",
                        pending.completion
                    );
                    self.violated(Invariant::EndsOnce, what);
                }
                self.end(index, Ok(()));
            }
            Ok(false) => {
                if pending.ended == Some(Ok(())) {
                    let what = format!("{:?} is reported running after its end", pending.completion);
                    self.violated(Invariant::EndsOnce, what);
                }
            }
            Err(error) => {
                let kind = error.kind();
                if matches!(kind, ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io) {
                    self.end(index, Err(kind));
                }
            }
        }
    }

    pub(crate) fn poll(&mut self, a: u16) {
        if self.pending.is_empty() {
            return;
        }
        let index = usize::from(a) % self.pending.len();
        let answer = self.pending[index].completion.poll();
        self.record_answer(index, "Completion::poll", answer);
    }

    pub(crate) fn wait(&mut self, a: u16, deadline: Deadline) {
        if self.pending.is_empty() {
            return;
        }
        let index = usize::from(a) % self.pending.len();
        let answer = match self.pending[index].completion.wait(deadline) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut && deadline != Deadline::NEVER => Ok(false),
            Err(error) => Err(error),
        };
        self.record_answer(index, "Completion::wait", answer);
    }

    pub(crate) fn drain(&mut self) {
        let answer = self.device.drain(Deadline::NEVER);
        self.judge("Device::drain", &answer, &[Operation::WaitCs], &[]);
        let drained = answer.is_ok();
        for index in 0..self.pending.len() {
            self.run.record.begin();
            let answer = self.pending[index].completion.poll();
            let refused = self.run.record.is_refused();
            if drained && matches!(answer, Ok(false)) && !refused && self.pending[index].ended.is_none() {
                let what = format!("{:?} runs after a drain", self.pending[index].completion);
                self.violated(Invariant::EndsOnce, what);
            }
            // A drain covers every submission whose failure its queue has recorded.
            if let (true, Err(error), None) = (drained, &answer, self.pending[index].ended) {
                let what = format!("Device::drain succeeded, and a submission failed: {error}");
                if !refused {
                    self.violated(Invariant::TruthfulErrors, what);
                }
            }
            self.record_answer(index, "Completion::poll", answer);
        }
        self.pending.retain(|pending| pending.ended.is_none());
        if drained {
            self.untracked_work = false;
            for at in self.all() {
                if let Some((_, known)) = self.known(at) {
                    known.untracked = false;
                }
            }
        }
    }
}
