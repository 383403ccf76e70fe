//! Reads the output of `cargo test`: results, names, targets that died without a result.

use std::collections::BTreeSet;

use crate::ledger::{Counts, Row, Skip};
use crate::run::Outcome;

/// The sum of all test targets of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    counts: Counts,
    /// Names that the harness called ok.
    passed: BTreeSet<String>,
    failed: Vec<String>,
    skips: Vec<Skip>,
    /// Targets that cargo calls failed although they printed no failed result: they crashed or did
    /// not build.
    crashed: Vec<String>,
    /// What the failed tests printed, up to [`LONGEST_EXCERPT`] lines.
    excerpt: Vec<String>,
}

const LONGEST_EXCERPT: usize = 200;

impl Report {
    pub(crate) fn read(lines: impl Iterator<Item = String>) -> Report {
        let mut report = Report::default();
        let mut failures_reported = 0_usize;
        let mut targets_failed = Vec::new();
        let mut in_failures = false;
        for line in lines {
            // The harness prints `failures:` twice, the second time only names; both end at the
            // result.
            in_failures = (in_failures || line == "failures:") && !line.starts_with("test result: ");
            if line.trim_start().starts_with("process didn't exit successfully") {
                report.excerpt.push(line.clone());
            }
            if in_failures && report.excerpt.len() < LONGEST_EXCERPT {
                report.excerpt.push(line.clone());
            }
            if let Some((result, counts)) = result_line(&line) {
                report.counts.passed += counts.passed;
                report.counts.failed += counts.failed;
                report.counts.skipped += counts.skipped;
                failures_reported += usize::from(result == "FAILED");
            } else if let Some((name, verdict)) = test_line(&line) {
                match verdict.split_once(", ").unwrap_or((verdict, "")) {
                    ("ok", _) => _ = report.passed.insert(name.to_owned()),
                    ("FAILED", _) => report.failed.push(name.to_owned()),
                    ("ignored", why) => {
                        let need = if why.is_empty() {
                            "ignored without a reason"
                        } else {
                            why
                        };
                        report.skips.push(Skip {
                            id: name.to_owned(),
                            need: need.to_owned(),
                        });
                    }
                    _ => {}
                }
            } else if let Some(target) = line
                .strip_prefix("error: ")
                .and_then(|rest| rest.split_once("to rerun pass"))
            {
                targets_failed.push(target.1.trim().trim_matches('`').to_owned());
            }
        }
        // With --no-fail-fast cargo prints one such error a failed target. Those beyond the
        // reported failures died.
        if targets_failed.len() > failures_reported {
            let died = targets_failed.len() - failures_reported;
            report.counts.failed += died;
            report.crashed.push(format!(
                "{died} of these targets died without a result: {}",
                targets_failed.join(", ")
            ));
        }
        report
    }

    /// Adds the skips that tests wrote themselves, and uncounts the "ok" that their harness
    /// printed.
    pub(crate) fn take_back(&mut self, skips: Vec<Skip>) {
        for skip in skips {
            if self.passed.remove(&skip.id) {
                // A target that died after the test printed "ok" counted nothing.
                self.counts.passed = self.counts.passed.saturating_sub(1);
            }
            self.counts.skipped += 1;
            self.skips.push(skip);
        }
    }

    /// What to print once more at the end; empty if no test printed a reason.
    pub(crate) fn excerpt(&self) -> String {
        self.excerpt.join("\n")
    }

    /// `what` ran: cargo, or the harness in a guest.
    pub(crate) fn into_row(self, row: &mut Row, what: &str, outcome: &Outcome) {
        row.counts = self.counts;
        // A target that died after naming a skip counted nothing.
        row.counts.skipped = row.counts.skipped.max(self.skips.len());
        row.skips = self.skips;
        row.failures = self.failed;
        row.failures.extend(self.crashed);
        let unexplained = !outcome.ok() && row.counts.failed == 0;
        if unexplained || outcome.timed_out {
            row.fail(outcome.why(what));
        } else if row.counts.passed + row.counts.failed == 0 && row.skips.is_empty() {
            row.fail("no test ran and none named a skip: a run that tests nothing proves nothing");
        }
    }
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn result_line(line: &str) -> Option<(&str, Counts)> {
    let (result, rest) = line
        .trim_start()
        .strip_prefix("test result: ")?
        .split_once(". ")?;
    let number = |what: &str| {
        let part = rest.split(';').find(|part| part.trim().ends_with(what))?;
        part.split_whitespace().next()?.parse().ok()
    };
    let (passed, failed, skipped) = (number("passed")?, number("failed")?, number("ignored")?);
    Some((
        result,
        Counts {
            passed,
            failed,
            skipped,
        },
    ))
}

/// `test name ... verdict`; a doc test's name holds spaces.
pub(crate) fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    // The harness puts what it expects between name and verdict.
    let notes = [" - should panic", " - compile fail", " - compile"];
    let bare = notes.iter().find_map(|note| name.strip_suffix(note));
    Some((bare.unwrap_or(name), verdict.trim()))
}

