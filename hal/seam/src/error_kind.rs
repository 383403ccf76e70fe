//! [`ErrorKind`]: what an error means to a program.

use std::fmt;

use gaudi_sys::Errno;

use crate::operation::Operation;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal,)*) => {
        /// The kind of an error, for code that decides what to do next.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)*
        }

        const ALL: &[(ErrorKind, &str)] = &[$((ErrorKind::$kind, $name)),*];
    };
}

kinds! {
    /// The request is invalid: a size, an alignment, a handle, a combination (`EINVAL`). Do not
    /// repeat it.
    InvalidInput "invalid_input",
    /// This backend, chip or kernel does not have the operation (`EOPNOTSUPP`, `ENOTTY`).
    Unsupported "unsupported",
    /// No such device, handle or file (`ENOENT`, `ENODEV` at open).
    NotFound "not_found",
    /// The user lacks the permission (`EPERM`, `EACCES`).
    PermissionDenied "permission_denied",
    /// Another user has the device or the object (`EBUSY`). Try again after its release.
    Busy "busy",
    /// An export, a mapping or a region still uses the object. Release that first.
    InUse "in_use",
    /// The operation would have to wait, and did nothing (`EAGAIN`). Try again after progress.
    WouldBlock "would_block",
    /// The caller's deadline passed; the work continues.
    TimedOut "timed_out",
    /// The work ran into the driver's timeout (`ETIMEDOUT`); a reset follows.
    Hung "hung",
    /// The device was reset, removed or disabled (`ENODEV`, `EIO`). All its objects are invalid.
    DeviceLost "device_lost",
    /// The device is in reset (`EAGAIN` at open). Try again.
    InReset "in_reset",
    /// There is no host memory, or it cannot be pinned (`ENOMEM`).
    OutOfMemory "out_of_memory",
    /// There is no device memory (`ENOMEM` of an allocation on the device).
    OutOfDeviceMemory "out_of_device_memory",
    /// An address is not mapped (`EFAULT`).
    BadAddress "bad_address",
    /// The process has no free file descriptor (`EMFILE`, `ENFILE`).
    TooManyFiles "too_many_files",
    /// The object belongs to the parent process of this fork child.
    Forked "forked",
    /// A key, a bound or an access right forbids the remote operation.
    AccessDenied "access_denied",
    /// The peer closed the connection or died.
    Disconnected "disconnected",
    /// The peer violated the protocol.
    Protocol "protocol",
    /// Data is corrupt: a digest or a comparison failed.
    Corrupt "corrupt",
    /// Any other I/O error; see the errno.
    Io "io",
}

impl ErrorKind {
    /// The kind's name in messages and JSON: `snake_case`, stable.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// The kind with this [`name`](Self::name). `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        let known = ALL.iter().find(|(_, known)| *known == name);
        known.map(|(kind, _)| *kind)
    }

    /// The usual kind of an errno, for any operation.
    pub fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::EINVAL | Errno::E2BIG | Errno::ERANGE | Errno::EOVERFLOW | Errno::EBADF => {
                Self::InvalidInput
            }
            Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS => Self::Unsupported,
            Errno::ENOENT | Errno::ENXIO => Self::NotFound,
            Errno::EPERM | Errno::EACCES => Self::PermissionDenied,
            Errno::EBUSY => Self::Busy,
            Errno::EAGAIN => Self::WouldBlock,
            Errno::ETIMEDOUT => Self::Hung,
            Errno::ENODEV => Self::DeviceLost,
            Errno::ENOMEM => Self::OutOfMemory,
            Errno::EFAULT => Self::BadAddress,
            Errno::EMFILE | Errno::ENFILE => Self::TooManyFiles,
            Errno::EPIPE | Errno::ECONNRESET | Errno::ECONNABORTED | Errno::ENOTCONN => Self::Disconnected,
            Errno::EPROTO | Errno::EBADMSG => Self::Protocol,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}

impl ErrorKind {
    /// The kind of an errno that the driver returned from an operation on an open node. The
    /// operation decides if the driver uses the errno in an unusual sense, otherwise
    /// [`of_errno`](Self::of_errno).
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
            // The driver returns EFAULT if the device is not in debug mode; no address is invalid.
            (Op::Debug, Errno::EFAULT) => Self::InvalidInput,
            _ => Self::of_errno(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_decides_ambiguous_errno() {
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
                "the row for {operation:?} {errno:?} repeats `of_errno`"
            );
        }
        assert_eq!(
            ErrorKind::of_operation(Operation::MemFree, Errno::EINVAL),
            ErrorKind::InvalidInput
        );
    }
}
