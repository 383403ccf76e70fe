//! Types of memory.

use std::fmt;

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryType {
    /// Memory of this machine, which its processors access.
    Host,
    /// Memory of a card. A processor that accesses its address faults.
    Device,
}

impl MemoryType {
    /// Returns the number in keys.
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Host => 1,
            Self::Device => 2,
        }
    }

    pub(crate) fn of_tag(tag: u8) -> Option<Self> {
        [Self::Host, Self::Device]
            .into_iter()
            .find(|kind| kind.tag() == tag)
    }
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// A set of memory types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeSet {
    /// [`MemoryType::Host`].
    pub host: bool,
    /// [`MemoryType::Device`].
    pub device: bool,
}

impl TypeSet {
    /// Both types.
    pub const BOTH: Self = Self {
        host: true,
        device: true,
    };
    /// Device memory.
    pub const DEVICE: Self = Self {
        host: false,
        device: true,
    };

    /// Whether the set has a type.
    pub fn has(self, kind: MemoryType) -> bool {
        match kind {
            MemoryType::Host => self.host,
            MemoryType::Device => self.device,
        }
    }
}

impl fmt::Display for TypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [MemoryType::Host, MemoryType::Device].into_iter();
        let names: Vec<_> = kinds
            .filter(|&kind| self.has(kind))
            .map(|kind| kind.to_string())
            .collect();
        match names.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&names.join(", ")),
        }
    }
}
