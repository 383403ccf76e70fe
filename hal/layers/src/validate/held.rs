//! The objects that a program holds, for people and tests.

use std::fmt;

use gaudi_seam::{CbHandle, DeviceVa, HostVa, MemHandle};
use gaudi_sys::PAGE;

/// An allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAllocation {
    /// Its handle.
    pub handle: MemHandle,
    /// Requested bytes.
    pub size: u64,
    /// Bytes that the driver allocated: whole pages.
    pub whole: u64,
    /// The number of its mappings.
    pub mappings: u32,
}

/// A mapping in the device's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldMapping {
    /// The device address.
    pub address: DeviceVa,
    /// Bytes.
    pub size: u64,
    /// The mapped memory.
    pub of: Mapped,
    /// The number of its exports. The layer does not see when they end.
    pub exports: u32,
}

/// The memory of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// Device memory, by its handle.
    Device(MemHandle),
    /// Host memory, by its first byte.
    Host(HostVa),
    /// A dma-buf of another exporter.
    Import,
}

/// A command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBuffer {
    /// Its handle.
    pub handle: CbHandle,
    /// Requested bytes.
    pub size: u32,
    /// Whether it is mapped to the device.
    pub map_to_device: bool,
    /// The device address, once it was queried.
    pub device_va: Option<DeviceVa>,
}

impl HeldBuffer {
    /// Bytes that the driver allocated.
    pub(super) fn whole(&self) -> u64 {
        u64::from(self.size).max(1).next_multiple_of(PAGE)
    }
}

/// The objects that a program has not released.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leaks {
    /// Device memory.
    pub allocations: Vec<HeldAllocation>,
    /// Mappings of device and host memory.
    pub mappings: Vec<HeldMapping>,
    /// Command buffers.
    pub buffers: Vec<HeldBuffer>,
}

impl Leaks {
    /// Whether everything was released.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty() && self.mappings.is_empty() && self.buffers.is_empty()
    }
}

impl fmt::Display for Leaks {
    /// Prints one line: the number of each kind, and the first of each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(first) = self.allocations.first() {
            let bytes: u128 = self.allocations.iter().map(|a| u128::from(a.size)).sum();
            let (count, handle) = (self.allocations.len(), first.handle.0);
            parts.push(format!(
                "{count} allocations of {bytes} bytes in all (first: handle {handle})"
            ));
        }
        if let Some(first) = self.mappings.first() {
            let count = self.mappings.len();
            parts.push(format!("{count} mappings (first: {})", first.address));
        }
        if let Some(first) = self.buffers.first() {
            let count = self.buffers.len();
            parts.push(format!("{count} command buffers (first: {:#x})", first.handle.0));
        }
        match parts.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}
