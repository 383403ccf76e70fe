//! [`DeviceId`]: a device by its backend, index and name.

use std::fmt;

/// The kind of backend behind a [`KernelIo`](crate::KernelIo).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// The real driver.
    Kernel,
    /// The mock of the driver. Its figures are not figures of hardware.
    Mock,
    /// A recording. Its figures are not figures of hardware.
    Replay,
}

impl Backend {
    /// `kernel`, `mock` or `replay`: the first word of the spec, and the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Mock => "mock",
            Self::Replay => "replay",
        }
    }
}

/// A device, in errors and tables. Small enough to be stored inline.
///
/// Two mocks of one index and different names are two devices. `Display` gives `accel3`, `mock0`
/// or, for a mock with a name, `mock0?name=foo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The kind of backend.
    pub backend: Backend,
    /// N of `accelN`, or the mock's index in its process.
    pub index: u32,
    /// The name of a mock, as its spec has it. The second reference makes this one pointer wide.
    name: Option<&'static &'static str>,
}

impl DeviceId {
    /// A device without a name.
    pub const fn new(backend: Backend, index: u32) -> Self {
        Self {
            backend,
            index,
            name: None,
        }
    }

    pub(crate) const fn named(self, name: Option<&'static &'static str>) -> Self {
        Self { name, ..self }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            Backend::Kernel => write!(f, "accel{}", self.index),
            Backend::Mock => write!(f, "mock{}", self.index),
            Backend::Replay => write!(f, "replay{}", self.index),
        }?;
        self.name.map_or(Ok(()), |name| write!(f, "?name={name}"))
    }
}
