//! Host memory through which bytes of the program are copied.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use gaudi_seam::Result;

use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::context::Context;
use crate::copier::Copier;
use crate::host_mapping::HostMapping;
use crate::location::Location;
use crate::pages::{Fallback, Memory, Pages};
use crate::shared::{exclusive, lock};

/// Staging buffers in flight at most, and kept at most.
const MOST: usize = 4;

/// Idle staging buffers.
#[derive(Default)]
pub(crate) struct Staging(Mutex<Vec<HostMapping>>);

/// Copies between staging buffers and the device, oldest first.
type InFlight = VecDeque<(Completion, HostMapping)>;

impl Staging {
    /// # Errors
    /// As [`Device::write`](crate::Device::write).
    pub(crate) fn write(
        &self,
        context: &Arc<Context>,
        copier: &Copier,
        to: &Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        context.check_process("Device::write")?;
        let whole = to.at(offset..offset.saturating_add(bytes.len() as u64))?;
        let (mut in_flight, mut at) = (InFlight::new(), 0);
        for part in bytes.chunks(context.options.staging_bytes) {
            let stage = match in_flight.len() {
                MOST => finish(context, &mut in_flight)?,
                _ => self.take(context)?,
            };
            stage.write(0, part)?;
            let len = part.len() as u64;
            context.stats.cpu_copied_bytes.add(len);
            let completion = copier.copy(context, &whole.part(at, len), &stage.at(..len)?)?;
            in_flight.push_back((completion, stage));
            at += len;
        }
        while !in_flight.is_empty() {
            self.keep(finish(context, &mut in_flight)?);
        }
        Ok(())
    }

    /// # Errors
    /// As [`Device::read`](crate::Device::read).
    pub(crate) fn read(
        &self,
        context: &Arc<Context>,
        copier: &Copier,
        from: &Buffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        context.check_process("Device::read")?;
        let whole: Location = from.at(offset..offset.saturating_add(bytes.len() as u64))?;
        let (mut in_flight, mut at) = (InFlight::new(), 0);
        for part in bytes.chunks_mut(context.options.staging_bytes) {
            while at < whole.len() && in_flight.len() < MOST {
                let rest = whole.part(at, context.options.staging_bytes as u64);
                let stage = self.take(context)?;
                let completion = copier.copy(context, &stage.at(..rest.len())?, &rest)?;
                in_flight.push_back((completion, stage));
                at += rest.len();
            }
            let stage = finish(context, &mut in_flight)?;
            stage.read(0, part)?;
            context.stats.cpu_copied_bytes.add(part.len() as u64);
            self.keep(stage);
        }
        Ok(())
    }

    fn take(&self, context: &Arc<Context>) -> Result<HostMapping> {
        if let Some(stage) = lock(&self.0).pop() {
            return Ok(stage);
        }
        allocate(context, context.options.staging_bytes)
    }

    fn keep(&self, stage: HostMapping) {
        let mut stages = lock(&self.0);
        if stages.len() < MOST {
            stages.push(stage);
        }
    }

    /// Unmaps the idle buffers.
    pub(crate) fn clear(&mut self) {
        exclusive(&mut self.0).clear();
    }
}

/// Allocates and maps host memory in pages of 4 KiB.
///
/// # Errors
/// As [`Device::alloc_host`](crate::Device::alloc_host).
pub(crate) fn allocate(context: &Arc<Context>, len: usize) -> Result<HostMapping> {
    const OP: &str = "Device::alloc_host";
    context.check_process(OP)?;
    if len == 0 {
        return Err(context.invalid(OP, "a host mapping needs at least one byte"));
    }
    let memory = Memory::new(len, Pages::Small, Fallback::Refuse).map_err(|error| error.on(context.id))?;
    HostMapping::owned(context, &Arc::new(memory), len)
}

/// Waits for the oldest copy, and returns its buffer.
fn finish(context: &Context, in_flight: &mut InFlight) -> Result<HostMapping> {
    let Some((completion, stage)) = in_flight.pop_front() else {
        unreachable!("a copy is in flight");
    };
    completion.wait(context.options.timeout)?;
    Ok(stage)
}
