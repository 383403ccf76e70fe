//! An open NIC, as endpoints share it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{DeviceId, Error, Result};
use gaudi_verbs::{Blockers, CacheLimits, Context, Pd};

use crate::path::Outcomes;
use crate::stats::{Counters, NicStats};
use crate::watch::Watch;

/// An open NIC with a protection domain, the registrations that it cannot do, and counters. A clone
/// refers to the same NIC.
///
/// The domain is for this node's own requests: no region in it has remote rights. Each endpoint
/// serves its peer in a domain of its own, so that a key opens nothing through another peer's queue
/// pair.
///
/// From the first endpoint on, a thread takes the [events](Context::get_async_event) of the
/// context: it logs them, and ends the endpoints that one concerns. Make one `Nic` of a context,
/// and do not take its events elsewhere: an event is returned once.
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
    /// Takes an open NIC. Caches at most 1024 idle regions of buffers, of any size: a region of
    /// device memory pins nothing.
    ///
    /// # Errors
    /// That of `ibv_alloc_pd` or `eventfd(2)`.
    pub fn new(context: &Context) -> Result<Self> {
        let limits = CacheLimits {
            entries: 1024,
            bytes: u64::MAX,
        };
        Self::with_cache(context, limits)
    }

    /// As [`new`](Self::new), with other limits of the cached idle regions. The last one is cached
    /// even if a limit is 0, until the next registration or the end of its buffer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
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

    /// Returns the NIC.
    pub fn context(&self) -> &Context {
        self.inner.pd.context()
    }

    /// Returns the domain of the queue pairs with which endpoints of this NIC request.
    pub(crate) fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Returns the counters.
    pub fn stats(&self) -> NicStats {
        let mut stats = self.inner.counters.snapshot();
        self.inner.watch.count(&mut stats);
        stats
    }

    /// Deregisters all memory of a device before its reset, and returns the number of regions.
    /// Endpoints that used one fail with `DeviceLost` from then on. A live region of any process
    /// delays the reset.
    ///
    /// The NIC's own thread does this within 100 ms after a device's status ceases to be
    /// operational. The thread starts with the first region of a buffer, queries each open device
    /// of which the NIC has regions every 100 ms (`HL_INFO_DEVICE_STATUS`, a few microseconds), and
    /// ends with the NIC.
    ///
    /// It can take a second or more, as [`gaudi_verbs::Mr::close`] of each region.
    ///
    /// # Errors
    /// - `Forked`: the regions belong to the parent process.
    /// - Of the first region that the NIC does not release; the thread tries again.
    pub fn revoke(&self, device: DeviceId) -> Result<usize> {
        self.inner
            .watch
            .revoke(device, "the device is lost or about to be reset")
    }

    /// Returns the regions that may keep a device from closing: this NIC's, and those of other
    /// processes as candidates. Errors of [`Buffer::close`](gaudi_device::Buffer::close) and
    /// [`Device::close`](gaudi_device::Device::close) name them too.
    pub fn blockers(&self, device: DeviceId) -> Blockers {
        self.inner.watch.blockers(device)
    }

    /// Returns why dma-buf regions of this accelerator are not tried again, if they are not.
    pub fn remembered(&self, device: DeviceId) -> Option<Error> {
        self.outcomes().find(device).cloned()
    }

    /// Forgets the failure, so that the next registration tries again: after a driver was loaded or
    /// a switch was changed.
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
