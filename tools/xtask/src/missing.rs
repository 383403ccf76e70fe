//! What the machine lacks: an error that is no defect of this project.

use std::error::Error;
use std::fmt;

/// What is missing, and what would help. A ledger counts it as a skip.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// Fails with [`Missing`].
pub(crate) fn missing<T>(need: impl Into<String>) -> anyhow::Result<T> {
    Err(Missing(need.into()).into())
}

/// Separates a [`Missing`], as the inner error, from every other error.
pub(crate) fn or_missing<T>(result: anyhow::Result<T>) -> anyhow::Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => error.downcast().map(|Missing(need)| Err(need)),
    }
}
