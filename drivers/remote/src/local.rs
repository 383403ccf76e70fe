//! Memory of this node, as callers name it.

use std::ops::Range;
use std::sync::Arc;

use gaudi_device::{Buffer, HostBuffer, HostMapping, Location};
use gaudi_seam::{Error, ErrorKind, Result};

/// Memory of this node that is put from, got into, or offered.
#[derive(Debug, Clone)]
pub struct Local(pub(crate) Memory);

#[derive(Debug, Clone)]
pub(crate) enum Memory {
    /// Device memory, or host memory that is mapped on the device.
    Device(Location),
    /// Host memory that is not mapped on any device.
    Host(Arc<HostBuffer>, Range<usize>),
}

impl Local {
    /// Returns a range of a host buffer.
    ///
    /// # Errors
    /// `InvalidInput`: the range exceeds the buffer.
    pub fn host(buffer: &Arc<HostBuffer>, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > buffer.len() {
            return Err(Error::new(ErrorKind::InvalidInput, "Local::host")
                .because("the range leaves the buffer")
                .saw(format!("{range:?}"), format!("within 0..{}", buffer.len())));
        }
        Ok(Self(Memory::Host(Arc::clone(buffer), range)))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Memory::Device(location) => location.len(),
            Memory::Host(_, range) => range.len() as u64,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the allocation that contains the memory, and its offset there.
    pub(crate) fn allocation(&self) -> (Allocation, u64) {
        match &self.0 {
            Memory::Host(buffer, range) => (Allocation::Host(Arc::clone(buffer)), range.start as u64),
            Memory::Device(location) => Allocation::of(location),
        }
    }
}

impl From<Location> for Local {
    fn from(location: Location) -> Self {
        Self(Memory::Device(location))
    }
}

impl From<&Local> for Local {
    fn from(local: &Local) -> Self {
        local.clone()
    }
}

impl From<&Location> for Local {
    fn from(location: &Location) -> Self {
        location.clone().into()
    }
}

impl From<&Buffer> for Local {
    fn from(buffer: &Buffer) -> Self {
        Location::from(buffer).into()
    }
}

impl From<&HostMapping> for Local {
    fn from(mapping: &HostMapping) -> Self {
        Location::from(mapping).into()
    }
}

impl From<&Arc<HostBuffer>> for Local {
    fn from(buffer: &Arc<HostBuffer>) -> Self {
        Self(Memory::Host(Arc::clone(buffer), 0..buffer.len()))
    }
}

/// A whole allocation.
#[derive(Debug, Clone)]
pub(crate) enum Allocation {
    Buffer(Buffer),
    Mapping(HostMapping),
    Host(Arc<HostBuffer>),
}

impl Allocation {
    /// Returns the allocation that contains a location, and the location's offset there.
    pub(crate) fn of(location: &Location) -> (Self, u64) {
        match (location.in_device(), location.in_host()) {
            (Some((buffer, offset)), _) => (Self::Buffer(buffer.clone()), offset),
            (_, Some((mapping, offset))) => (Self::Mapping(mapping.clone()), offset),
            (None, None) => unreachable!("a location is in device or host memory"),
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Buffer(a), Self::Buffer(b)) => a.is_same(b),
            (Self::Mapping(a), Self::Mapping(b)) => a.is_same(b),
            (Self::Host(a), Self::Host(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Mapping(mapping) => mapping.len(),
            Self::Host(buffer) => buffer.len() as u64,
        }
    }

    /// Returns the name in reports.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Buffer(buffer) => buffer.device().to_string(),
            Self::Mapping(_) | Self::Host(_) => "host".to_owned(),
        }
    }
}
