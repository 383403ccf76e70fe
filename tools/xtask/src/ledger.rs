//! The steps that ran, their seconds and their results: one row for each, printed last.

use std::ops::AddAssign;
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

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Something that did not run here, and what would make it run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) id: String,
    /// What is needed, as a sentence that the reader can act on.
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
    /// One line each: what went wrong without a failure, such as a guest that was started again.
    pub(crate) notes: Vec<String>,
    /// One line each: what failed and where to read more.
    pub(crate) failures: Vec<String>,
}

impl Row {
    /// Times `work`, which fills in the row. Its error is one failure more.
    pub(crate) fn time(name: &str, work: impl FnOnce(&mut Row) -> anyhow::Result<()>) -> Row {
        let begin = Instant::now();
        let mut row = Row {
            name: name.to_owned(),
            begin: Some(begin),
            ..Row::default()
        };
        if let Err(error) = work(&mut row) {
            println!("FAIL  {name}  {error:#}");
            row.fail(format!("{error:#}"));
        }
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

/// Prints skips, notes, failures, the table and the totals of all rows; the last line is
/// `N passed, N failed, N skipped`.
pub(crate) fn finish(rows: &[Row]) -> ExitCode {
    print!("{}", render(rows));
    match totals(rows).failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn totals(rows: &[Row]) -> Counts {
    let mut totals = Counts::default();
    rows.iter().for_each(|row| totals += row.counts);
    totals
}

/// Seconds in which any step ran: some run at the same time.
fn seconds(rows: &[Row]) -> f64 {
    let (mut steps, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.begin.is_some());
    steps.sort_by_key(|row| row.begin);
    let mut seconds = others.iter().map(|row| row.seconds).sum();
    let mut until: Option<Instant> = None;
    for (row, begin) in steps.iter().filter_map(|row| Some((row, row.begin?))) {
        let end = begin + Duration::from_secs_f64(row.seconds);
        let from = until.map_or(begin, |until| until.max(begin));
        seconds += end.saturating_duration_since(from).as_secs_f64();
        until = until.max(Some(end));
    }
    seconds
}

fn render(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            out += &format!("\n{title}\n{}", lines.concat());
        }
    };
    let skips = rows.iter().flat_map(|row| &row.skips);
    let skips = skips.map(|skip| format!("  {}: {}\n", skip.id, skip.need));
    section("skipped, and what would un-skip it", skips.collect());
    let mut lines = |title: &str, of: fn(&Row) -> &Vec<String>| {
        let all = rows
            .iter()
            .flat_map(|row| of(row).iter().map(move |line| (row, line)));
        let all = all.map(|(row, line)| format!("  {}: {line}\n", row.name));
        section(title, all.collect());
    };
    lines("to note", |row| &row.notes);
    lines("failed", |row| &row.failures);
    let names = rows.iter().map(|row| row.name.len());
    let wide = names.chain(["total".len()]).max().unwrap_or_default(); // never empty
    let line = |name: &str, seconds: f64, counts: Counts| {
        let (passed, failed, skipped) = (counts.passed, counts.failed, counts.skipped);
        format!("  {name:wide$}  {seconds:>8.1}  {passed:>6}  {failed:>6}  {skipped:>7}\n")
    };
    let mut table = vec![format!("  {:wide$}   seconds  passed  failed  skipped\n", "step")];
    table.extend(rows.iter().map(|row| line(&row.name, row.seconds, row.counts)));
    let all = totals(rows);
    table.push(line("total", seconds(rows), all));
    section("ledger", table);
    let (passed, failed, skipped) = (all.passed, all.failed, all.skipped);
    out + &format!("\n{passed} passed, {failed} failed, {skipped} skipped\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: usize, failed: usize, skipped: usize) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn last_line_sums_all_rows() {
        let rows = [counts(3, 0, 1), counts(4, 2, 0)].map(|counts| Row {
            counts,
            ..Row::default()
        });
        assert_eq!(
            render(&rows).lines().last(),
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
        // 0 to 10 with two inside and one across its end; a gap; 20 to 21; 3 s of another process.
        let steps = [(0, 10.0), (2, 3.0), (9, 4.0), (1, 1.0), (20, 1.0)];
        let mut rows = steps.map(|(after, seconds)| row(after, seconds)).to_vec();
        rows.push(before);
        assert!((seconds(&rows) - 17.0).abs() < 1e-6, "{}", seconds(&rows));
    }

    #[test]
    fn skips_notes_and_failures_precede_the_table() {
        let row = Row::time("headers", |row| {
            row.skip("headers-7", "a network that reaches Debian");
            row.notes.push("fetched twice".to_owned());
            row.fail("digest differs");
            Err(anyhow::anyhow!("no pins"))
        });
        assert_eq!(row.counts, counts(0, 2, 1), "each call and the error count once");
        let text = render(&[row]);
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{what:?} must be printed in {text}"))
        };
        for before in [
            "headers-7: a network that reaches Debian",
            "to note\n  headers: fetched twice\n",
            "headers: digest differs",
            "headers: no pins",
        ] {
            assert!(
                at(before) < at("\nledger\n"),
                "{before:?} comes before the ledger: {text}"
            );
        }
    }
}
