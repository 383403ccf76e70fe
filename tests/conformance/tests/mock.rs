//! Runs every case on the mock as a separate test: `cargo test -p gaudi-conformance`.
//!
//! Three runs: the default order of execution; the stepped order under a printed seed
//! (`GAUDI_TEST_SEED` replays it); and cases that depend on time on the machine's clock.
//!
//! The output and the arguments are those of libtest: filters, `--exact`, `--skip`, `--list`.

use std::process::ExitCode;

use gaudi_conformance::cases::all;
use gaudi_conformance::{Case, Outcome, Row, Tag, run};

struct Run {
    name: &'static str,
    device: String,
    takes: fn(&Case) -> bool,
}

#[derive(Default)]
struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    /// Run only ignored tests, of which there are none.
    ignored: bool,
}

impl Arguments {
    fn read() -> Self {
        let mut read = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => read.exact = true,
                "--list" => read.list = true,
                "--ignored" => read.ignored = true,
                "--skip" => read.skips.extend(arguments.next()),
                // These have a value and no effect: cases run one after another without output.
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => _ = arguments.next(),
                flag if flag.starts_with('-') => {}
                filter => read.filters.push(filter.to_owned()),
            }
        }
        read
    }

    fn take(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter)
            }
        };
        !self.ignored
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::read();
    let seed = gaudi_random::seed();
    let runs = [
        Run {
            name: "running",
            device: "mock:gaudi2?clock=virtual&name=running".to_owned(),
            takes: |_| true,
        },
        Run {
            name: "stepped",
            device: format!("mock:gaudi2?clock=virtual&order=stepped&seed={seed}&name=stepped"),
            takes: |_| true,
        },
        Run {
            name: "monotonic",
            device: "mock:gaudi2?clock=monotonic&name=monotonic".to_owned(),
            takes: |case| case.has(Tag::Clock),
        },
    ];
    let name = |run: &Run, id: &str| format!("{}::{id}", run.name);
    let chosen = |run: &Run, case: &Case| (run.takes)(case) && arguments.take(&name(run, case.id));
    if arguments.list {
        for run in &runs {
            for case in all().filter(|case| chosen(run, case)) {
                println!("{}: test", name(run, case.id));
            }
        }
        return ExitCode::SUCCESS;
    }
    let whole: usize = runs
        .iter()
        .map(|run| all().filter(|case| (run.takes)(case)).count())
        .sum();
    let total: usize = runs
        .iter()
        .map(|run| all().filter(|case| chosen(run, case)).count())
        .sum();
    println!("\nrunning {total} tests");
    println!(
        "seed={seed} rev={} (GAUDI_TEST_SEED={seed} cargo test -p gaudi-conformance)",
        env!("CARGO_PKG_VERSION")
    );
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    for each in &runs {
        let mut report = |row: &Row| {
            let name = name(each, row.id);
            match &row.outcome {
                Outcome::Passed => {
                    passed += 1;
                    println!("test {name} ... ok");
                }
                Outcome::Failed(failure) => {
                    println!("test {name} ... FAILED");
                    failures.push((
                        name,
                        format!("{failure}\ndecided at {} of the driver", row.source),
                    ));
                }
                Outcome::Skipped { need } => {
                    ignored += 1;
                    println!("test {name} ... ignored, {need}");
                }
                Outcome::Unsupported { why } => {
                    ignored += 1;
                    println!("test {name} ... ignored, unsupported: {why}");
                }
                Outcome::ExpectedFailure { gap } => {
                    ignored += 1;
                    println!("test {name} ... ignored, expected failure: {gap}");
                }
            }
        };
        let spec = match each.device.parse() {
            Ok(spec) => spec,
            Err(error) => {
                failures.push((each.name.to_owned(), format!("{error}")));
                continue;
            }
        };
        if let Err(error) = run(&spec, all().filter(|case| chosen(each, case)), &mut report) {
            failures.push((
                each.name.to_owned(),
                format!("{} does not open: {error}", each.device),
            ));
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:\n");
        for (name, why) in &failures {
            println!("---- {name} stdout ----\n{why}\nseed={seed}\n");
        }
        println!("\nfailures:");
        failures.iter().for_each(|(name, _)| println!("    {name}"));
    }
    println!(
        "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; 0 measured; {} filtered out\n",
        if failures.is_empty() { "ok" } else { "FAILED" },
        failures.len(),
        whole - total,
    );
    // The exit code of libtest.
    ExitCode::from(if failures.is_empty() { 0 } else { 101 })
}
