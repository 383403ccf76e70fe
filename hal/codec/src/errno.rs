//! The errno of an error, for programs that know errnos only.

use gaudi_seam::{Errno, Error, ErrorKind};

/// Returns the errno that an ioctl gives for `error`: the error's own, otherwise the one that the
/// driver uses for its kind.
pub fn errno_of(error: &Error) -> Errno {
    error.errno().unwrap_or_else(|| match error.kind() {
        // The driver reports objects that are in use as an invalid argument (common/memory.c).
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
        // A device that was lost, and kinds of layers above the driver.
        _ => Errno::EIO,
    })
}
