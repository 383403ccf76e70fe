//! The report of a run: operations and answers of each side, and differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::compare::RowHits;
use crate::differences::ROWS;
use crate::op::Op;
use crate::outcome::{Outcome, Value};

/// A reduced difference.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// The number of the sequence.
    pub(crate) number: u64,
    /// The remaining operations, with their numbers.
    pub(crate) ops: Vec<(u32, Op)>,
    /// The part that differs.
    pub(crate) what: String,
    /// The last operation's outcome on each side.
    pub(crate) outcomes: [Outcome; 2],
}

/// The report of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub(crate) seed: u64,
    pub(crate) names: [String; 2],
    pub(crate) sequences: u64,
    pub(crate) operations: u64,
    pub(crate) took: Duration,
    pub(crate) hits: RowHits,
    pub(crate) found: Vec<Finding>,
    /// The number of differences equal to an earlier one.
    pub(crate) again: u64,
    /// By kind and verdict, on each side.
    counts: BTreeMap<(&'static str, String), [u64; 2]>,
    kinds: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(crate) fn new(seed: u64, names: [String; 2]) -> Self {
        Self {
            seed,
            names,
            ..Self::default()
        }
    }

    pub(crate) fn count(&mut self, op: &Op, side: usize, outcome: &Outcome) {
        // A refused step of a longer operation is one of the fields.
        let steps = outcome.fields.iter().filter_map(|(_, seen)| match seen {
            Value::Word(word) if is_errno(word) => Some(word.as_str()),
            _ => None,
        });
        for verdict in [outcome.verdict()].into_iter().chain(steps) {
            self.counts.entry((op.kind(), verdict.to_owned())).or_default()[side] += 1;
        }
        if side == 0 {
            self.operations += 1;
            *self.kinds.entry(op.kind()).or_default() += 1;
        }
    }

    /// Returns the number of operations performed on each side.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns the number of differences without a row in the table.
    pub fn differences(&self) -> usize {
        self.found.len()
    }

    /// Returns the latest difference.
    pub fn latest(&self) -> Option<impl fmt::Display> {
        self.found.last()
    }

    /// Returns the number of operations in the reduced case of the first difference, if any.
    pub fn smallest(&self) -> Option<usize> {
        self.found.first().map(|found| found.ops.len())
    }

    /// Returns the errnos that a side answered. Side 0 is the first device.
    pub fn errnos(&self, side: usize) -> BTreeSet<&str> {
        self.counts
            .iter()
            .filter(|(_, counts)| counts[side.min(1)] > 0)
            .map(|((_, verdict), _)| verdict.as_str())
            .filter(|verdict| is_errno(verdict))
            .collect()
    }

    /// Returns the rows of the table of differences that did not occur, as text.
    pub fn unmet(&self) -> Vec<String> {
        ROWS.iter()
            .zip(&self.hits.0)
            .filter(|(_, hits)| **hits == 0)
            .map(|(row, _)| format!("{:?} ({}, {})", row.at, row.reason, row.source))
            .collect()
    }
}

fn is_errno(word: &str) -> bool {
    word.len() > 2
        && word.starts_with('E')
        && word
            .chars()
            .all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "sequence {}, {} operations, differs in {}",
            self.number,
            self.ops.len(),
            self.what
        )?;
        for (number, op) in &self.ops {
            writeln!(f, "  {number:4}  {op:?}")?;
        }
        writeln!(f, "        mock    {}", self.outcomes[0])?;
        write!(f, "        driver  {}", self.outcomes[1])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_header(["operation", "answer", "mock", "driver"]);
        for column in [2, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for ((kind, verdict), [mock, driver]) in &self.counts {
            table.add_row([
                kind.to_string(),
                verdict.clone(),
                mock.to_string(),
                driver.to_string(),
            ]);
        }
        writeln!(f, "{table}")?;
        writeln!(f)?;
        for (row, hits) in ROWS.iter().zip(&self.hits.0) {
            writeln!(
                f,
                "known difference, {hits} times: {:?}: {} ({})",
                row.at, row.reason, row.source
            )?;
        }
        for (side, name) in self.names.iter().enumerate() {
            let errnos: Vec<_> = self.errnos(side).into_iter().collect();
            writeln!(f, "{name}: {} errnos: {}", errnos.len(), errnos.join(" "))?;
        }
        for found in &self.found {
            writeln!(f, "\nDIFFERENT: {found}")?;
        }
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "seed {}: {} operations of {} kinds in {} sequences, on each side, in {seconds:.1} s ({:.2} ms each); {} differences",
            self.seed,
            self.operations,
            self.kinds.len(),
            self.sequences,
            seconds * 1e3 / self.operations.max(1) as f64,
            self.found.len(),
        )
    }
}
