//! Submissions that wait, fill a queue, or come too late.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use gaudi_seam::{CsRequest, CsSeq, InfoRequest, QueueId, Result, SharedIo};
use gaudi_spec::gaudi2;
use gaudi_sys::Event;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{InfoOp, NotifierEvents};
use gaudi_uapi::limits::HL_MAX_JOBS_PER_CS;

use super::{Side, ended};
use crate::bench::{LONG, Place, fault};
use crate::op::{Number, Program};
use crate::outcome::{Outcome, word};

impl Side<'_> {
    pub(super) fn hold(
        &mut self,
        io: &SharedIo,
        number: Number,
        queue: u32,
        limit: Option<u32>,
    ) -> Result<(CsSeq, Outcome)> {
        let Some((_, bench)) = self.open.as_ref().filter(|_| self.book.held.is_empty()) else {
            return Ok((CsSeq(u64::MAX), Outcome::nothing()));
        };
        let chunk = [bench.holding(QueueId(queue))];
        let request = match limit {
            None => CsRequest::jobs(&chunk),
            Some(seconds) => CsRequest::jobs(&chunk)
                .with_timeout(seconds)
                .with_flags(CsFlags::SKIP_RESET_ON_TIMEOUT),
        };
        let answer = io.submit(&request)?;
        self.book.held.push(answer.seq);
        Ok((answer.seq, self.submitted(number, answer)))
    }

    /// Fills a queue that is held.
    pub(super) fn fill(&mut self, io: &SharedIo, number: Number, queue: u32) -> Result<Outcome> {
        let _ = self.let_go();
        let (seq, outcome) = self.hold(io, number, queue, None)?;
        let Some((_, bench)) = self.open.as_ref().filter(|_| seq.0 != u64::MAX) else {
            return Ok(outcome);
        };
        let chunks = vec![bench.chunk(queue, Place::Ready(Program::Nop)); HL_MAX_JOBS_PER_CS as usize];
        let (mut taken, mut full) = (0_u32, "never".to_owned());
        for _ in 0..gaudi2::QUEUE_DEPTH / HL_MAX_JOBS_PER_CS + 1 {
            match io.submit(&CsRequest::jobs(&chunks)) {
                Ok(answer) => {
                    taken += 1;
                    self.book.held.push(answer.seq);
                }
                Err(error) => {
                    full = word(&error);
                    break;
                }
            }
        }
        let went = self.let_go().unwrap_or_default();
        let mut outcome = outcome.number("taken", taken).word("then", full);
        outcome.fields.extend(went.fields);
        outcome.refused = went.refused;
        Ok(outcome)
    }

    pub(super) fn late(&mut self, io: &SharedIo, number: Number, queue: u32) -> Result<Outcome> {
        let _ = self.let_go();
        let (seq, outcome) = self.hold(io, number, queue, Some(1))?;
        if seq.0 == u64::MAX {
            return Ok(outcome);
        }
        let mut outcome = ended(outcome, io.wait_cs(seq, Duration::from_millis(1500)));
        self.book.held.clear();
        if let Some((_, bench)) = &self.open {
            outcome = outcome.word("let go", Outcome::of(bench.open(&**io)).verdict());
            let behind = bench.chunk(queue, Place::Ready(Program::Nop));
            let behind = io.submit(&CsRequest::jobs(&[behind]))?.seq;
            outcome = outcome.word("behind", Outcome::of(io.wait_cs(behind, LONG)).verdict());
            // Each completion is told by a work item of its own on an unbound queue (common/irq.c:120): the first may be told after the second.
            outcome = ended(outcome, io.wait_cs(seq, LONG));
        }
        Ok(outcome)
    }

    /// A user who hears of events is told of a submission that is late, and has time to go before the device is reset. Whoever waits for it
    /// meanwhile is told too.
    pub(super) fn expire(&mut self, io: &SharedIo, number: Number, queue: u32) -> Result<Outcome> {
        let _ = self.let_go();
        if self.book.events.is_none() {
            let event = Event::new().map_err(fault)?;
            io.register_events(event.as_fd())?;
            self.book.events = Some(event);
        }
        let Some((_, bench)) = &self.open else {
            return Ok(Outcome::nothing());
        };
        let chunk = [bench.holding(QueueId(queue))];
        let seq = io.submit(&CsRequest::jobs(&chunk).with_timeout(1))?.seq;
        let behind = [bench.chunk(queue, Place::Ready(Program::Nop))];
        let restore = CsRequest {
            restore: &behind,
            ..CsRequest::jobs(&behind).with_flags(CsFlags::FORCE_RESTORE)
        };
        let (told, asked, waited, restored) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| io.wait_cs(seq, LONG));
            let restorer = scope.spawn(|| io.submit(&restore));
            let told = hears_of_timeout(io);
            // Both are told before the submission ends after all, which would be another answer.
            let waited = waiter
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let restored = restorer
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let asked = Outcome::of(io.wait_cs(seq, Duration::ZERO));
            let _ = bench.open(&**io);
            // Who closes while it still runs meets a hard reset, so it gets the time to end.
            std::thread::sleep(Duration::from_millis(700));
            (told, asked, waited, restored)
        });
        let outcome = Outcome::default()
            .word("restored", Outcome::of(restored).verdict())
            .number("told", u32::from(told))
            .word("asked again", asked.verdict());
        let outcome = ended(outcome, waited);
        self.book.given.remove(&number);
        Ok(outcome)
    }
}

/// Looks for the event of a submission that is late, for a while.
fn hears_of_timeout(io: &SharedIo) -> bool {
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
