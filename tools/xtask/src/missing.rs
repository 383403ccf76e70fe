//! What the machine lacks: an error that is not a defect of this project.

use std::fmt::Display;

/// What is missing, and what would help. A ledger counts it as a skip.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Missing(String);

/// Fails with [`Missing`].
pub(crate) fn missing<T>(need: impl Into<String>) -> anyhow::Result<T> {
    Err(Missing(need.into()).into())
}

/// Turns what went wrong into [`Missing`].
pub(crate) trait OrSkip<T> {
    /// `need` is what would help; it follows the error if there is one.
    fn or_skip(self, need: impl Display) -> anyhow::Result<T>;
}

impl<T> OrSkip<T> for Option<T> {
    fn or_skip(self, need: impl Display) -> anyhow::Result<T> {
        self.map_or_else(|| missing(need.to_string()), Ok)
    }
}

impl<T, E: Into<anyhow::Error>> OrSkip<T> for Result<T, E> {
    fn or_skip(self, need: impl Display) -> anyhow::Result<T> {
        self.or_else(|error| missing(format!("{:#}: {need}", error.into())))
    }
}

/// Separates a [`Missing`], as the inner error, from every other error.
pub(crate) fn or_missing<T>(result: anyhow::Result<T>) -> anyhow::Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => error.downcast().map(|Missing(need)| Err(need)),
    }
}
