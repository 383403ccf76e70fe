//! One end of a copy.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use gaudi_seam::{DeviceVa, Result};

use crate::buffer::{Buffer, resolve};
use crate::context::Context;
use crate::host_mapping::HostMapping;

/// A range of device memory or of mapped host memory: one end of a copy. It holds the memory.
#[derive(Debug, Clone)]
pub struct Location {
    memory: Memory,
    offset: u64,
    len: u64,
}

/// Memory that the engines can access.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    Device(Buffer),
    Host(HostMapping),
}

impl Location {
    pub(crate) fn in_mapping(mapping: HostMapping, offset: u64, len: u64) -> Self {
        Self {
            memory: Memory::Host(mapping),
            offset,
            len,
        }
    }

    /// Returns the buffer and the offset of the first byte in it; `None` for host memory.
    pub fn in_device(&self) -> Option<(&Buffer, u64)> {
        match &self.memory {
            Memory::Device(buffer) => Some((buffer, self.offset)),
            Memory::Host(_) => None,
        }
    }

    /// Returns the mapping and the offset of the first byte in it; `None` for device memory.
    pub fn in_host(&self) -> Option<(&HostMapping, u64)> {
        match &self.memory {
            Memory::Host(mapping) => Some((mapping, self.offset)),
            Memory::Device(_) => None,
        }
    }

    /// Returns a part of the range, cut off where it leaves the range. Allocates nothing.
    pub fn part(&self, offset: u64, len: u64) -> Self {
        self.clone().into_part(offset, len)
    }

    /// As [`part`](Self::part), without a clone.
    #[must_use]
    pub fn into_part(self, offset: u64, len: u64) -> Self {
        let offset = offset.min(self.len);
        Self {
            offset: self.offset + offset,
            len: len.min(self.len - offset),
            ..self
        }
    }

    /// Returns the number of bytes in the range.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is host memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> DeviceVa {
        let base = match &self.memory {
            Memory::Device(buffer) => buffer.address(),
            Memory::Host(mapping) => mapping.address(),
        };
        // The range was checked against its memory, whose addresses do not wrap.
        DeviceVa(base.0.wrapping_add(self.offset))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        match &self.memory {
            Memory::Device(buffer) => buffer.context(),
            Memory::Host(mapping) => mapping.context(),
        }
    }

    /// Whether the device can access it. A close that failed may have unmapped it.
    pub fn is_mapped(&self) -> bool {
        match &self.memory {
            Memory::Device(buffer) => buffer.is_mapped(),
            Memory::Host(mapping) => mapping.is_mapped(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn into_memory(self) -> Memory {
        self.memory
    }

    /// Whether two ranges share a byte of device addresses.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.address().0, other.address().0);
        a < b.saturating_add(other.len) && b < a.saturating_add(self.len)
    }
}

impl Buffer {
    /// Returns a part of the buffer, to copy from or to.
    ///
    /// # Errors
    /// `InvalidInput`: the range leaves the buffer.
    pub fn at(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Location> {
        let (offset, len) = resolve(self.context(), "Buffer::at", "buffer", range, self.len())?;
        Ok(Location {
            memory: Memory::Device(self.clone()),
            offset,
            len,
        })
    }
}

impl HostMapping {
    /// Returns a part of the mapping, to copy from or to.
    ///
    /// # Errors
    /// `InvalidInput`: the range leaves the mapping.
    pub fn at(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Location> {
        let (offset, len) = resolve(self.context(), "HostMapping::at", "mapping", range, self.len())?;
        Ok(Location::in_mapping(self.clone(), offset, len))
    }
}

impl From<&Buffer> for Location {
    fn from(buffer: &Buffer) -> Self {
        Self {
            memory: Memory::Device(buffer.clone()),
            offset: 0,
            len: buffer.len(),
        }
    }
}

impl From<&HostMapping> for Location {
    fn from(mapping: &HostMapping) -> Self {
        Self::in_mapping(mapping.clone(), 0, mapping.len())
    }
}

impl From<&Self> for Location {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}
