//! Statuses of UCX, and the guard around every function that UCX calls.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gaudi_seam::{Error, ErrorKind};

use crate::abi::UcsStatus;
use crate::log;

/// `UCS_OK`.
pub(crate) const OK: UcsStatus = 0;

/// An error of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Status {
    NoResource = -2,
    Io = -3,
    NoMemory = -4,
    InvalidParam = -5,
    Unreachable = -6,
    InvalidAddress = -7,
    NoDevice = -14,
    Busy = -15,
    OutOfRange = -19,
    TimedOut = -20,
    Unsupported = -22,
    ConnectionReset = -25,
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

/// The status for an error of the device, which is logged.
pub(crate) fn of(error: &Error) -> Status {
    let status = match error.kind() {
        ErrorKind::InvalidInput => Status::InvalidParam,
        ErrorKind::Unsupported => Status::Unsupported,
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::Forked => Status::NoDevice,
        ErrorKind::Busy | ErrorKind::InUse => Status::Busy,
        ErrorKind::WouldBlock | ErrorKind::TooManyFiles => Status::NoResource,
        ErrorKind::TimedOut | ErrorKind::Hung => Status::TimedOut,
        ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Disconnected => Status::ConnectionReset,
        ErrorKind::OutOfMemory | ErrorKind::OutOfDeviceMemory => Status::NoMemory,
        ErrorKind::BadAddress => Status::InvalidAddress,
        _ => Status::Io,
    };
    log::error(&format!("{error}"));
    status
}

impl From<Status> for UcsStatus {
    fn from(status: Status) -> Self {
        status as Self
    }
}

/// Runs the body of a function that UCX calls. A panic is logged and becomes an error.
pub(crate) fn guarded(function: &str, body: impl FnOnce() -> Result<(), Status>) -> UcsStatus {
    passed(function, || body().map_err(UcsStatus::from))
}

/// As [`guarded`], for a body that calls UCX: its status is passed on as it is.
pub(crate) fn passed(function: &str, body: impl FnOnce() -> Result<(), UcsStatus>) -> UcsStatus {
    match caught(function, body) {
        Some(Ok(())) => OK,
        Some(Err(status)) => status,
        None => Status::Io.into(),
    }
}

/// Runs the body of a function that UCX calls. Returns `None` after a panic, which is logged.
pub(crate) fn caught<T>(function: &str, body: impl FnOnce() -> T) -> Option<T> {
    // The state behind the crate's locks is consistent between its statements.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(panic) => {
            // Dropping the payload may panic again.
            std::mem::forget(panic);
            log::error(&format!("{function}: internal error (panic); the call fails"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_io_error() {
        let status = guarded("test", || panic!("a defect"));
        assert_eq!(status, -3, "UCS_ERR_IO_ERROR");
    }

    #[test]
    fn errors_map_to_statuses() {
        for (kind, status) in [
            (ErrorKind::OutOfDeviceMemory, Status::NoMemory),
            (ErrorKind::Busy, Status::Busy),
            (ErrorKind::Forked, Status::NoDevice),
            (ErrorKind::Corrupt, Status::Io),
        ] {
            assert_eq!(of(&Error::new(kind, "test")), status, "{kind:?}");
        }
    }
}
