//! An open NIC, as endpoints share it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{DeviceId, Error, Result};
use gaudi_verbs::{Blockers, CacheLimits, Context, Pd};

use crate::path::Outcomes;
use crate::stats::{Counters, NicStats};
use crate::watch::Watch;

/// An open NIC with a protection domain, what it was found unable to do, and its counts. A clone is
/// the same.
///
/// The domain is for this node's own requests: no region in it has remote rights. Each endpoint
/// serves its peer in a domain of its own, so that a key opens nothing through another peer's queue
/// pair.
///
/// A thread of it takes the [events](Context::get_async_event) of the context, from the first
/// endpoint on: it logs them, and ends the endpoints that one concerns. So give a context one
/// `Nic`, and let nobody else take its events: of two, either may get what concerns the other.
#[derive(Clone)]
pub struct Nic {
    inner: Arc<Inner>,
}

struct Inner {
    /// First: its regions are the domain's.
    watch: Arc<Watch>,
    pd: Pd,
    outcomes: Mutex<Outcomes>,
    counters: Counters,
}

impl Nic {
    /// Takes an open NIC. At most 1024 idle regions of buffers are kept, of any size: a region of
    /// device memory pins nothing.
    pub fn new(context: &Context) -> Result<Self> {
        let limits = CacheLimits {
            entries: 1024,
            bytes: u64::MAX,
        };
        Self::with_cache(context, limits)
    }

    /// As [`new`](Self::new), with other limits of the idle regions that are kept. With none of
    /// either the last one is kept all the same, until the next registration or the end of its
    /// buffer.
    pub fn with_cache(context: &Context, limits: CacheLimits) -> Result<Self> {
        let pd = context.alloc_pd()?;
        Ok(Self {
            inner: Arc::new(Inner {
                watch: Watch::new(&pd, limits)?,
                pd,
                outcomes: Mutex::default(),
                counters: Counters::default(),
            }),
        })
    }

    /// The NIC.
    pub fn context(&self) -> &Context {
        self.inner.pd.context()
    }

    /// Returns the domain of the queue pairs with which endpoints of this NIC request.
    pub(crate) fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// What was moved so far.
    pub fn stats(&self) -> NicStats {
        let mut stats = self.inner.counters.snapshot();
        self.inner.watch.count(&mut stats);
        stats
    }

    /// For the moment before a device is reset: deregisters all its memory of this NIC now, and
    /// says how many regions that were. Endpoints that used one fail with `DeviceLost` from then
    /// on. A region that lives, in any process, holds the reset up.
    ///
    /// Called by the NIC's own thread where a device's status is not operational any more: within
    /// 100 ms, whatever the program does. The thread starts with the first region of a buffer; it
    /// asks each open device of which the NIC has regions every 100 ms (`HL_INFO_DEVICE_STATUS`, a
    /// few microseconds), and ends with the NIC.
    ///
    /// Can take a second and more: as [`gaudi_verbs::Mr::close`] of each. Where one fails, the
    /// error is told and the thread tries again.
    pub fn revoke(&self, device: DeviceId) -> Result<usize> {
        self.inner
            .watch
            .revoke(device, "the device was given up for a reset")
    }

    /// Which regions may keep a device from closing: this NIC's exactly, those of other processes
    /// as candidates. Errors of [`Buffer::close`](gaudi_device::Buffer::close) and
    /// [`Device::close`](gaudi_device::Device::close) tell it too.
    pub fn blockers(&self, device: DeviceId) -> Blockers {
        self.inner.watch.blockers(device)
    }

    /// Why no dma-buf region of this accelerator is tried any more, where that is so.
    pub fn remembered(&self, device: DeviceId) -> Option<Error> {
        self.outcomes().find(device).cloned()
    }

    /// Forgets it: the next registration tries again. For after a driver was loaded or a switch was
    /// set anew.
    pub fn forget(&self, device: DeviceId) {
        self.outcomes().forget(device);
    }

    pub(crate) fn remember(&self, device: DeviceId, error: &Error) {
        self.outcomes().remember(device, error);
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.inner.watch
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.inner.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watch.stop();
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nic({})", self.context().name())
    }
}
