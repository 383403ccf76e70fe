//! What an errno of the driver means to a program: one table for the kernel backend and for faults
//! that speak as the driver.

use gaudi_sys::Errno;
use gaudi_uapi::errno::Call;

use crate::error::ErrorKind;

impl ErrorKind {
    /// The kind of an errno that the driver gave to an operation on an open node. Where the
    /// driver's errno says something else than its name does, the operation decides;
    /// [`of_errno`](Self::of_errno) is for the rest.
    pub fn of_call(call: Call, errno: Errno) -> Self {
        match (call, errno) {
            // A device that is not operational (habanalabs_ioctl.c:1194); a backend that can ask
            // the device how it is sharpens it.
            (_, Errno::EBUSY) => Self::DeviceLost,
            (Call::WaitCs | Call::WaitInterrupt, Errno::EIO) => Self::DeviceLost,
            (Call::Cs | Call::WaitCs | Call::WaitInterrupt | Call::MemMapBlock, Errno::EPERM) => {
                Self::Unsupported
            }
            (Call::MemAlloc | Call::MemMapDevice, Errno::ENOMEM) => Self::OutOfDeviceMemory,
            // Not in debug mode: the driver says EFAULT, but no address is to blame.
            (Call::Debug, Errno::EFAULT) => Self::InvalidInput,
            _ => Self::of_errno(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_decides_where_the_errno_alone_would_mislead() {
        for (call, errno, kind) in [
            (Call::MemFree, Errno::EBUSY, ErrorKind::DeviceLost),
            (Call::WaitCs, Errno::EIO, ErrorKind::DeviceLost),
            (Call::Cs, Errno::EPERM, ErrorKind::Unsupported),
            (Call::MemAlloc, Errno::ENOMEM, ErrorKind::OutOfDeviceMemory),
            (Call::Debug, Errno::EFAULT, ErrorKind::InvalidInput),
        ] {
            assert_eq!(ErrorKind::of_call(call, errno), kind, "{call:?} {errno:?}");
            assert_ne!(
                ErrorKind::of_errno(errno),
                kind,
                "the row for {call:?} {errno:?} says what its errno alone says"
            );
        }
        assert_eq!(
            ErrorKind::of_call(Call::MemFree, Errno::EINVAL),
            ErrorKind::InvalidInput
        );
    }
}
