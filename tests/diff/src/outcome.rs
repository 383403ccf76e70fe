//! The answer to an operation, without values that depend on the backend.

use std::collections::BTreeMap;
use std::fmt;

use gaudi_seam::{Error, Result};

/// The value of one field of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number to compare as it is.
    Number(u64),
    /// The order of first appearance of a handle or address among those of its kind.
    Nth(u32),
    /// A word.
    Word(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Nth(nth) => write!(f, "the {nth}th"),
            Self::Word(word) => f.write_str(word),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

/// An operation's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The errno's name, or the error's kind if it has no errno; `None` on success.
    pub(crate) refused: Option<String>,
    /// The fields of the answer. Operations with several steps have the fields of each step.
    pub(crate) fields: Vec<(&'static str, Value)>,
}

/// Returns the errno's name, or the error's kind if it has no errno.
pub(crate) fn word(error: &Error) -> String {
    match error.errno() {
        Some(errno) => format!("{errno:?}"),
        None => error.kind().name().to_owned(),
    }
}

impl Outcome {
    pub(crate) fn refused(error: &Error) -> Self {
        Self {
            refused: Some(word(error)),
            fields: Vec::new(),
        }
    }

    /// The outcome of a call without the fields of its answer.
    pub(crate) fn of<T>(answer: Result<T>) -> Self {
        match answer {
            Ok(_) => Self::default(),
            Err(error) => Self::refused(&error),
        }
    }

    /// The outcome of an operation that was skipped because its object does not exist.
    pub(crate) fn nothing_done() -> Self {
        Self::default().word("done", "nothing")
    }

    pub(crate) fn number(mut self, field: &'static str, number: impl Into<u64>) -> Self {
        self.fields.push((field, Value::Number(number.into())));
        self
    }

    pub(crate) fn word(mut self, field: &'static str, word: impl Into<String>) -> Self {
        self.fields.push((field, Value::Word(word.into())));
        self
    }

    pub(crate) fn bytes(mut self, field: &'static str, bytes: Vec<u8>) -> Self {
        self.fields.push((field, Value::Bytes(bytes)));
        self
    }

    pub(crate) fn nth(mut self, field: &'static str, nth: u32) -> Self {
        self.fields.push((field, Value::Nth(nth)));
        self
    }

    /// `ok`, or the errno.
    pub(crate) fn verdict(&self) -> &str {
        self.refused.as_deref().unwrap_or("ok")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verdict())?;
        for (field, seen) in &self.fields {
            write!(f, ", {field} {seen}")?;
        }
        Ok(())
    }
}

/// Numbers handles and addresses of each kind in the order of their first appearance.
#[derive(Debug, Default)]
pub(crate) struct Numbering(BTreeMap<(&'static str, u64), u32>);

impl Numbering {
    /// Returns the number of `value` among those of its kind.
    pub(crate) fn nth(&mut self, kind: &'static str, value: u64) -> u32 {
        let next = self.0.range((kind, 0)..=(kind, u64::MAX)).count();
        *self
            .0
            .entry((kind, value))
            .or_insert_with(|| u32::try_from(next).unwrap_or(u32::MAX))
    }
}
