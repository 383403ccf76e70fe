//! The error of a layer's file.

use std::io::ErrorKind as IoKind;

use gaudi_seam::{Errno, Error, ErrorKind};

/// The error of opening or reading a layer's file. A missing file is an invalid spec, not a missing
/// device.
pub(crate) fn failed(error: &std::io::Error, cause: String) -> Error {
    match error.raw_os_error() {
        // The spec is invalid; no device is missing.
        Some(raw) if error.kind() == IoKind::NotFound => Error::from_errno("open", Errno::from_raw(raw))
            .with_kind(ErrorKind::InvalidInput)
            .because(cause),
        Some(raw) => Error::from_errno("open", Errno::from_raw(raw)).because(cause),
        None => Error::new(ErrorKind::InvalidInput, "open").because(format!("{cause}: {error}")),
    }
}
