//! What was asked and what was answered, on each side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::compare::Met;
use crate::differences::ROWS;
use crate::op::Op;
use crate::outcome::{Outcome, Seen};

/// A difference, made small.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Which sequence it was.
    pub(crate) number: u64,
    /// The operations that are left, with their numbers.
    pub(crate) ops: Vec<(u32, Op)>,
    /// What differs.
    pub(crate) what: String,
    /// The last operation's outcome on each side.
    pub(crate) outcomes: [Outcome; 2],
}

/// What a run was.
#[derive(Debug, Default)]
pub struct Report {
    pub(crate) seed: u64,
    pub(crate) names: [String; 2],
    pub(crate) sequences: u64,
    pub(crate) operations: u64,
    pub(crate) took: Duration,
    pub(crate) met: Met,
    pub(crate) found: Vec<Found>,
    /// Sequences that met a difference that had been found before.
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
        // A step of several that was refused is told among the fields.
        let steps = outcome.fields.iter().filter_map(|(_, seen)| match seen {
            Seen::Word(word) if is_errno(word) => Some(word.as_str()),
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

    /// How many operations were asked of each side.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// How many differences no row of the table explains.
    pub fn differences(&self) -> usize {
        self.found.len()
    }

    /// The case that was found last.
    pub fn latest(&self) -> Option<impl fmt::Display> {
        self.found.last()
    }

    /// Operations in the smallest case of the first difference; nothing where there is none.
    pub fn smallest(&self) -> Option<usize> {
        self.found.first().map(|found| found.ops.len())
    }

    /// Errnos that a side answered: 0 is the first side.
    pub fn errnos(&self, side: usize) -> BTreeSet<&str> {
        self.counts
            .iter()
            .filter(|(_, counts)| counts[side.min(1)] > 0)
            .map(|((_, verdict), _)| verdict.as_str())
            .filter(|verdict| is_errno(verdict))
            .collect()
    }

    /// Rows of the table of differences that nothing met, as sentences.
    pub fn unmet(&self) -> Vec<String> {
        ROWS.iter()
            .zip(&self.met.0)
            .filter(|(_, met)| **met == 0)
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

impl fmt::Display for Found {
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
        for (row, met) in ROWS.iter().zip(&self.met.0) {
            writeln!(
                f,
                "differs as it must, {met} times: {:?}: {} ({})",
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
