//! Runs the conformance cases on a device, or lists them.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use gaudi_conformance::cases::all;
use gaudi_conformance::coverage::Coverage;
use gaudi_conformance::{Case, Outcome, Row, run};
use gaudi_seam::{DeviceSpec, ErrorKind};

/// How long the driver may reset a card that another process has closed.
const OPEN_LIMIT: Duration = Duration::from_secs(120);

/// Runs the driver's answers as named cases on a device and reports each outcome.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The device to run the cases on.
    #[arg(short, long, value_name = "SPEC", default_value = "mock:gaudi2?clock=virtual")]
    device: DeviceSpec,
    /// Only cases whose id contains this.
    #[arg(short, long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print id, chip and source of each case, separated by tabs, and exit.
    #[arg(short, long)]
    list: bool,
    /// Print the reference page about the part of the driver's interface that the cases cover.
    #[arg(long, conflicts_with_all = ["list", "json", "filter"])]
    coverage: bool,
    /// Print the answers of a fixed session, which recordings of the driver are made of.
    #[arg(long, conflicts_with_all = ["list", "json", "filter"])]
    session: bool,
    /// Print one JSON object per line and case.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = |case: &&Case| {
        arguments
            .filter
            .as_deref()
            .is_none_or(|text| case.id.contains(text))
    };
    if arguments.list {
        for case in all().filter(wanted) {
            println!("{}\t{}\t{}", case.id, case.group, case.source);
        }
        return ExitCode::SUCCESS;
    }
    if arguments.coverage {
        return coverage();
    }
    if arguments.session {
        return session(&arguments.device);
    }
    let report = |row: &Row| {
        if arguments.json {
            match serde_json::to_string(row) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("error: {}: {error}", row.id),
            }
            return;
        }
        print!("{:16} {}", row.outcome.word(), row.id);
        match (&row.outcome, row.outcome.reason()) {
            (Outcome::Failed(failure), _) => println!("\n    {failure}\n    decided at {}", row.source),
            (_, Some(why)) => println!(": {why}"),
            (_, None) => println!(),
        }
    };
    let report = match run(&arguments.device, all().filter(wanted), report) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            return ExitCode::FAILURE;
        }
    };
    if !arguments.json {
        println!(
            "\n{} cases on {}: {} passed, {} failed, {} skipped, {} unsupported, {} expected failures",
            report.rows.len(),
            arguments.device,
            report.passed(),
            report.failed(),
            report.count("skipped"),
            report.count("unsupported"),
            report.count("expected failure"),
        );
    }
    if report.rows.is_empty() {
        eprintln!("error: the filter matches no case");
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(report.failed() > 0))
}

/// Prints the page to standard output and its problems to standard error.
fn coverage() -> ExitCode {
    let coverage = match Coverage::observe() {
        Ok(coverage) => coverage,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", coverage.page());
    let problems = coverage.problems();
    problems.iter().for_each(|problem| eprintln!("error: {problem}"));
    ExitCode::from(u8::from(!problems.is_empty()))
}

/// Prints an answer a line. Opens the node again while the driver resets the card.
fn session(spec: &DeviceSpec) -> ExitCode {
    let end = Instant::now() + OPEN_LIMIT;
    let io = loop {
        match gaudi_hal::open(spec) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                thread::sleep(Duration::from_millis(100));
            }
            opened => break opened,
        }
    };
    let answers = io.map_err(|error| error.to_string());
    match answers.and_then(|io| gaudi_conformance::session(&io).map_err(|failure| failure.to_string())) {
        Ok(answers) => {
            answers.iter().for_each(|answer| println!("{answer}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
