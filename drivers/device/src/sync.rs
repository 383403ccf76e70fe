//! Sync objects: counters in the chip by which queues wait for one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_seam::{Error, ErrorKind, Result};

use crate::context::{Context, lock};

/// A counter of 15 bits in the chip's sync manager (die core 0). A handle: a clone is the same counter.
///
/// Its value is undefined until [`Queue::set`](crate::Queue::set).
#[derive(Debug, Clone)]
pub struct Sob {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    context: Arc<Context>,
    index: u32,
    /// A submission of a dropped queue may still change it: it is not used again.
    is_retired: AtomicBool,
}

impl Sob {
    pub(crate) fn take(context: &Arc<Context>) -> Result<Self> {
        context.here("Device::sob")?;
        let mut pool = lock(&context.sync);
        let first = pool.first_sob;
        let index = pool
            .sobs
            .take(1, 1)
            .and_then(|at| u32::try_from(at).ok()?.checked_add(first))
            .ok_or_else(|| none_left(context, "Device::sob", "sync object"))?;
        drop(pool);
        context.live.sobs.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            held: Arc::new(Held {
                context: Arc::clone(context),
                index,
                is_retired: AtomicBool::new(false),
            }),
        })
    }

    /// Its number in the sync manager.
    pub fn index(&self) -> u32 {
        self.held.index
    }

    /// Keeps the counter from being used again before the node closes: a submission of a dropped
    /// queue may still change it.
    pub(crate) fn retire(&self) {
        self.held.is_retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.held.context
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.context.live.sobs.fetch_sub(1, Ordering::Relaxed);
        if self.context.owner.is_foreign() || self.is_retired.load(Ordering::Relaxed) {
            return;
        }
        let mut pool = lock(&self.context.sync);
        let at = self.index - pool.first_sob;
        pool.sobs.give(u64::from(at), 1);
    }
}

/// A monitor's number, taken for as long as its producer lives.
pub(crate) fn take_monitor(context: &Context) -> Result<u32> {
    let mut pool = lock(&context.sync);
    let first = pool.first_monitor;
    pool.monitors
        .take(1, 1)
        .and_then(|at| u32::try_from(at).ok()?.checked_add(first))
        .ok_or_else(|| none_left(context, "Queue::wait", "monitor"))
}

pub(crate) fn give_monitor(context: &Context, monitor: u32) {
    let mut pool = lock(&context.sync);
    let at = monitor - pool.first_monitor;
    pool.monitors.give(u64::from(at), 1);
}

fn none_left(context: &Context, operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Busy, operation)
        .on(context.id)
        .because(format!("every {what} is in use"))
}
