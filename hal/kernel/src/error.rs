//! From an errno of an open node to an error with a cause.

use gaudi_seam::{Error, ErrorKind, NodeKind, Operation, Rule};
use gaudi_sys::Errno;
use gaudi_uapi::info::DeviceStatus;

use crate::ioctl::Kernel;
use crate::system::Syscalls;

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// The error of a call that failed. `EAGAIN` allocates nothing; for `EBUSY` and `EPERM` the device is
    /// asked how it is.
    pub(crate) fn failed(&self, operation: Operation, errno: Errno) -> Error {
        self.failed_request(operation, None, errno)
    }

    /// As [`failed`](Self::failed), for an INFO op or a kind of submission.
    pub(crate) fn failed_request(&self, operation: Operation, request: Option<&str>, errno: Errno) -> Error {
        let name = operation.kernel_name();
        let device = self.node_ref().device;
        if errno == Errno::EAGAIN {
            return Error::would_block(name).on(device);
        }
        let error = Error::from_errno(name, errno)
            .on(device)
            .with_kind(ErrorKind::of_operation(operation, errno));
        let status = match errno {
            Errno::EBUSY | Errno::EPERM => self.status(),
            _ => None,
        };
        match (status, &*Rule::fitting(operation, request, errno)) {
            (Some(status), _) if status != DeviceStatus::OPERATIONAL => {
                let (kind, help) = self.not_operational(status);
                error
                    .with_kind(kind)
                    .because(format!("the device is {status}"))
                    .helped_by(help)
            }
            (_, []) => error,
            (_, [rule]) => Error::from_rule(operation, rule).on(device),
            (_, rules) => {
                let error = error.because(Rule::conditions(rules));
                match Rule::advices(rules) {
                    Some(advices) => error.helped_by(advices),
                    None => error,
                }
            }
        }
    }

    /// The error of a request that the driver would refuse by this rule.
    pub(crate) fn refuse(&self, operation: Operation, rule: &'static Rule) -> Error {
        Error::from_rule(operation, rule).on(self.node_ref().device)
    }

    fn not_operational(&self, status: DeviceStatus) -> (ErrorKind, &'static str) {
        let passing = matches!(
            status,
            DeviceStatus::IN_RESET
                | DeviceStatus::IN_DEVICE_CREATION
                | DeviceStatus::IN_RESET_AFTER_DEVICE_RELEASE
        );
        match (self.node_ref().kind, passing) {
            // Objects of a compute node do not live through a reset; a control node has none.
            (NodeKind::Compute, _) => (
                ErrorKind::DeviceLost,
                "close the device; open it again when it is operational",
            ),
            (NodeKind::Control, true) => (ErrorKind::InReset, "ask again in a second"),
            (NodeKind::Control, false) => (
                ErrorKind::DeviceLost,
                "the kernel's log says why the device failed",
            ),
        }
    }
}
