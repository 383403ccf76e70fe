//! Registration for events, and HL_IOCTL_DEBUG.

use std::os::fd::BorrowedFd;

use gaudi_seam::{DebugRequest, Errno, Operation, Result, rules};

use crate::open::Device;

impl Device {
    pub(crate) fn register_events(&self, fd: BorrowedFd<'_>) -> Result<()> {
        const OP: Operation = Operation::RegisterEvents;
        let mut state = self.enter(OP)?;
        let refuse = |rule| Err(self.refuse(OP, rule));
        let notifier = &mut state.context().notifier;
        if notifier.is_registered() {
            // habanalabs_ioctl.c `eventfd_register`
            return refuse(&rules::events::REGISTERED);
        }
        // As `eventfd_ctx_fdget`: any other descriptor is refused.
        match gaudi_sys::fd::duplicate(fd).and_then(gaudi_sys::Event::of) {
            Ok(eventfd) => notifier.register(eventfd),
            Err(_) => return refuse(&rules::events::NOT_EVENTFD),
        }
        Ok(())
    }

    pub(crate) fn unregister_events(&self) -> Result<()> {
        const OP: Operation = Operation::UnregisterEvents;
        let mut state = self.lock();
        state.settle();
        let context = state.context.as_mut();
        context
            .map_or(Err(Errno::EINVAL), |context| context.notifier.unregister())
            .map_err(|_| self.refuse(OP, &rules::events::NOT_REGISTERED))
    }

    pub(crate) fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let mut state = self.enter(Operation::Debug)?;
        let asic = state.asic;
        state
            .debugging
            .configure(asic, request)
            .map_err(|error| error.on(self.id))
    }
}
