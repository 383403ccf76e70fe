//! The verdict of a case, and the assertions that give it.

use std::fmt;

use gaudi_seam::{Errno, Error};

/// The result of a case's function.
pub type Verdict = Result<(), Failure>;

/// A failed assertion, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Failure {
    /// The checked value.
    pub what: String,
    /// The driver's behaviour.
    pub expected: String,
    /// The backend's behaviour.
    pub seen: String,
}

impl Failure {
    /// Returns a failure of a statement about `what`.
    pub fn new(what: impl Into<String>, expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            expected: expected.into(),
            seen: seen.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, seen {}", self.what, self.expected, self.seen)
    }
}

/// A failed operation that the case needs fails the case.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.operation(), "success", format!("{error:?}"))
    }
}

/// A failed access to process memory fails the case.
impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new("access to memory of this process", "success", errno.to_string())
    }
}

/// Checks that two values are equal.
///
/// # Errors
/// They are not.
pub fn equal<T: PartialEq + fmt::Debug>(what: &str, seen: T, expected: T) -> Verdict {
    if seen == expected {
        return Ok(());
    }
    Err(Failure::new(what, format!("{expected:x?}"), format!("{seen:x?}")))
}

/// Checks that a statement holds. A failure reports `seen`.
///
/// # Errors
/// It does not hold.
pub fn holds(what: &str, holds: bool, seen: impl fmt::Debug) -> Verdict {
    if holds {
        return Ok(());
    }
    Err(Failure::new(what, "true", format!("false: {seen:x?}")))
}

/// Checks that an operation is refused with this errno.
pub(crate) fn refused<T>(what: &str, answer: Result<T, Error>, errno: Errno) -> Verdict {
    match answer {
        Err(error) if error.errno() == Some(errno) => Ok(()),
        Err(error) => Err(Failure::new(what, format!("{errno:?}"), format!("{error:?}"))),
        Ok(_) => Err(Failure::new(what, format!("{errno:?}"), "success")),
    }
}

/// Checks that bytes are equal. A failure names the first byte that differs.
///
/// # Errors
/// They are not.
pub fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> Verdict {
    if seen.len() != expected.len() {
        return equal(what, seen.len(), expected.len());
    }
    match seen.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure::new(
            format!("{what}, byte {at} of {}", seen.len()),
            format!("{:#04x}", expected[at]),
            format!("{:#04x}", seen[at]),
        )),
    }
}

/// Checks that an operation is refused with `EINVAL`.
pub(crate) fn invalid<T>(what: &str, answer: Result<T, Error>) -> Verdict {
    refused(what, answer, Errno::EINVAL)
}
