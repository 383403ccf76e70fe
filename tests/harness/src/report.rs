//! [`Report`]: the outcomes of a run.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// Outcome of a case. `Failure` describes the difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome<Failure> {
    /// It passed.
    Passed,
    /// It failed.
    Failed(Failure),
    /// It did not run.
    Skipped {
        /// What would let it run.
        need: Cow<'static, str>,
    },
    /// It can never run here.
    Unsupported {
        /// The reason.
        why: Cow<'static, str>,
    },
    /// It failed, as listed in a table of known gaps.
    ExpectedFailure {
        /// The gap.
        gap: Cow<'static, str>,
    },
}

impl<Failure> Outcome<Failure> {
    /// Returns the words for a table.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
            Self::Skipped { .. } => "skipped",
            Self::Unsupported { .. } => "unsupported",
            Self::ExpectedFailure { .. } => "expected failure",
        }
    }

    /// Returns why the case did not pass, if that is not a failure.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed | Self::Failed(_) => None,
            Self::Skipped { need: why } | Self::Unsupported { why } | Self::ExpectedFailure { gap: why } => {
                Some(why)
            }
        }
    }
}

/// A case and its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Row<Failure> {
    /// Name of the case.
    pub id: &'static str,
    /// Group of the case.
    #[serde(rename = "chip")]
    pub group: &'static str,
    /// Source of the case.
    pub source: &'static str,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome<Failure>,
    /// How long it ran, in microseconds.
    pub took_us: u128,
}

/// All rows of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report<Failure> {
    /// What the cases ran on.
    #[serde(skip)]
    pub name: String,
    /// In the order of running.
    pub rows: Vec<Row<Failure>>,
}

impl<Failure> Report<Failure> {
    /// Returns how many outcomes have this [`word`](Outcome::word).
    pub fn count(&self, word: &str) -> usize {
        self.rows.iter().filter(|row| row.outcome.word() == word).count()
    }

    /// Returns how many cases failed.
    pub fn failed(&self) -> usize {
        self.count("FAILED")
    }

    /// Returns how many cases passed.
    pub fn passed(&self) -> usize {
        self.count("passed")
    }

    /// Returns whether a case passed and none failed.
    pub fn is_good(&self) -> bool {
        self.passed() > 0 && self.failed() == 0
    }
}

impl<Failure: fmt::Display> fmt::Display for Report<Failure> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let how = match &row.outcome {
                Outcome::Passed => continue,
                Outcome::Failed(how) => how.to_string(),
                other => other.reason().unwrap_or_default().to_owned(),
            };
            let (word, sentence) = (row.outcome.word(), row.id.replace('_', " "));
            writeln!(f, "{word} {}: {sentence}: {how}", row.group)?;
        }
        let unsupported = self.rows.len() - self.passed() - self.failed();
        let (passed, failed) = (self.passed(), self.failed());
        writeln!(
            f,
            "{}: {passed} passed, {failed} failed, {unsupported} unsupported",
            self.name
        )
    }
}
