//! What a program holds, as it is told to people and tests.

use std::fmt;

use gaudi_seam::{CbHandle, DeviceVa, HostVa, MemHandle};

/// Host pages, of which command buffers and exports are made.
pub(super) const PAGE: u64 = 4096;

/// An allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAllocation {
    /// Its handle.
    pub handle: MemHandle,
    /// Bytes that were asked for.
    pub size: u64,
    /// How many mappings it has.
    pub mappings: u32,
}

/// A mapping in the device's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldMapping {
    /// Where the device sees it.
    pub address: DeviceVa,
    /// Bytes.
    pub size: u64,
    /// What is mapped.
    pub of: Mapped,
    /// How many dma-bufs were made of it. Their ends are not seen.
    pub exports: u32,
}

/// What a mapping maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// Device memory; the handle.
    Device(MemHandle),
    /// Host memory; its first byte.
    Host(HostVa),
    /// A dma-buf of another exporter.
    Import,
}

/// A command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBuffer {
    /// Its handle.
    pub handle: CbHandle,
    /// Bytes that were asked for.
    pub size: u32,
    /// Whether the device sees it.
    pub map_to_device: bool,
    /// Where the device sees it, once that was asked.
    pub device_va: Option<DeviceVa>,
}

impl HeldBuffer {
    /// Bytes that the driver made of those asked for.
    pub(super) fn whole(&self) -> u64 {
        u64::from(self.size).max(1).next_multiple_of(PAGE)
    }
}

/// What a program has not given back.
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
    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty() && self.mappings.is_empty() && self.buffers.is_empty()
    }
}

impl fmt::Display for Leaks {
    /// One line: how many of each, and the first of each by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        let mut separator = "";
        if let Some(first) = self.allocations.first() {
            let (count, bytes) = (
                self.allocations.len(),
                self.allocations.iter().map(|a| u128::from(a.size)).sum::<u128>(),
            );
            write!(
                f,
                "{count} allocations of {bytes} bytes in all (first: handle {})",
                first.handle.0
            )?;
            separator = ", ";
        }
        if let Some(first) = self.mappings.first() {
            write!(
                f,
                "{separator}{} mappings (first: {})",
                self.mappings.len(),
                first.address
            )?;
            separator = ", ";
        }
        if let Some(first) = self.buffers.first() {
            write!(
                f,
                "{separator}{} command buffers (first: {:#x})",
                self.buffers.len(),
                first.handle.0
            )?;
        }
        Ok(())
    }
}
