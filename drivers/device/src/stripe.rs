//! Copies within the device, spread over its internal DMA engines.
//!
//! The first engine's queue orders them: it tells the others to start by a sync object, does its own part, and waits for theirs by
//! another. So a copy begins when the one before it in that queue is done, and is done when its submission there is.

use std::sync::Arc;

use gaudi_seam::Result;
use gaudi_spec::gaudi2::queue::{EDMAS, edma};
use gaudi_spec::gaudi2::sync::SOB_MAX;

use crate::completion::Completion;
use crate::context::Context;
use crate::location::Location;
use crate::queue::{Direction, Queue};
use crate::sync::Sob;

/// The queue of copies within the device, and the other engines' once a copy is large enough for them.
pub(crate) struct Striped {
    context: Arc<Context>,
    queue: Queue,
    others: Option<Others>,
}

struct Others {
    queues: Vec<Queue>,
    /// Counts copies: the nth begins at n.
    start: Sob,
    started: u16,
    /// Counts parts of the other engines that are done.
    done: Sob,
    parts: u16,
    /// A copy ended in an error after parts of it were submitted: they end before anything else begins.
    loose: bool,
}

impl Striped {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            queue: Queue::new(context, context.queues.in_device)?,
            others: None,
        })
    }

    /// The first engine's queue, when nothing that failed is on its way any more.
    pub(crate) fn queue(&mut self) -> Result<&mut Queue> {
        if let Some(others) = &mut self.others {
            others.settle(&self.context)?;
        }
        Ok(&mut self.queue)
    }

    pub(crate) fn copy(&mut self, dst: &Location, src: &Location) -> Result<Completion> {
        let working = self.context.edma_mask.count_ones().min(EDMAS.into());
        let parts = (dst.len() / self.context.options.stripe_bytes).min(working.into());
        if parts >= 2 {
            if self.others.is_none() {
                match Others::new(&self.context, &mut self.queue) {
                    Ok(others) => self.others = Some(others),
                    // One engine does it too.
                    Err(error) => tracing::debug!("{}: no other engines: {error}", self.queue.id()),
                }
            }
            if let Some(others) = &mut self.others {
                others.settle(&self.context)?;
                return others.copy(&mut self.queue, &self.context, dst, src, parts);
            }
        }
        self.queue()?.copy_all(Direction::InDevice, dst, src, |_| Ok(()))
    }
}

impl Others {
    fn new(context: &Arc<Context>, first: &mut Queue) -> Result<Self> {
        let queues = (0..EDMAS)
            .filter(|&engine| context.edma_mask & 1 << engine != 0)
            .filter_map(|engine| edma(engine, 0))
            .filter(|&id| id != first.id())
            .map(|id| Queue::new(context, id))
            .collect::<Result<_>>()?;
        let mut others = Self {
            queues,
            start: Sob::take(context)?,
            started: 0,
            done: Sob::take(context)?,
            parts: 0,
            loose: false,
        };
        others.zero(context, first)?;
        Ok(others)
    }

    /// Waits for the parts of a copy that failed. Those that were submitted count when they are done, as those of every copy do.
    fn settle(&mut self, context: &Context) -> Result<()> {
        if self.loose {
            self.drain(context)?;
            self.loose = false;
        }
        Ok(())
    }

    fn drain(&self, context: &Context) -> Result<()> {
        let mut lanes = self.queues.iter().map(Queue::lane);
        lanes.try_for_each(|lane| lane.drain(context.options.patience.into()))
    }

    /// Counts from 0 again, when nothing is on its way.
    fn zero(&mut self, context: &Context, first: &mut Queue) -> Result<()> {
        self.drain(context)?;
        first.set(&self.start, 0)?.set(&self.done, 0)?;
        let set = match first.submit() {
            Ok(set) => set,
            Err(error) => {
                first.clear();
                return Err(error);
            }
        };
        set.wait(context.options.patience)?;
        (self.started, self.parts) = (0, 0);
        Ok(())
    }

    fn copy(
        &mut self,
        first: &mut Queue,
        context: &Context,
        dst: &Location,
        src: &Location,
        parts: u64,
    ) -> Result<Completion> {
        let room = u32::from(self.started.max(self.parts)) + u32::from(EDMAS) <= SOB_MAX;
        if !room {
            self.zero(context, first)?;
        }
        // Every part but the first begins on a cache line of the destination.
        let line = u64::from(context.asic.cache_line).max(1);
        let (share, skew) = (
            dst.len().div_ceil(parts).next_multiple_of(line),
            dst.address().0 % line,
        );
        first.set(&self.start, self.started + 1)?;
        if let Err(error) = first.submit() {
            first.clear();
            return Err(error);
        }
        self.started += 1;
        self.loose = true;
        // What no other engine takes is the first one's.
        let mut end = dst.len();
        let mut held: [Option<Completion>; EDMAS as usize] = Default::default();
        let engines = self.queues.iter_mut().zip(&mut held);
        for (begin, (queue, held)) in (1..parts).rev().map(|part| part * share - skew).zip(engines) {
            if begin >= end {
                continue;
            }
            let (to, from) = (dst.part(begin, end - begin), src.part(begin, end - begin));
            let part = queue.wait(&self.start, self.started).and_then(|queue| {
                queue.copy_all(Direction::InDevice, &to, &from, |queue| {
                    queue.signal(&self.done, 1).map(|_| ())
                })
            });
            match part {
                Ok(part) => {
                    (end, *held) = (begin, Some(part));
                    self.parts += 1;
                }
                Err(error) => {
                    queue.clear();
                    tracing::debug!("queue {}: {error}; {} takes its part", queue.id(), first.id());
                    // What it took of the part, it must not do after the first engine did.
                    queue.lane().drain(context.options.patience.into())?;
                    break;
                }
            }
        }
        let (to, from) = (dst.part(0, end), src.part(0, end));
        let (done, parts) = (&self.done, self.parts);
        let whole = first.copy_all(Direction::InDevice, &to, &from, |first| {
            if parts > 0 {
                first.wait(done, parts)?;
            }
            held.into_iter().flatten().for_each(|part| first.hold_other(part));
            Ok(())
        })?;
        self.loose = false;
        Ok(whole)
    }
}
