//! [`Clock`]: the time of a NIC.

use std::time::Instant;

use gaudi_sys::clock::VirtualClock;

/// The machine's time, or the virtual time of a [`Fabric`](crate::Fabric).
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(pub(crate) Option<VirtualClock>);

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(clock) => clock.instant(),
        }
    }
}
