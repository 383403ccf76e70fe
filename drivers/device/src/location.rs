//! One end of a copy.

use gaudi_seam::DeviceVa;

use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::context::Context;
use crate::host::HostMapping;
use crate::sync::Sob;
use std::sync::Arc;

/// A range of device memory or of mapped host memory: one end of a copy. It holds what it lies in.
#[derive(Debug, Clone)]
pub struct Location {
    place: Place,
    offset: u64,
    len: u64,
}

#[derive(Debug, Clone)]
enum Place {
    Device(Buffer),
    Host(HostMapping),
}

/// What a submission needs until it is done.
#[derive(Debug)]
pub(crate) enum Keep {
    Device(Buffer),
    Host {
        mapping: HostMapping,
    },
    /// Another queue's part of the work, done when this is.
    Other(Completion),
    /// Held, so that nobody else gets the sync object.
    Sob {
        sob: Sob,
    },
}

impl Location {
    pub(crate) fn in_buffer(buffer: &Buffer, offset: u64, len: u64) -> Self {
        Self {
            place: Place::Device(buffer.clone()),
            offset,
            len,
        }
    }

    pub(crate) fn in_mapping(mapping: &HostMapping, offset: u64, len: u64) -> Self {
        Self {
            place: Place::Host(mapping.clone()),
            offset,
            len,
        }
    }

    /// The buffer that it lies in and its first byte there, where it is device memory.
    pub fn in_device(&self) -> Option<(&Buffer, u64)> {
        match &self.place {
            Place::Device(buffer) => Some((buffer, self.offset)),
            Place::Host(_) => None,
        }
    }

    /// The mapping that it lies in and its first byte there, where it is host memory.
    pub fn in_host(&self) -> Option<(&HostMapping, u64)> {
        match &self.place {
            Place::Host(mapping) => Some((mapping, self.offset)),
            Place::Device(_) => None,
        }
    }

    /// A part of the range; what leaves it is cut off. Allocates nothing.
    pub fn part(&self, offset: u64, len: u64) -> Self {
        let offset = offset.min(self.len);
        Self {
            place: self.place.clone(),
            offset: self.offset + offset,
            len: len.min(self.len - offset),
        }
    }

    /// Bytes in the range.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// Where the device sees the first byte.
    pub fn address(&self) -> DeviceVa {
        let base = match &self.place {
            Place::Device(buffer) => buffer.address(),
            Place::Host(mapping) => mapping.address(),
        };
        // The range was checked against its memory, whose addresses do not wrap.
        DeviceVa(base.0.wrapping_add(self.offset))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        match &self.place {
            Place::Device(buffer) => buffer.context(),
            Place::Host(mapping) => mapping.context(),
        }
    }

    /// Whether the device reaches it.
    pub(crate) fn is_mapped(&self) -> bool {
        match &self.place {
            Place::Device(buffer) => buffer.is_mapped(),
            Place::Host(mapping) => mapping.is_mapped(),
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        match &self.place {
            Place::Device(buffer) => Keep::Device(buffer.clone()),
            Place::Host(mapping) => Keep::Host {
                mapping: mapping.clone(),
            },
        }
    }

    /// Whether two ranges share a byte of device addresses.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.address().0, other.address().0);
        a < b.saturating_add(other.len) && b < a.saturating_add(self.len)
    }
}

impl From<&Buffer> for Location {
    fn from(buffer: &Buffer) -> Self {
        Self::in_buffer(buffer, 0, buffer.len())
    }
}

impl From<&HostMapping> for Location {
    fn from(mapping: &HostMapping) -> Self {
        Self::in_mapping(mapping, 0, mapping.len())
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}
