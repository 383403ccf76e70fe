//! What an errno of the driver means to a program: one table for the kernel backend and for faults
//! that speak as the driver.

use gaudi_sys::Errno;

use crate::error::ErrorKind;
use crate::operation::Operation;

impl ErrorKind {
    /// The kind of an errno that the driver gave to an operation on an open node. Where the
    /// driver's errno says something else than its name does, the operation decides;
    /// [`of_errno`](Self::of_errno) is for the rest.
    pub fn of_operation(operation: Operation, errno: Errno) -> Self {
        use Operation as Op;
        match (operation, errno) {
            // A device that is not operational; a backend that can ask the device refines it.
            (_, Errno::EBUSY) => Self::DeviceLost,
            (Op::WaitCs | Op::WaitMultiCs | Op::WaitInterrupt | Op::RegisterTimestamp, Errno::EIO) => {
                Self::DeviceLost
            }
            (
                Op::Submit
                | Op::WaitCs
                | Op::WaitMultiCs
                | Op::WaitInterrupt
                | Op::RegisterTimestamp
                | Op::MapBlock,
                Errno::EPERM,
            ) => Self::Unsupported,
            (Op::MemAlloc | Op::MemMapDevice, Errno::ENOMEM) => Self::OutOfDeviceMemory,
            // Not in debug mode: the driver says EFAULT, but no address is to blame.
            (Op::Debug, Errno::EFAULT) => Self::InvalidInput,
            _ => Self::of_errno(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_decides_where_the_errno_alone_would_mislead() {
        for (operation, errno, kind) in [
            (Operation::MemFree, Errno::EBUSY, ErrorKind::DeviceLost),
            (Operation::WaitCs, Errno::EIO, ErrorKind::DeviceLost),
            (Operation::Submit, Errno::EPERM, ErrorKind::Unsupported),
            (Operation::MemAlloc, Errno::ENOMEM, ErrorKind::OutOfDeviceMemory),
            (Operation::Debug, Errno::EFAULT, ErrorKind::InvalidInput),
        ] {
            assert_eq!(
                ErrorKind::of_operation(operation, errno),
                kind,
                "{operation:?} {errno:?}"
            );
            assert_ne!(
                ErrorKind::of_errno(errno),
                kind,
                "the row for {operation:?} {errno:?} says what its errno alone says"
            );
        }
        assert_eq!(
            ErrorKind::of_operation(Operation::MemFree, Errno::EINVAL),
            ErrorKind::InvalidInput
        );
    }
}
