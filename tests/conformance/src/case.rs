//! What a case is, and what it says when it fails.

use std::fmt;
use std::ops::Deref;

use gaudi_seam::{Errno, Error};

use crate::bench::Bench;

/// What a case touches that a runner must know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tag {
    /// Opens or closes the device; every other case shares one open device.
    Lifecycle,
    /// Makes the driver give a submission up and reset the device.
    Reset,
    /// Looks at time: worth running on the machine's clock too.
    Clock,
}

/// A case of the driver. Its group is the chip; its source is the driver's file and function, or line
/// of Linux 7.3.4, below drivers/accel/habanalabs.
#[derive(Clone, Copy, Debug)]
pub struct Case(gaudi_harness::Case<Tag, fn(&mut Bench) -> Verdict>);

impl Case {
    pub(crate) const fn gaudi2(
        id: &'static str,
        source: &'static str,
        run: fn(&mut Bench) -> Verdict,
    ) -> Self {
        Self(gaudi_harness::Case::new("gaudi2", id, source, run))
    }

    pub(crate) const fn tagged(self, tags: &'static [Tag]) -> Self {
        Self(self.0.tagged(tags))
    }
}

impl Deref for Case {
    type Target = gaudi_harness::Case<Tag, fn(&mut Bench) -> Verdict>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// What a case's function returns.
pub type Verdict = Result<(), Failure>;

/// An assertion that does not hold, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Failure {
    /// What was looked at.
    pub what: String,
    /// What the driver does.
    pub expected: String,
    /// What the backend did.
    pub seen: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, expected: impl Into<String>, seen: impl Into<String>) -> Self {
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

/// An operation that a case needs and that fails is the case's failure.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.operation(), "success", format!("{error:?}"))
    }
}

/// The same of memory that a case reads and writes.
impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new("access to memory of this process", "success", errno.to_string())
    }
}

/// Two values are the same.
pub(crate) fn equal<T: PartialEq + fmt::Debug>(what: &str, seen: T, expected: T) -> Verdict {
    if seen == expected {
        return Ok(());
    }
    Err(Failure::new(what, format!("{expected:x?}"), format!("{seen:x?}")))
}

/// A statement holds; `seen` says what was found instead.
pub(crate) fn holds(what: &str, holds: bool, seen: impl fmt::Debug) -> Verdict {
    if holds {
        return Ok(());
    }
    Err(Failure::new(what, "true", format!("false: {seen:x?}")))
}

/// An operation is refused with this errno.
pub(crate) fn refused<T>(what: &str, answer: Result<T, Error>, errno: Errno) -> Verdict {
    match answer {
        Err(error) if error.errno() == Some(errno) => Ok(()),
        Err(error) => Err(Failure::new(what, format!("{errno:?}"), format!("{error:?}"))),
        Ok(_) => Err(Failure::new(what, format!("{errno:?}"), "success")),
    }
}

/// Bytes are those; where they differ, the failure names the first place.
pub(crate) fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> Verdict {
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
