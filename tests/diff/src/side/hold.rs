//! Submissions that hold a queue, fill it, or exceed their timeout.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use gaudi_seam::{CsRequest, CsSeq, InfoRequest, QueueId, Result, SharedIo};
use gaudi_spec::gaudi2;
use gaudi_sys::Event;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{InfoOp, NotifierEvents};
use gaudi_uapi::limits::HL_MAX_JOBS_PER_CS;

use super::{Side, ended};
use crate::fixtures::{LONG, ProgramSlot, fault};
use crate::op::{OpNumber, Program};
use crate::outcome::{Outcome, word};

impl Side<'_> {
    pub(super) fn hold(
        &mut self,
        io: &SharedIo,
        number: OpNumber,
        queue: u32,
        limit: Option<u32>,
    ) -> Result<(CsSeq, Outcome)> {
        let Some((_, fixtures)) = self.open.as_ref().filter(|_| self.objects.held.is_empty()) else {
            return Ok((CsSeq(u64::MAX), Outcome::nothing_done()));
        };
        let chunk = [fixtures.holding(QueueId(queue))];
        let request = match limit {
            None => CsRequest::jobs(&chunk),
            Some(seconds) => CsRequest::jobs(&chunk)
                .with_timeout(seconds)
                .with_flags(CsFlags::SKIP_RESET_ON_TIMEOUT),
        };
        let answer = io.submit(&request)?;
        self.objects.held.push(answer.seq);
        Ok((answer.seq, self.submitted(number, answer)))
    }

    /// Fills a held queue.
    pub(super) fn fill(&mut self, io: &SharedIo, number: OpNumber, queue: u32) -> Result<Outcome> {
        let _ = self.release_held();
        let (seq, outcome) = self.hold(io, number, queue, None)?;
        let Some((_, fixtures)) = self.open.as_ref().filter(|_| seq.0 != u64::MAX) else {
            return Ok(outcome);
        };
        let chunks =
            vec![fixtures.chunk(queue, ProgramSlot::Ready(Program::Nop)); HL_MAX_JOBS_PER_CS as usize];
        let (mut taken, mut full) = (0_u32, "never".to_owned());
        for _ in 0..gaudi2::QUEUE_DEPTH / HL_MAX_JOBS_PER_CS + 1 {
            match io.submit(&CsRequest::jobs(&chunks)) {
                Ok(answer) => {
                    taken += 1;
                    self.objects.held.push(answer.seq);
                }
                Err(error) => {
                    full = word(&error);
                    break;
                }
            }
        }
        let released = self.release_held().unwrap_or_default();
        let mut outcome = outcome.number("taken", taken).word("then", full);
        outcome.fields.extend(released.fields);
        outcome.refused = released.refused;
        Ok(outcome)
    }

    pub(super) fn timeout_without_reset(
        &mut self,
        io: &SharedIo,
        number: OpNumber,
        queue: u32,
    ) -> Result<Outcome> {
        let _ = self.release_held();
        let (seq, outcome) = self.hold(io, number, queue, Some(1))?;
        if seq.0 == u64::MAX {
            return Ok(outcome);
        }
        let mut outcome = ended(outcome, io.wait_cs(seq, Duration::from_millis(1500)));
        self.objects.held.clear();
        if let Some((_, fixtures)) = &self.open {
            outcome = outcome.word("let go", Outcome::of(fixtures.open(&**io)).verdict());
            let behind = fixtures.chunk(queue, ProgramSlot::Ready(Program::Nop));
            let behind = io.submit(&CsRequest::jobs(&[behind]))?.seq;
            outcome = outcome.word("behind", Outcome::of(io.wait_cs(behind, LONG)).verdict());
            // Each completion has its own work item on an unbound work queue
            // (common/irq.c:cs_finish), so the first submission may be reported last.
            outcome = ended(outcome, io.wait_cs(seq, LONG));
        }
        Ok(outcome)
    }

    /// A program with an eventfd is notified of a timeout and can close before the driver resets
    /// the device. Waits for the submission end, too.
    pub(super) fn timeout_with_reset(
        &mut self,
        io: &SharedIo,
        number: OpNumber,
        queue: u32,
    ) -> Result<Outcome> {
        let _ = self.release_held();
        if self.objects.events.is_none() {
            let event = Event::new().map_err(fault)?;
            io.register_events(event.as_fd())?;
            self.objects.events = Some(event);
        }
        let Some((_, fixtures)) = &self.open else {
            return Ok(Outcome::nothing_done());
        };
        let chunk = [fixtures.holding(QueueId(queue))];
        let seq = io.submit(&CsRequest::jobs(&chunk).with_timeout(1))?.seq;
        let behind = [fixtures.chunk(queue, ProgramSlot::Ready(Program::Nop))];
        let restore = CsRequest {
            restore: &behind,
            ..CsRequest::jobs(&behind).with_flags(CsFlags::FORCE_RESTORE)
        };
        let (reported, asked, waited, restored) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| io.wait_cs(seq, LONG));
            let restorer = scope.spawn(|| io.submit(&restore));
            let reported = reports_timeout(io);
            // Both must return before the submission ends, which would change their answers.
            let waited = waiter
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let restored = restorer
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let asked = Outcome::of(io.wait_cs(seq, Duration::ZERO));
            let _ = fixtures.open(&**io);
            // A close while it runs causes a hard reset, so the submission gets time to end.
            std::thread::sleep(Duration::from_millis(700));
            (reported, asked, waited, restored)
        });
        let outcome = Outcome::default()
            .word("restored", Outcome::of(restored).verdict())
            .number("event reported", u32::from(reported))
            .word("asked again", asked.verdict());
        let outcome = ended(outcome, waited);
        self.objects.given.remove(&number);
        Ok(outcome)
    }
}

/// Polls for the timeout event. Returns whether it arrived.
fn reports_timeout(io: &SharedIo) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < LONG {
        let mut events = [0; 8];
        let asked = io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut events);
        let events = NotifierEvents(u64::from_le_bytes(events));
        if asked.is_ok() && events.contains(NotifierEvents::CS_TIMEOUT) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
