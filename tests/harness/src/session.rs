//! [`Session`]: a run of a test binary without libtest, which prints what libtest prints.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::report::Outcome;

/// Time after which a test's line shows how long it took.
const SLOW: Duration = Duration::from_secs(2);

/// A run of a suite's tests.
#[derive(Debug)]
pub struct Session {
    begin: Instant,
    filtered_out: usize,
    passed: usize,
    ignored: usize,
    failures: Vec<(String, String)>,
}

impl Session {
    /// Selects tests by name and begins their run: prints their number and `note`. Returns `None`
    /// if the arguments ask for a list, which is then printed.
    pub fn begin<T>(
        arguments: &Arguments,
        tests: impl IntoIterator<Item = (String, T)>,
        note: &str,
    ) -> Option<(Self, Vec<(String, T)>)> {
        let all: Vec<_> = tests.into_iter().collect();
        let whole = all.len();
        let selected: Vec<_> = all
            .into_iter()
            .filter(|(name, _)| arguments.select(name))
            .collect();
        if arguments.list {
            for (name, _) in &selected {
                println!("{name}: test");
            }
            return None;
        }
        println!("\nrunning {} tests\n{note}", selected.len());
        let session = Self {
            begin: Instant::now(),
            filtered_out: whole - selected.len(),
            passed: 0,
            ignored: 0,
            failures: Vec::new(),
        };
        Some((session, selected))
    }

    /// Prints and counts the outcome of a test.
    pub fn record<Failure: Display>(&mut self, name: &str, outcome: &Outcome<Failure>, took: Duration) {
        match outcome {
            Outcome::Passed => {
                self.passed += 1;
                let slow = if took > SLOW {
                    format!(" ({took:.1?})")
                } else {
                    String::new()
                };
                println!("test {name} ... ok{slow}");
            }
            Outcome::Failed(failure) => self.fail(name, failure),
            Outcome::Skipped { need } => self.ignore(name, need),
            Outcome::Unsupported { why } => self.ignore(name, &format!("unsupported: {why}")),
            Outcome::ExpectedFailure { gap } => self.ignore(name, &format!("expected failure: {gap}")),
        }
    }

    /// Prints and counts a failure.
    pub fn fail(&mut self, name: &str, failure: &impl Display) {
        println!("test {name} ... FAILED");
        self.failures.push((name.to_owned(), failure.to_string()));
    }

    fn ignore(&mut self, name: &str, why: &str) {
        self.ignored += 1;
        println!("test {name} ... ignored, {why}");
    }

    /// Prints the failures, each with `note`, and the sums. Returns libtest's exit code.
    pub fn finish(self, note: &str) -> ExitCode {
        if !self.failures.is_empty() {
            println!("\nfailures:\n");
            for (name, why) in &self.failures {
                println!("---- {name} stdout ----\n{why}\n{note}\n");
            }
            println!("\nfailures:");
            self.failures.iter().for_each(|(name, _)| println!("    {name}"));
        }
        println!(
            "\ntest result: {}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
            if self.failures.is_empty() { "ok" } else { "FAILED" },
            self.passed,
            self.failures.len(),
            self.ignored,
            self.filtered_out,
            self.begin.elapsed().as_secs_f64(),
        );
        ExitCode::from(if self.failures.is_empty() { 0 } else { 101 })
    }
}
