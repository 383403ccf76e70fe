//! Registration for events, and HL_IOCTL_DEBUG.

use std::os::fd::BorrowedFd;

use gaudi_seam::{DebugRequest, Operation, RegisterEvents, Result, UnregisterEvents, rules};

use crate::open::Device;

impl Device {
    pub(crate) fn register_events(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let mut state = self.admit(&RegisterEvents(fd))?;
        // As `eventfd_ctx_fdget`: any other descriptor is refused.
        let eventfd = gaudi_sys::fd::duplicate(fd)
            .and_then(gaudi_sys::Event::of)
            .map_err(|_| self.refuse(Operation::RegisterEvents, &rules::events::NOT_EVENTFD))?;
        state.context().notifier.register(eventfd);
        Ok(())
    }

    pub(crate) fn unregister_events(&self) -> Result<()> {
        let mut state = self.lock();
        state.settle();
        self.check_rules(&UnregisterEvents, Some(&state))?;
        state.context().notifier.unregister();
        Ok(())
    }

    pub(crate) fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let mut state = self.admit(&request)?;
        let asic = state.asic;
        state
            .debugging
            .configure(asic, request)
            .map_err(|error| error.on(self.id))
    }
}
