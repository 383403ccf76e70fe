//! The mock's answers to the driver's rules on state.

use std::time::Duration;

use gaudi_seam::{BufferState, CbHandle, DeviceVa, DriverState, MappingState, MemHandle, TsHandle};
use gaudi_uapi::info::DeviceStatus;

use crate::address_space::{Exported, Mapping};
use crate::state::State;

impl DriverState for State {
    fn status(&self) -> DeviceStatus {
        self.status
    }

    fn has_eventfd(&self) -> bool {
        let mut context = self.context.iter();
        context.any(|context| context.notifier.is_registered())
    }

    fn is_debugged(&self) -> bool {
        self.debugging.on
    }

    fn mappings(&self, handle: MemHandle) -> Option<u32> {
        let allocation = self.allocations.get(&low_half(handle))?;
        Some(allocation.mapped)
    }

    fn allocated(&self, handle: MemHandle) -> Option<u64> {
        let allocation = self.allocations.get(&low_half(handle))?;
        Some(allocation.bytes(self.asic))
    }

    fn mapping(&self, address: DeviceVa) -> Option<MappingState> {
        let (size, is_device_memory) = match self.context.as_ref()?.mappings.get(&address.0)? {
            Mapping::Device { handle, .. } => (self.mapped(*handle).bytes(self.asic), true),
            Mapping::Host { len, .. } => (*len, false),
        };
        Some(MappingState {
            size,
            is_device_memory,
        })
    }

    fn is_exported(&self, address: DeviceVa) -> bool {
        let mapping = self
            .context
            .as_ref()
            .and_then(|context| context.mappings.get(&address.0));
        let Some(Mapping::Device { exports, .. }) = mapping else {
            return false;
        };
        let memory = self.engine.memory_file();
        // A reader of `/proc/PID/fdinfo` holds a real dma-buf for a moment, or for a time slice if
        // it is preempted there: look again after 0, 1, 2, 4, … 32 ms.
        let is_real = exports.iter().any(|export| matches!(export, Exported::Real(_)));
        (0..if is_real { 7 } else { 1 }).all(|look: u32| {
            std::thread::sleep(Duration::from_millis((1 << look) / 2));
            exports.iter().any(|export| export.is_held(memory))
        })
    }

    fn buffer(&self, handle: CbHandle) -> Option<BufferState> {
        let (_, buffer) = self.context.as_ref()?.buffers.find(handle)?;
        Some(BufferState {
            counters: buffer.counters,
            has_device_address: buffer.mapped_to_device,
        })
    }

    fn is_destroyed(&self, handle: CbHandle) -> bool {
        let found = self
            .context
            .as_ref()
            .and_then(|context| context.buffers.find(handle));
        found.is_some_and(|(_, buffer)| buffer.destroyed)
    }

    fn mmap_len(&self, offset: u64) -> Option<u64> {
        let memory = self.context.as_ref()?.buffers.user_memory(CbHandle(offset))?;
        Some(memory.len())
    }

    fn is_mmapped(&self, offset: u64) -> bool {
        let context = self.context.as_ref();
        let found = context.and_then(|context| context.buffers.user_memory(CbHandle(offset)));
        found.is_some_and(|memory| memory.is_mapped())
    }

    fn timestamps(&self, handle: TsHandle) -> Option<u32> {
        let (_, timestamps) = self.context.as_ref()?.buffers.timestamps(handle.0)?;
        Some(timestamps.elements)
    }

    fn last_submission(&self) -> u64 {
        let context = self.context.as_ref();
        context.map_or(0, |context| context.submissions.next - 1)
    }
}

/// The number of an allocation: the driver ignores the upper half of the handle
/// (memory.c:free_device_memory).
pub(crate) fn low_half(handle: MemHandle) -> u32 {
    handle.0 as u32
}
