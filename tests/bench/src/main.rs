//! Prints what the stack costs beside its peers, as a table.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use gaudi_bench::count;
use gaudi_bench::harness::Made;
use gaudi_bench::harness::{Effort, RULES, run, table};
use gaudi_bench::rows::{ENTRIES, Entry};
use gaudi_bench::tracing;

/// The exit code of a usage error.
const USAGE: u8 = 2;

/// What the stack costs, beside a peer in the same run: medians, and best blocks in brackets.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Short blocks: shows that every row runs, and no figure that means anything.
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Count instructions with valgrind instead of taking times.
    #[arg(long)]
    count: bool,
    /// Do this and nothing else, for a counter of instructions.
    #[arg(long, value_name = "WHAT", hide = true)]
    perform: Option<String>,
    /// How often.
    #[arg(long, value_name = "N", default_value_t = 1, hide = true)]
    times: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(only) = arguments
        .only
        .as_ref()
        .filter(|only| selected(only).next().is_none() && !tracing::NAME.contains(only.as_str()))
    {
        let names: Vec<_> = ENTRIES
            .iter()
            .map(|entry| entry.name)
            .chain([tracing::NAME])
            .collect();
        eprintln!(
            "error: --only {only:?} matches no row; rows: {}",
            names.join(", ")
        );
        return ExitCode::from(USAGE);
    }
    let done = match &arguments.perform {
        Some(subject) => count::perform(subject, arguments.times).map_err(Into::into),
        None if arguments.count => {
            counts();
            Ok(())
        }
        None => times(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The rows whose name contains this.
fn selected(only: &str) -> impl Iterator<Item = &'static Entry> + use<'_> {
    ENTRIES.iter().filter(move |entry| entry.name.contains(only))
}

fn counts() {
    println!("instructions an operation, on a stub kernel");
    let mut numbers = BTreeMap::new();
    for &subject in count::SUBJECTS {
        match count::instructions(subject) {
            Ok(number) => {
                println!("{subject:20} {number:8.1}");
                numbers.insert(subject, number);
            }
            Err(why) => println!("{subject:20}        - {why}"),
        }
    }
    for (subject, beside, most) in count::RATIOS {
        let (Some(number), Some(other)) = (numbers.get(subject), numbers.get(beside)) else {
            continue;
        };
        let ratio = number / other;
        let verdict = if ratio <= *most { "met" } else { "MISSED" };
        println!("{subject} / {beside}: {ratio:.4}, goal ≤ {most}: {verdict}");
    }
}

fn load() -> String {
    // The load is shown beside the figures; without /proc it is empty.
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.trim().to_owned()
}

fn times(arguments: &Arguments) -> Made<()> {
    let effort = if arguments.quick {
        Effort::QUICK
    } else {
        Effort::FULL
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    println!("load {} on {cores} processors", load());
    if cfg!(debug_assertions) || arguments.quick {
        println!("no figure here means anything: a build for tests, or blocks too short");
    }
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64);
    let mut outcomes = Vec::new();
    for entry in selected(arguments.only.as_deref().unwrap_or_default()) {
        for row in (entry.make)()? {
            outcomes.push(run(row, effort, &mut seed));
        }
    }
    let mut goals = outcomes.len();
    let mut more = 0;
    if !outcomes.is_empty() {
        println!("{}", table(&outcomes));
    }
    if tracing::NAME.contains(arguments.only.as_deref().unwrap_or_default()) {
        let (all, missed) = tracing::report(arguments.quick)?;
        goals += all;
        more = missed;
    }
    if outcomes.iter().any(|outcome| outcome.by_laps) {
        println!("{RULES}");
    }
    let missed = outcomes
        .iter()
        .filter(|outcome| outcome.is_met() == Some(false))
        .count()
        + more;
    println!("{missed} of {goals} goals missed; load {}", load());
    Ok(())
}
