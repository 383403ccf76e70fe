//! [`Mock`]: a device of the mock that its owner restarts.

use std::fmt;
use std::sync::Arc;

use gaudi_model::MemoryKind;
use gaudi_seam::{Clock, KernelIo, MockSpec, NodeKind, Result};
use gaudi_sys::clock::VirtualClock;

use crate::open::{Device, Ledger};
use crate::registry::node;
use crate::time::Timekeeper;

/// A device with memory of its own, for many short runs: [`restart`](Self::restart) makes it as a
/// new one and keeps what it allocated.
///
/// No other opener finds it, whatever name its spec has. Its command buffers are private to this
/// process: mappings of register blocks and descriptors for programs are `Unsupported`. So are
/// exports of a device without descriptors.
pub struct Mock {
    device: Arc<Device>,
}

impl Mock {
    /// Makes a device.
    ///
    /// # Errors
    /// `OutOfMemory` if the host cannot provide the chip's memory.
    pub fn new(spec: &MockSpec) -> Result<Self> {
        let device = Arc::new(Device::new(spec, MemoryKind::Private)?);
        Ok(Self { device })
    }

    /// As [`new`](Self::new), with device memory in a memfd: exports work, at the price of system
    /// calls.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_descriptors(spec: &MockSpec) -> Result<Self> {
        let device = Arc::new(Device::new(spec, MemoryKind::Recorded)?);
        Ok(Self { device })
    }

    /// As [`new`](Self::new), with a virtual clock that other devices or NICs use too.
    /// [`restart`](Self::restart) does not set it back.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on_clock(spec: &MockSpec, clock: VirtualClock) -> Result<Self> {
        let mock = Self::new(spec)?;
        mock.device.lock().clock = Timekeeper::Shared(clock);
        Ok(mock)
    }

    /// The clock of a mock with `clock=virtual`. [`restart`](Self::restart) sets it back.
    pub fn clock(&self) -> Option<VirtualClock> {
        match self.device.spec.clock {
            Clock::Virtual => self.device.lock().clock.as_virtual(),
            Clock::Monotonic => None,
        }
    }

    /// Opens the compute node.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(&self) -> Result<Arc<dyn KernelIo>> {
        self.device.open_compute()?;
        Ok(node(&self.device, NodeKind::Compute))
    }

    /// Opens the control node.
    pub fn control(&self) -> Arc<dyn KernelIo> {
        node(&self.device, NodeKind::Control)
    }

    /// Makes the device as a new one. `seed` orders the chip's work if the spec has
    /// `order=stepped`.
    ///
    /// # Errors
    /// - `InUse`: the compute node is open.
    /// - `OutOfMemory`: the host does not take memory back.
    pub fn restart(&self, seed: u64) -> Result<()> {
        self.device.restart(seed)
    }

    /// What the device's user has not released.
    pub fn ledger(&self) -> Ledger {
        self.device.ledger()
    }
}

impl fmt::Debug for Mock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mock({})", self.device.spec)
    }
}
