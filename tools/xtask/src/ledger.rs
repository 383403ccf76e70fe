//! What ran, for how long, and how it ended: one row a step, printed last.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::missing::or_missing;

/// How many checks or tests ended in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

/// Something that did not run here, and what would make it run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) id: String,
    /// What is needed, as a sentence that someone can act on.
    pub(crate) need: String,
}

/// One step of the ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// When it began; `None` for a step of another process.
    pub(crate) begin: Option<Instant>,
    pub(crate) counts: Counts,
    pub(crate) skips: Vec<Skip>,
    /// One line each: what failed and where to read more.
    pub(crate) failures: Vec<String>,
}

impl Row {
    /// Times `work`, which fills in the row.
    pub(crate) fn time(name: &str, work: impl FnOnce(&mut Row)) -> Row {
        let begin = Instant::now();
        let mut row = Row {
            name: name.to_owned(),
            begin: Some(begin),
            ..Row::default()
        };
        work(&mut row);
        row.seconds = begin.elapsed().as_secs_f64();
        row
    }

    pub(crate) fn pass(&mut self) {
        self.counts.passed += 1;
    }

    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        self.counts.failed += 1;
        self.failures.push(why.into());
    }

    /// Counts `found` and prints it: a pass with its note, a skip where the machine lacks
    /// something, otherwise a failure.
    pub(crate) fn settle(&mut self, id: &str, found: anyhow::Result<String>) {
        match or_missing(found) {
            Ok(Ok(note)) => {
                println!("ok    {id}  {note}");
                self.pass();
            }
            Ok(Err(need)) => {
                println!("skip  {id}  {need}");
                self.skip(id, need);
            }
            Err(error) => {
                println!("FAIL  {id}  {error:#}");
                self.fail(format!("{id}: {error:#}"));
            }
        }
    }

    pub(crate) fn skip(&mut self, id: impl Into<String>, need: impl Into<String>) {
        self.counts.skipped += 1;
        self.skips.push(Skip {
            id: id.into(),
            need: need.into(),
        });
    }
}

/// All rows of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: Vec<Row>,
}

impl Ledger {
    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows.extend(rows);
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn totals(&self) -> Counts {
        self.rows.iter().fold(Counts::default(), |sum, row| Counts {
            passed: sum.passed + row.counts.passed,
            failed: sum.failed + row.counts.failed,
            skipped: sum.skipped + row.counts.skipped,
        })
    }

    /// Seconds in which any step ran: some run at the same time.
    fn seconds(&self) -> f64 {
        let (mut steps, others): (Vec<_>, Vec<_>) = self.rows.iter().partition(|row| row.begin.is_some());
        steps.sort_by_key(|row| row.begin);
        let mut seconds = others.iter().map(|row| row.seconds).sum();
        let mut until: Option<Instant> = None;
        for (row, begin) in steps.iter().filter_map(|row| Some((row, row.begin?))) {
            let end = begin + Duration::from_secs_f64(row.seconds);
            let from = until.map_or(begin, |until| until.max(begin));
            seconds += end.saturating_duration_since(from).as_secs_f64();
            until = Some(until.map_or(end, |until| until.max(end)));
        }
        seconds
    }

    /// Prints skips, failures, the table and the totals; the last line is `N passed, N failed, N
    /// skipped`.
    pub(crate) fn finish(&self) -> ExitCode {
        print!("{}", self.render());
        if self.totals().failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn render(&self) -> String {
        let mut out = String::new();
        let skips: Vec<_> = self.rows.iter().flat_map(|row| &row.skips).collect();
        if !skips.is_empty() {
            out += "\nskipped, and what would un-skip it\n";
            for skip in skips {
                out += &format!("  {}: {}\n", skip.id, skip.need);
            }
        }
        let failures: Vec<_> = self
            .rows
            .iter()
            .flat_map(|row| row.failures.iter().map(move |why| (row, why)))
            .collect();
        if !failures.is_empty() {
            out += "\nfailed\n";
            for (row, why) in failures {
                out += &format!("  {}: {why}\n", row.name);
            }
        }
        let wide = self
            .rows
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0)
            .max("total".len());
        out += "\nledger\n";
        out += &format!(
            "  {:wide$}  {:>8}  {:>6}  {:>6}  {:>7}\n",
            "step", "seconds", "passed", "failed", "skipped"
        );
        let line = |name: &str, seconds: f64, counts: Counts| {
            let Counts {
                passed,
                failed,
                skipped,
            } = counts;
            format!("  {name:wide$}  {seconds:>8.1}  {passed:>6}  {failed:>6}  {skipped:>7}\n")
        };
        for row in &self.rows {
            out += &line(&row.name, row.seconds, row.counts);
        }
        let Counts {
            passed,
            failed,
            skipped,
        } = self.totals();
        out += &line("total", self.seconds(), self.totals());
        out += &format!("\n{passed} passed, {failed} failed, {skipped} skipped\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_sums_all_rows() {
        let mut ledger = Ledger::default();
        ledger.push(Row {
            counts: Counts {
                passed: 3,
                failed: 0,
                skipped: 1,
            },
            ..Row::default()
        });
        ledger.push(Row {
            counts: Counts {
                passed: 4,
                failed: 2,
                skipped: 0,
            },
            ..Row::default()
        });
        assert_eq!(
            ledger.render().lines().last(),
            Some("7 passed, 2 failed, 1 skipped"),
            "the totals must stand alone on the last line"
        );
    }

    #[test]
    fn time_of_steps_that_overlap_counts_once() {
        let begin = Instant::now();
        let row = |after: u64, seconds: f64| Row {
            begin: Some(begin + Duration::from_secs(after)),
            seconds,
            ..Row::default()
        };
        let before = Row {
            seconds: 3.0,
            ..Row::default()
        };
        let mut ledger = Ledger::default();
        // 0 to 10 with two inside and one across its end; a gap; 20 to 21; 3 s of another process.
        ledger.extend([
            row(0, 10.0),
            row(2, 3.0),
            row(9, 4.0),
            row(1, 1.0),
            row(20, 1.0),
            before,
        ]);
        assert!((ledger.seconds() - 17.0).abs() < 1e-6, "{}", ledger.seconds());
    }

    #[test]
    fn skips_and_failures_precede_the_table() {
        let row = Row::time("headers", |row| {
            row.skip("headers-7", "a network that reaches Debian");
            row.fail("digest differs");
        });
        assert_eq!(
            row.counts,
            Counts {
                passed: 0,
                failed: 1,
                skipped: 1
            },
            "each call counts once"
        );
        let mut ledger = Ledger::default();
        ledger.push(row);
        let text = ledger.render();
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{what:?} must be printed in {text}"))
        };
        assert!(
            at("headers-7: a network that reaches Debian") < at("\nledger\n"),
            "skips come first: {text}"
        );
        assert!(
            at("headers: digest differs") < at("\nledger\n"),
            "failures come before the ledger: {text}"
        );
    }
}
