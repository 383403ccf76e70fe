//! Copies within the device, spread over its internal DMA engines.
//!
//! The first engine's queue orders them. It starts the others by a sync object, does its own part,
//! and waits for theirs by another sync object. So a copy begins when the one before it in that
//! queue is done, and is done when its submission there is.

use std::sync::Arc;

use gaudi_seam::{QueueId, Result};

use crate::completion::Completion;
use crate::context::Context;
use crate::location::Location;
use crate::queue::Queue;
use crate::sob::Sob;
use crate::transfer::{Direction, Source, Transfer};

/// The queue of copies within the device, and those of the other engines once a copy is large
/// enough.
pub(crate) struct Striped {
    context: Arc<Context>,
    queue: Queue,
    others: Option<Others>,
}

struct Others {
    queues: Vec<Queue>,
    /// Counts copies: copy n begins at n.
    start: Sob,
    started: u16,
    /// Counts parts of the other engines that are done.
    done: Sob,
    parts: u16,
    /// The parts of the copy that is built, reused for its capacity.
    built: Vec<Completion>,
    /// A copy failed after parts of it were submitted. They end before anything else begins.
    is_dirty: bool,
}

impl Striped {
    /// # Errors
    /// As [`Queue::new`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            queue: Queue::new(context, context.copy_queues.in_device[0])?,
            others: None,
        })
    }

    /// Copies, or fills with the first engine.
    ///
    /// # Errors
    /// As [`Device::copy`](crate::Device::copy).
    pub(crate) fn transfer(&mut self, transfer: Transfer<'_>) -> Result<Completion> {
        let Transfer { dst, source, .. } = transfer;
        let engines = &self.context.copy_queues.in_device;
        let parts = (dst.len() / self.context.options.stripe_bytes).min(engines.len() as u64);
        let copied = match source {
            Source::Memory(src) if parts >= 2 => Some(src),
            _ => None,
        };
        if copied.is_some() && self.others.is_none() {
            match Others::new(&self.context, &engines[1..], &mut self.queue) {
                Ok(others) => self.others = Some(others),
                // One engine can copy all.
                Err(error) => tracing::debug!("{}: no other engines: {error}", self.queue.id()),
            }
        }
        if let Some(others) = &mut self.others {
            others.settle()?;
            if let Some(src) = copied {
                return others.copy(&mut self.queue, &self.context, dst, src, parts);
            }
        }
        self.queue.transfer_all(transfer, |_| Ok(()))
    }
}

/// A part of a checked copy.
fn in_device<'a>(dst: &'a Location, src: &'a Location) -> Transfer<'a> {
    Transfer {
        dst,
        source: Source::Memory(src),
        direction: Direction::InDevice,
    }
}

/// Submits, and discards the commands on an error.
fn submit_or_clear(queue: &mut Queue) -> Result<Completion> {
    queue.submit().inspect_err(|_| queue.clear())
}

impl Others {
    fn new(context: &Arc<Context>, engines: &[QueueId], first: &mut Queue) -> Result<Self> {
        let queues = engines.iter().map(|&id| Queue::new(context, id));
        let mut others = Self {
            queues: queues.collect::<Result<_>>()?,
            start: Sob::take(context)?,
            started: 0,
            done: Sob::take(context)?,
            parts: 0,
            built: Vec::with_capacity(engines.len()),
            is_dirty: false,
        };
        others.zero(context, first)?;
        Ok(others)
    }

    /// Waits for the parts of a failed copy. Those that were submitted count when they are done.
    fn settle(&mut self) -> Result<()> {
        if self.is_dirty {
            self.drain()?;
            self.is_dirty = false;
        }
        Ok(())
    }

    fn drain(&self) -> Result<()> {
        self.queues.iter().try_for_each(Queue::drain)
    }

    /// Resets both counters when nothing is in flight.
    fn zero(&mut self, context: &Context, first: &mut Queue) -> Result<()> {
        self.drain()?;
        first.set(&self.start, 0)?.set(&self.done, 0)?;
        submit_or_clear(first)?.wait(context.options.timeout)?;
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
        let engines = self.queues.len() as u32 + 1;
        if u32::from(self.started.max(self.parts)) + engines > context.encoder.sizes().sob_max {
            self.zero(context, first)?;
        }
        // Every part but the first begins on a cache line of the destination.
        let line = u64::from(context.asic.cache_line).max(1);
        let (share, skew) = (
            dst.len().div_ceil(parts).next_multiple_of(line),
            dst.address().0 % line,
        );
        first.set(&self.start, self.started + 1)?;
        // The last submission of the copy covers this one.
        let _ = submit_or_clear(first)?;
        self.started += 1;
        self.is_dirty = true;
        self.built.clear();
        // The first engine copies what no other does.
        let mut end = dst.len();
        let begins = (1..parts).rev().map(|part| part * share - skew);
        for (begin, queue) in begins.zip(&mut self.queues) {
            if begin >= end {
                continue;
            }
            let (to, from) = (dst.part(begin, end - begin), src.part(begin, end - begin));
            let part = queue.wait(&self.start, self.started).and_then(|queue| {
                queue.transfer_all(in_device(&to, &from), |queue| {
                    queue.signal(&self.done, 1).map(drop)
                })
            });
            match part {
                Ok(part) => {
                    end = begin;
                    self.built.push(part);
                    self.parts += 1;
                }
                Err(error) => {
                    queue.clear();
                    tracing::debug!("queue {}: {error}; {} copies its part", queue.id(), first.id());
                    // It must not write what it accepted of the part after the first engine did.
                    queue.drain()?;
                    break;
                }
            }
        }
        let (to, from) = (dst.part(0, end), src.part(0, end));
        let (done, parts, built) = (&self.done, self.parts, &mut self.built);
        let whole = first.transfer_all(in_device(&to, &from), |first| {
            if parts > 0 {
                first.wait(done, parts)?;
            }
            built.drain(..).for_each(|part| first.hold_other(part));
            Ok(())
        })?;
        self.is_dirty = false;
        Ok(whole)
    }
}
