//! [`errno_of`]: the errno of an error, for callers that only handle errnos.

use gaudi_seam::{Errno, Error, ErrorKind};

/// Returns the errno that an ioctl fails with for `error`: the error's own errno, or the one that
/// the driver uses for the error's kind.
pub fn errno_of(error: &Error) -> Errno {
    error.errno().unwrap_or_else(|| match error.kind() {
        // The driver reports EINVAL for objects that are in use (common/memory.c).
        ErrorKind::InvalidInput | ErrorKind::InUse => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::PermissionDenied | ErrorKind::AccessDenied => Errno::EPERM,
        ErrorKind::Busy | ErrorKind::InReset => Errno::EBUSY,
        ErrorKind::WouldBlock => Errno::EAGAIN,
        ErrorKind::TimedOut | ErrorKind::Hung => Errno::ETIMEDOUT,
        ErrorKind::OutOfMemory | ErrorKind::OutOfDeviceMemory => Errno::ENOMEM,
        ErrorKind::BadAddress => Errno::EFAULT,
        ErrorKind::TooManyFiles => Errno::EMFILE,
        ErrorKind::Forked => Errno::ENODEV,
        // A lost device, and error kinds that only layers above the driver return.
        _ => Errno::EIO,
    })
}
