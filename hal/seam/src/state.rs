//! [`DriverState`]: what rules ask about the driver's state.

use gaudi_spec::addr::DeviceVa;
use gaudi_uapi::info::DeviceStatus;

use crate::request::{CbHandle, MemHandle, TsHandle};

/// The driver's state of a device and its user, as far as rules depend on it.
///
/// The mock answers from its own state, the validate layer from the operations that passed through
/// it.
pub trait DriverState {
    /// The status of the device.
    fn status(&self) -> DeviceStatus;
    /// Whether an eventfd is registered.
    fn has_eventfd(&self) -> bool;
    /// Whether the device is in debug mode.
    fn is_debugged(&self) -> bool;
    /// The number of mappings of an allocation. `None` if there is no such allocation.
    fn mappings(&self, handle: MemHandle) -> Option<u32>;
    /// The bytes of an allocation, in whole pages. `None` if there is no such allocation.
    fn allocated(&self, handle: MemHandle) -> Option<u64>;
    /// The mapping that starts at an address.
    fn mapping(&self, address: DeviceVa) -> Option<MappingState>;
    /// Whether an export of the mapping that starts at an address exists, in any process.
    fn is_exported(&self, address: DeviceVa) -> bool;
    /// A command buffer. A destroyed one exists while it is mapped or in use.
    fn buffer(&self, handle: CbHandle) -> Option<BufferState>;
    /// Whether a command buffer was destroyed.
    fn is_destroyed(&self, handle: CbHandle) -> bool;
    /// Bytes that mmap maps at an offset. `None` if there is nothing to map.
    fn mmap_len(&self, offset: u64) -> Option<u64>;
    /// Whether the user has mapped the memory at an offset.
    fn is_mmapped(&self, offset: u64) -> bool;
    /// The number of elements of a timestamps buffer.
    fn timestamps(&self, handle: TsHandle) -> Option<u32>;
    /// The highest sequence number in use. 0 if there is none.
    fn last_submission(&self) -> u64;
}

/// A mapping in the device's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingState {
    /// Bytes.
    pub size: u64,
    /// Whether it maps device memory.
    pub is_device_memory: bool,
}

/// A command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferState {
    /// The number of counters in it.
    pub counters: u64,
    /// Whether it is mapped to the device.
    pub has_device_address: bool,
}
