//! [`DriverState`]: the driver's state that rules depend on.

use gaudi_spec::addr::DeviceVa;
use gaudi_uapi::info::DeviceStatus;

use crate::request::{CbHandle, MemHandle, TsHandle};

/// The driver's state for a device and its user, as far as rules depend on it.
///
/// The mock answers from its own state, the validate layer from the operations that it has seen.
pub trait DriverState {
    /// Returns the status of the device.
    fn status(&self) -> DeviceStatus;
    /// Returns whether an eventfd is registered.
    fn has_eventfd(&self) -> bool;
    /// Returns whether the device is in debug mode.
    fn is_debugged(&self) -> bool;
    /// Returns the number of mappings of an allocation, or `None` if the handle is unknown.
    fn mappings(&self, handle: MemHandle) -> Option<u32>;
    /// Returns the size of an allocation in bytes, rounded up to pages, or `None` if the handle is
    /// unknown.
    fn allocated(&self, handle: MemHandle) -> Option<u64>;
    /// Returns the mapping that starts at an address.
    fn mapping(&self, address: DeviceVa) -> Option<MappingState>;
    /// Returns whether any process holds an export of the mapping that starts at an address.
    fn is_exported(&self, address: DeviceVa) -> bool;
    /// Returns a command buffer. A destroyed buffer exists while it is mapped or in use.
    fn buffer(&self, handle: CbHandle) -> Option<BufferState>;
    /// Returns whether a command buffer was destroyed.
    fn is_destroyed(&self, handle: CbHandle) -> bool;
    /// Returns the number of bytes that mmap(2) maps at an offset, or `None` if nothing can be
    /// mapped there.
    fn mmap_len(&self, offset: u64) -> Option<u64>;
    /// Returns whether the user has mapped the memory at an offset.
    fn is_mmapped(&self, offset: u64) -> bool;
    /// Returns the number of elements of a timestamps buffer.
    fn timestamps(&self, handle: TsHandle) -> Option<u32>;
    /// Returns the highest sequence number submitted, or 0 if nothing was submitted.
    fn last_submission(&self) -> u64;
}

/// A mapping in the device's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingState {
    /// Size in bytes.
    pub size: u64,
    /// Whether the mapping is of device memory (otherwise host memory).
    pub is_device_memory: bool,
}

/// A command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferState {
    /// The number of counters in the buffer.
    pub counters: u64,
    /// Whether the buffer is mapped on the device.
    pub has_device_address: bool,
}
