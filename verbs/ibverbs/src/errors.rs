//! Errors of libibverbs' return values, with their errno.

use std::ffi::c_int;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs_sys::LoadError;

/// The kernel-internal `ENOTSUPP`, which some drivers return.
const ENOTSUPP: i32 = 524;

/// Returns the error of a raw number, which may have no name.
pub(crate) fn of_raw(operation: &'static str, raw: i32) -> Error {
    if raw == ENOTSUPP {
        return Error::unsupported(
            operation,
            "the driver answered 524, the kernel's own ENOTSUPP: it does not have the operation",
        );
    }
    match Errno::from_raw(raw) {
        Errno::UnknownErrno => {
            Error::from_errno(operation, Errno::EIO).because(format!("errno {raw}, which has no name"))
        }
        errno => Error::from_errno(operation, errno),
    }
}

/// Returns the error of a call that returned NULL.
pub(crate) fn last(operation: &'static str) -> Error {
    of_raw(operation, Errno::last_raw())
}

/// Checks a call that returns 0 or an errno. Some providers return a negative errno, or -1 and set
/// errno.
pub(crate) fn check(operation: &'static str, answer: c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(last(operation)),
        other => Err(of_raw(operation, other.saturating_abs())),
    }
}

/// Checks a post. A full queue is `WouldBlock`, without an allocation.
#[inline]
pub(crate) fn check_post(operation: &'static str, answer: c_int) -> Result<()> {
    if answer == 0 {
        return Ok(());
    }
    check(operation, answer).map_err(|error| match error.errno() {
        Some(Errno::ENOMEM | Errno::ENOSPC) => Error::would_block(operation).with_errno(Errno::ENOMEM),
        _ => error,
    })
}

/// Returns the error for a missing libibverbs.
pub(crate) fn no_library(operation: &'static str, error: &LoadError) -> Error {
    Error::new(ErrorKind::NotFound, operation)
        .with_errno(Errno::ENOENT)
        .because(error.to_string())
        .helped_by(error.help())
}

/// Returns the error for a handle that names no object.
pub(crate) fn missing(operation: &'static str) -> Error {
    Error::from_errno(operation, Errno::EINVAL)
        .because("no such object: it was destroyed, or is of another NIC")
}

/// Returns the error for an object that others use.
pub(crate) fn in_use(operation: &'static str) -> Error {
    Error::new(ErrorKind::InUse, operation)
        .with_errno(Errno::EBUSY)
        .because("another object or thread uses it")
        .helped_by("destroy queue pairs first, then windows, regions and queues, then the domain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_understands_each_errno_convention() {
        assert!(check("x", 0).is_ok());
        for answer in [22, -22] {
            let error = check("x", answer).expect_err("not 0");
            assert_eq!(error.errno(), Some(Errno::EINVAL), "for {answer}");
        }
        Errno::EBUSY.set();
        let error = check("x", -1).expect_err("not 0");
        assert_eq!(error.errno(), Some(Errno::EBUSY), "-1 leaves it in errno");
    }

    #[test]
    fn enotsupp_is_unsupported() {
        let error = of_raw("x", 524);
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Unsupported, Some(Errno::EOPNOTSUPP))
        );
        assert!(
            of_raw("x", 5000).to_string().contains("5000"),
            "the number is kept"
        );
    }

    #[test]
    fn full_queue_would_block() {
        for answer in [12, -12, 28] {
            let error = check_post("x", answer).expect_err("full");
            assert_eq!(
                (error.kind(), error.errno(), error.evidence()),
                (ErrorKind::WouldBlock, Some(Errno::ENOMEM), None)
            );
        }
    }
}
