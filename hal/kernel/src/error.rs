//! From an errno of an open node to an error with a cause.

use gaudi_seam::{Error, ErrorKind, NodeKind};
use gaudi_sys::Errno;
use gaudi_uapi::errno::{Call, Meaning};
use gaudi_uapi::info::DeviceStatus;

use crate::ioctl::Kernel;
use crate::system::Syscalls;

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// The error of a call that failed. `EAGAIN` allocates nothing; for `EBUSY` and `EPERM` the device is
    /// asked how it is.
    pub(crate) fn failed(&self, operation: &'static str, call: Call, errno: Errno) -> Error {
        let device = self.node_ref().device;
        if errno == Errno::EAGAIN {
            return Error::would_block(operation).on(device);
        }
        let error = Error::from_errno(operation, errno)
            .on(device)
            .with_kind(ErrorKind::of_call(call, errno));
        let status = match errno {
            Errno::EBUSY | Errno::EPERM => self.status(),
            _ => None,
        };
        match status {
            Some(status) if status != DeviceStatus::OPERATIONAL => {
                let (kind, help) = self.not_operational(status);
                error
                    .with_kind(kind)
                    .because(format!("the device is {status}"))
                    .helped_by(help)
            }
            _ => match (Meaning {
                call,
                errno: errno as i32,
            })
            .to_string()
            {
                meaning if meaning.is_empty() => error,
                meaning => error.because(meaning),
            },
        }
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
