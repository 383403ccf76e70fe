//! [`CloseError`]: the error of a `close` that returns its object.

use std::fmt;

use crate::error::Error;

/// A `close` that failed. The object is still open, and the caller can retry or drop it.
///
/// Converts into [`Error`], so that `object.close()?` compiles. The conversion drops the object.
pub struct CloseError<T> {
    /// The object that is still open.
    pub object: T,
    /// The reason why `close` failed.
    pub error: Error,
}

impl<T> CloseError<T> {
    /// Returns the error of a failed `close` of `object`.
    pub const fn new(object: T, error: Error) -> Self {
        Self { object, error }
    }

    /// Replaces the object with one that wraps it.
    pub fn map<U>(self, wrap: impl FnOnce(T) -> U) -> CloseError<U> {
        CloseError::new(wrap(self.object), self.error)
    }

    /// Returns the object and the reason.
    pub fn into_parts(self) -> (T, Error) {
        (self.object, self.error)
    }
}

impl<T> From<CloseError<T>> for Error {
    fn from(failed: CloseError<T>) -> Self {
        failed.error
    }
}

impl<T> fmt::Display for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Debug for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for CloseError<T> {}
