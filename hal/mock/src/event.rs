//! Registration for events, and HL_IOCTL_DEBUG.

use std::os::fd::BorrowedFd;

use gaudi_seam::{DebugRequest, Errno, Error, Result};

use crate::open::Device;

impl Device {
    pub(crate) fn register_events(&self, fd: BorrowedFd<'_>) -> Result<()> {
        const OP: &str = "HL_INFO_REGISTER_EVENTFD";
        let mut state = self.enter(OP)?;
        let refuse = |why: &str| Err(self.refusal(OP, Errno::EINVAL).because(why.to_owned()));
        let notifier = &mut state.context().notifier;
        if notifier.is_registered() {
            // habanalabs_ioctl.c `eventfd_register`
            return refuse("an eventfd is registered already");
        }
        // As `eventfd_ctx_fdget`: any other descriptor is refused.
        match gaudi_sys::fd::duplicate(fd).and_then(gaudi_sys::Event::of) {
            Ok(eventfd) => notifier.register(eventfd),
            Err(_) => return refuse("the descriptor is not an eventfd"),
        }
        Ok(())
    }

    pub(crate) fn unregister_events(&self) -> Result<()> {
        const OP: &str = "HL_INFO_UNREGISTER_EVENTFD";
        let mut state = self.lock();
        state.settle();
        let context = state.context.as_mut();
        context
            .map_or(Err(Errno::EINVAL), |context| context.notifier.unregister())
            .map_err(|errno| self.refusal(OP, errno).because("no eventfd is registered"))
    }

    /// The refusal of an operation that only the compute node has (habanalabs_ioctl.c `hl_info_ioctl_control`).
    pub(crate) fn not_on_control(&self, operation: &'static str) -> Error {
        self.refusal(operation, Errno::EOPNOTSUPP)
            .because("events are the compute node's")
    }

    pub(crate) fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let mut state = self.enter("HL_IOCTL_DEBUG")?;
        let asic = state.asic;
        state
            .debugging
            .configure(asic, request)
            .map_err(|error| error.on(self.id))
    }
}
