//! An open NIC, as endpoints share it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{DeviceId, Error, Result};
use gaudi_verbs::{Context, Pd};

use crate::ladder::Outcomes;
use crate::stats::{Counters, Stats};

/// An open NIC with a protection domain, what it was found unable to do, and its counts. A clone is the same.
#[derive(Clone)]
pub struct Nic {
    inner: Arc<Inner>,
}

struct Inner {
    pd: Pd,
    outcomes: Mutex<Outcomes>,
    counters: Counters,
}

impl Nic {
    /// Takes an open NIC.
    pub fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            inner: Arc::new(Inner {
                pd: context.alloc_pd()?,
                outcomes: Mutex::default(),
                counters: Counters::default(),
            }),
        })
    }

    /// The NIC.
    pub fn context(&self) -> &Context {
        self.inner.pd.context()
    }

    /// The domain of all its endpoints.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// What was moved so far.
    pub fn stats(&self) -> Stats {
        self.inner.counters.snapshot()
    }

    /// Why no dma-buf region of this accelerator is tried any more, where that is so.
    pub fn remembered(&self, device: DeviceId) -> Option<Error> {
        self.outcomes().find(device).cloned()
    }

    /// Forgets it: the next registration tries again. For after a driver was loaded or a switch was set anew.
    pub fn forget(&self, device: DeviceId) {
        self.outcomes().forget(device);
    }

    pub(crate) fn remember(&self, device: DeviceId, error: &Error) {
        self.outcomes().remember(device, error);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.inner.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nic({})", self.context().name())
    }
}