/// The skips that tests wrote, each line once: a sweep may meet the same want many times.
pub(crate) fn skips(log: &str) -> Vec<Skip> {
    let mut skips: Vec<Skip> = Vec::new();
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        let (id, need) = match line.strip_prefix("SKIP ").and_then(|rest| rest.split_once(": ")) {
            Some((id, need)) => (id.trim().to_owned(), need.trim().to_owned()),
            None => (
                line.to_owned(),
                "no reason given: write `SKIP <id>: <what is needed>`".to_owned(),
            ),
        };
        let skip = Skip { id, need };
        if !skips.contains(&skip) {
            skips.push(skip);
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn read(text: &str) -> Report {
        Report::read(text.lines().map(str::to_owned))
    }

    fn row(report: Report, code: i32) -> Row {
        let outcome = Outcome {
            code: Some(code),
            timed_out: code == 124,
            log: PathBuf::from("test.log"),
        };
        let mut row = Row::default();
        report.into_row(&mut row, "cargo test", &outcome);
        row
    }

    const GOOD: &str = "\
test tests::adds ... ok
test tests::panics - should panic ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test on_hardware ... ignored, needs a Gaudi2
test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s
test hal/seam/src/lib.rs - spec::DeviceSpec (line 12) ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn results_are_summed_and_ignored_tests_skipped() {
        let report = read(GOOD);
        assert_eq!(
            report.counts,
            Counts {
                passed: 3,
                failed: 0,
                skipped: 1
            },
            "three targets summed"
        );
        let skip = Skip {
            id: "on_hardware".into(),
            need: "needs a Gaudi2".into(),
        };
        assert_eq!(report.skips, [skip], "the reason is what would un-skip it");
        assert!(
            report.passed.contains("tests::panics"),
            "the note is not part of the name: {:?}",
            report.passed
        );
        assert_eq!(row(report, 0).counts.failed, 0, "a good run has no failure");
    }

    #[test]
    fn skip_replaces_the_ok_of_its_test() {
        let mut report = read(GOOD);
        let skip = |id: &str| Skip {
            id: id.into(),
            need: "a NIC".into(),
        };
        report.take_back(vec![skip("tests::adds"), skip("lifecycle/open-twice")]);
        assert_eq!(
            report.counts,
            Counts {
                passed: 2,
                failed: 0,
                skipped: 3
            },
            "the named test is not a pass; a case inside a test only adds a skip"
        );
    }

    #[test]
    fn failures_are_counted_and_named() {
        let report = read(
            "test tests::adds ... FAILED\n\
             failures:\n\
             adds: expected 3, saw 4\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             error: test failed, to rerun pass `-p gaudi-spec --lib`\n",
        );
        let row = row(report, 101);
        assert_eq!(
            (row.counts.failed, row.failures),
            (1, vec!["tests::adds".to_owned()]),
            "one failure, named"
        );
    }

    #[test]
    fn a_target_that_died_is_a_failure() {
        let report = read(&format!(
            "{GOOD}error: test failed, to rerun pass `-p gaudi-mock --lib`\n\nCaused by:\n  process didn't exit \
             successfully: `x` (signal: 6, SIGABRT: process abort signal)\n"
        ));
        assert!(
            report.excerpt().contains("SIGABRT"),
            "how it died is shown: {}",
            report.excerpt()
        );
        let row = row(report, 101);
        assert_eq!(row.counts.failed, 1, "it printed no result, cargo did");
        assert!(
            row.failures[0].contains("-p gaudi-mock --lib"),
            "it is named: {:?}",
            row.failures
        );
    }

    #[test]
    fn run_without_results_is_a_failure() {
        assert_eq!(
            row(read("error: could not compile `gaudi-hal`\n"), 101)
                .counts
                .failed,
            1,
            "it did not build"
        );
        assert_eq!(row(read(GOOD), 124).counts.failed, 1, "it ran out of time");
        assert_eq!(row(read(""), 0).counts.failed, 1, "it tested nothing");
    }

    #[test]
    fn skips_are_read_once_each() {
        let read = skips("SKIP abi/6.12: headers of 6.12\nSKIP abi/6.12: headers of 6.12\n\nwhat is this\n");
        assert_eq!(
            read.len(),
            2,
            "the repeated line counts once, the empty one not at all: {read:?}"
        );
        assert_eq!(
            (read[0].id.as_str(), read[0].need.as_str()),
            ("abi/6.12", "headers of 6.12")
        );
        assert!(
            read[1].need.contains("no reason"),
            "a line of another form is still counted: {read:?}"
        );
    }

    #[test]
    fn lookalike_results_are_ignored() {
        assert_eq!(
            result_line("test result: none of your business"),
            None,
            "no counts"
        );
        assert_eq!(
            result_line("test result: ok. x passed; 0 failed; 0 ignored"),
            None,
            "no number"
        );
        assert_eq!(test_line("testing ... ok"), None, "another word");
    }
}
