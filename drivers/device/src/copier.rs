//! The queues of `Device::copy`: one for each direction, created when they are first needed.

use std::sync::{Arc, Mutex};

use gaudi_seam::Result;

use crate::completion::Completion;
use crate::context::Context;
use crate::location::Location;
use crate::queue::Queue;
use crate::shared::{exclusive, lock};
use crate::striped::Striped;
use crate::transfer::{Direction, Transfer};

#[derive(Default)]
pub(crate) struct Copier {
    to_device: Mutex<Option<Queue>>,
    to_host: Mutex<Option<Queue>>,
    in_device: Mutex<Option<Striped>>,
}

/// Calls `work` with the value, which is created first if there is none.
fn with<T, R>(
    slot: &Mutex<Option<T>>,
    create: impl FnOnce() -> Result<T>,
    work: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    let mut slot = lock(slot);
    match &mut *slot {
        Some(value) => work(value),
        none => work(none.insert(create()?)),
    }
}

impl Copier {
    /// # Errors
    /// As [`Device::copy`](crate::Device::copy).
    pub(crate) fn copy(&self, context: &Arc<Context>, dst: &Location, src: &Location) -> Result<Completion> {
        context.check_process("copy")?;
        self.transfer(context, Transfer::copy(context, dst, src)?)
    }

    /// # Errors
    /// As [`Device::memset`](crate::Device::memset).
    pub(crate) fn memset(&self, context: &Arc<Context>, dst: &Location, pattern: u32) -> Result<Completion> {
        const OP: &str = "memset";
        context.check_process(OP)?;
        self.transfer(context, Transfer::fill(context, OP, dst, pattern)?)
    }

    fn transfer(&self, context: &Arc<Context>, transfer: Transfer<'_>) -> Result<Completion> {
        if transfer.dst.is_empty() {
            return Ok(Completion::done());
        }
        let (slot, id) = match transfer.direction {
            Direction::ToDevice => (&self.to_device, context.copy_queues.to_device),
            Direction::ToHost => (&self.to_host, context.copy_queues.to_host),
            Direction::InDevice => {
                let create = || Striped::new(context);
                return with(&self.in_device, create, |striped| striped.transfer(transfer));
            }
        };
        let create = || Queue::new(context, id);
        with(slot, create, |queue| queue.transfer_all(transfer, |_| Ok(())))
    }

    /// Drops the queues. Each drop waits for what is in flight.
    pub(crate) fn clear(&mut self) {
        *exclusive(&mut self.to_device) = None;
        *exclusive(&mut self.to_host) = None;
        *exclusive(&mut self.in_device) = None;
    }
}
