//! [`Piece`]: a part of a plan's line that knows its place, and the errors that point at it.

use std::fmt;

/// The most characters of a line that an error repeats.
const SHOWN: usize = 100;
/// Characters before the marked ones, if the line is longer.
const BEFORE: usize = 40;

/// An invalid plan. Prints the problem, its place, the valid form, and the line with a mark under
/// the invalid part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The line of the plan, from 1.
    pub line: usize,
    /// The character of that line, from 1.
    pub column: usize,
    /// The problem.
    pub problem: String,
    /// The valid form.
    pub wanted: String,
    /// The text of the line, shortened for a terminal, without control characters.
    pub text: String,
    /// The first marked character of `text`, from 0, and the number of marked ones.
    mark: (usize, usize),
}

impl std::error::Error for PlanError {}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            problem,
            wanted,
            text,
            mark: (start, len),
        } = self;
        write!(f, "fault plan: {problem} at ")?;
        if *line > 1 {
            write!(f, "line {line}, ")?;
        }
        write!(f, "column {column}; {wanted}\n    {text}\n    ")?;
        write!(f, "{:start$}{:^<len$}", "", "")
    }
}

/// A problem, its place in the line in bytes, and the valid form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    at: usize,
    len: usize,
    problem: String,
    wanted: String,
}

impl Wrong {
    /// The error of the line `text`, which is number `line` of the plan.
    pub(super) fn in_line(self, line: usize, text: &str) -> PlanError {
        let characters = |bytes: usize| text.get(..bytes).unwrap_or(text).chars().count();
        let start = characters(self.at);
        let len = characters(self.at + self.len) - start;
        let is_long = text.chars().count() > SHOWN;
        let skipped = if is_long { start.saturating_sub(BEFORE) } else { 0 };
        let shown = text.chars().skip(skipped).take(SHOWN);
        // Control characters would move the mark, or the terminal's cursor.
        let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
        let from = start - skipped;
        PlanError {
            line,
            column: start + 1,
            problem: self.problem,
            wanted: self.wanted,
            text: shown,
            mark: (from, len.clamp(1, SHOWN - from.min(SHOWN - 1))),
        }
    }
}

/// A part of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    /// Its first byte in the line.
    at: usize,
}

impl<'a> Piece<'a> {
    /// A whole line.
    pub(super) fn line(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn part(self, from: usize, len: usize) -> Self {
        let text = self.text.get(from..from + len);
        let text = text.unwrap_or_else(|| unreachable!("the parts of a piece lie inside of it"));
        Self {
            text,
            at: self.at + from,
        }
    }

    /// The piece without white space at its ends.
    pub(super) fn trim(self) -> Self {
        let from = self.text.len() - self.text.trim_start().len();
        self.part(from, self.text.trim().len())
    }

    /// The text before the first `mark`, or all of it.
    pub(super) fn before(self, mark: char) -> Self {
        self.part(0, self.text.find(mark).unwrap_or(self.text.len()))
    }

    /// The piece without the longest end of such characters.
    pub(super) fn before_suffix(self, is_suffix: fn(char) -> bool) -> Self {
        self.part(0, self.text.trim_end_matches(is_suffix).len())
    }

    /// The parts between `mark`s.
    pub(super) fn split(self, mark: char) -> impl Iterator<Item = Self> {
        let mut from = 0;
        self.text.split(mark).map(move |part| {
            let piece = self.part(from, part.len());
            from += part.len() + mark.len_utf8();
            piece
        })
    }

    /// The parts before and after the first `mark`. The second is `None` if `mark` is not found.
    pub(super) fn split_once(self, mark: &str) -> (Self, Option<Self>) {
        match self.text.find(mark) {
            Some(at) => {
                let after = at + mark.len();
                (self.part(0, at), Some(self.part(after, self.text.len() - after)))
            }
            None => (self, None),
        }
    }

    /// The error of this piece.
    pub(super) fn wrong<T>(self, problem: impl Into<String>, wanted: impl Into<String>) -> Result<T, Wrong> {
        Err(Wrong {
            at: self.at,
            len: self.text.len(),
            problem: problem.into(),
            wanted: wanted.into(),
        })
    }

    /// A decimal number from `least` to `most`.
    pub(super) fn number(self, least: u64, most: u64) -> Result<u64, Wrong> {
        match gaudi_sys::parse::decimal(self.text).filter(|value| (least..=most).contains(value)) {
            Some(value) => Ok(value),
            None => self.wrong(
                format!("{} is not a number in range", self.quoted()),
                format!("wanted a decimal number from {least} to {most}"),
            ),
        }
    }

    /// A number, decimal or hexadecimal with `0x`.
    pub(super) fn any_number(self) -> Result<u64, Wrong> {
        match gaudi_sys::parse::number(self.text) {
            Some(value) => Ok(value),
            None => self.wrong(
                format!("{} is not a number of 64 bits", self.quoted()),
                "wanted a decimal number, or a hexadecimal one with 0x",
            ),
        }
    }

    /// The text in quotes, shortened for a message.
    pub(super) fn quoted(self) -> String {
        format!("{:?}", self.text.chars().take(40).collect::<String>())
    }
}
