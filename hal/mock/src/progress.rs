//! Runs the engine and records its events.

use gaudi_seam::CsSeq;
use gaudi_seam::engine::{ChipError, EngineEvent};
use gaudi_uapi::info::MockFault;

use crate::state::State;

/// Packets, monitors and pieces of 4 KiB that DMA engines move in one slice of work. Waits execute
/// the rest, so that no program locks the device for long.
const BUDGET: u64 = 1 << 16;
/// Bytes that DMA engines move in a slice of stepped work.
const BYTES: u64 = BUDGET * 4096;

impl State {
    /// Executes until every stream is idle or blocked, or for one slice, and records what was done.
    pub(crate) fn advance(&mut self) {
        self.unfinished = self.engine.run(BUDGET);
        self.take_events();
    }

    /// Executes one packet, if any stream can. Returns the bytes that it moved.
    pub(crate) fn step_once(&mut self) -> Option<u64> {
        let moved = self.engine.step();
        self.take_events();
        moved
    }

    /// Stepped order: executes packets while `go_on` holds, for one slice.
    pub(crate) fn step_while(&mut self, go_on: impl Fn(&mut Self) -> bool) {
        self.unfinished = false;
        let mut moved = 0;
        for _ in 0..BUDGET {
            if !go_on(self) {
                return;
            }
            let Some(bytes) = self.step_once() else { return };
            moved += bytes;
            if moved >= BYTES {
                break;
            }
        }
        self.unfinished = true;
    }

    /// Stepped order: executes one packet for a poll, and packets until the submission is done for
    /// a wait, for one slice.
    pub(crate) fn progress(&mut self, seq: CsSeq, once: bool) {
        let is_running = |state: &mut Self| {
            let context = state.context.as_mut();
            context.is_some_and(|context| context.submissions.is_running(seq.0))
        };
        self.unfinished = false;
        let stepped = self.step_once();
        if stepped.is_some() && !once {
            self.step_while(is_running);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.engine.next_event() {
            match event {
                EngineEvent::Done { queue, tag } => {
                    let Some(context) = self.context.as_mut() else {
                        // Its context was released, and the reset freed its entries.
                        continue;
                    };
                    let Some(record) = context.submissions.record(tag) else {
                        // It was aborted, and a later submission has its record.
                        self.entries.free(queue);
                        continue;
                    };
                    record.jobs = record.jobs.saturating_sub(1);
                    if record.jobs > 0 {
                        record.ended.push(queue);
                    } else {
                        // irq.c `cs_finish`: the entries of all jobs at once.
                        self.entries.free(queue);
                        for queue in std::mem::take(&mut record.ended) {
                            self.entries.free(queue);
                        }
                        let (sob, clock) = (record.sob, &self.clock);
                        context.submissions.finish(tag, || clock.now_ns(), None);
                        context.submissions.time_the_oldest(|| clock.now_ns());
                        if let Some((sob, _)) = sob {
                            self.put_sob(sob);
                        }
                    }
                }
                EngineEvent::Interrupt { vector } => {
                    let now = self.clock.now_ns();
                    self.stamp(vector, now);
                    if let Some(alarm) = self.interrupts.raise(vector, now) {
                        self.alarm(alarm);
                    }
                }
                EngineEvent::QueueError {
                    queue,
                    undefined,
                    fetched,
                    text,
                } => {
                    self.queue_error(queue, undefined, fetched);
                    self.note(text);
                }
                EngineEvent::PageFault { address, text } => {
                    self.page_fault(address);
                    self.note(text);
                }
                EngineEvent::Razwi { queue, address, text } => {
                    self.razwi(queue, address);
                    self.note(text);
                }
                EngineEvent::SyncFault { dcore, address, text } => {
                    self.sync_fault(dcore, address);
                    self.note(text);
                }
                EngineEvent::Injected(error) => {
                    self.inject(match error {
                        ChipError::CorrectedEcc => MockFault::NonFatalEvent,
                        ChipError::Ecc => MockFault::FatalEvent,
                        ChipError::Heartbeat => MockFault::LossOfHeartbeat,
                    });
                }
                EngineEvent::Note(text) => self.note(text),
                other => self.note(format!("{other:?}")),
            }
        }
    }

    /// Writes the times that are registered at the lines of a vector; the time of the common line
    /// is never set (irq.c `hl_irq_user_interrupt_handler`).
    fn stamp(&mut self, vector: u16, now: u64) {
        let Some(([own, common], context)) = self.interrupts.stamped_by(vector).zip(self.context.as_mut())
        else {
            return;
        };
        context.buffers.stamp_reached(common, &mut *self.engine, 0);
        context.buffers.stamp_reached(own, &mut *self.engine, now);
    }
}
