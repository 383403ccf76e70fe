//! What an operation was answered, in words that do not depend on who answered.

use std::collections::BTreeMap;
use std::fmt;

use gaudi_seam::{Error, Result};

/// What one field of an answer held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A number as it stands.
    Number(u64),
    /// The nth different one of its kind: handles and addresses are told by their first appearance.
    Nth(u32),
    /// A word.
    Word(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl fmt::Display for Seen {
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
    /// The errno's name; the error's kind where it has none; nothing where it succeeded.
    pub(crate) refused: Option<String>,
    /// Fields of the answer. Operations of several steps give those of each.
    pub(crate) fields: Vec<(&'static str, Seen)>,
}

/// The word for an error.
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

    /// The outcome of a call whose answer is of no interest.
    pub(crate) fn of<T>(answer: Result<T>) -> Self {
        match answer {
            Ok(_) => Self::default(),
            Err(error) => Self::refused(&error),
        }
    }

    /// There was nothing to do it to.
    pub(crate) fn nothing() -> Self {
        Self::default().word("done", "nothing")
    }

    pub(crate) fn number(mut self, field: &'static str, number: impl Into<u64>) -> Self {
        self.fields.push((field, Seen::Number(number.into())));
        self
    }

    pub(crate) fn word(mut self, field: &'static str, word: impl Into<String>) -> Self {
        self.fields.push((field, Seen::Word(word.into())));
        self
    }

    pub(crate) fn bytes(mut self, field: &'static str, bytes: Vec<u8>) -> Self {
        self.fields.push((field, Seen::Bytes(bytes)));
        self
    }

    pub(crate) fn nth(mut self, field: &'static str, nth: u32) -> Self {
        self.fields.push((field, Seen::Nth(nth)));
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

/// Names for handles and addresses, by kind, in the order of their first appearance.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<(&'static str, u64), u32>);

impl Names {
    /// Which of its kind this is.
    pub(crate) fn nth(&mut self, kind: &'static str, value: u64) -> u32 {
        let next = self.0.range((kind, 0)..=(kind, u64::MAX)).count();
        *self
            .0
            .entry((kind, value))
            .or_insert_with(|| u32::try_from(next).unwrap_or(u32::MAX))
    }
}
