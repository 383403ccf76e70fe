//! Errors that several operations return, and reports of this crate's own defects.

use gaudi_seam::{Errno, Error};

pub(crate) fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::from_errno(operation, Errno::EINVAL).because(cause)
}

/// Returns the error for a handle that names no object.
pub(crate) fn missing(operation: &'static str, what: &str) -> Error {
    invalid(operation, &format!("no such {what}"))
}

/// Returns the error for a queue without room. Allocates nothing.
pub(crate) fn queue_full(operation: &'static str) -> Error {
    Error::would_block(operation).with_errno(Errno::ENOMEM)
}

pub(crate) fn full(operation: &'static str, what: &str, limit: u32) -> Error {
    Error::from_errno(operation, Errno::ENOMEM)
        .because(format!("the NIC has no room for more {what}"))
        .saw(limit, format!("below {limit}"))
}

/// Reports a broken invariant of this crate: panics in debug builds, logs an error in release
/// builds. The caller then continues as if the object did not exist.
#[cold]
#[track_caller]
pub(crate) fn defect(invariant: &str) {
    let caller = std::panic::Location::caller();
    if cfg!(debug_assertions) {
        unreachable!("defect of softnic at {caller}: {invariant}");
    }
    tracing::error!(%caller, "softnic (software): defect: {invariant}");
}
