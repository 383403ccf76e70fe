//! Sync objects: counters in the chip that queues set and wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_seam::Result;

use crate::context::Context;

/// A 15-bit counter in the chip's sync manager (die core 0). A clone is the same counter.
///
/// Its value is undefined until [`Queue::set`](crate::Queue::set).
#[derive(Debug, Clone)]
pub struct Sob {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    index: u32,
    /// A submission of a dropped queue may still change it: it is not used again.
    is_retired: AtomicBool,
}

impl Sob {
    /// # Errors
    /// `Forked`, or `Busy` if every sync object is in use.
    pub(crate) fn take(context: &Arc<Context>) -> Result<Self> {
        const OP: &str = "Device::sob";
        context.check_process(OP)?;
        let index = context.sobs.take(OP)?;
        context.live.sobs.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            shared: Arc::new(Shared {
                context: Arc::clone(context),
                index,
                is_retired: AtomicBool::new(false),
            }),
        })
    }

    /// Returns its number in the sync manager.
    pub fn index(&self) -> u32 {
        self.shared.index
    }

    /// Keeps the counter from being used again before the node closes: a submission of a dropped
    /// queue may still change it.
    pub(crate) fn retire(&self) {
        self.shared.is_retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.context.live.sobs.fetch_sub(1, Ordering::Relaxed);
        if !self.context.owner.is_foreign() && !self.is_retired.load(Ordering::Relaxed) {
            self.context.sobs.release(self.index);
        }
    }
}
