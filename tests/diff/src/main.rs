//! `gaudi-diff`: the mock and the real driver, asked the same.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gaudi_diff::{Plan, run};
use gaudi_seam::DeviceSpec;

/// Asks two devices the same generated operations and compares every answer
#[derive(Parser)]
#[command(name = "gaudi-diff")]
struct Args {
    /// How many sequences
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Operations in each sequence
    #[arg(long, default_value_t = 200)]
    ops: usize,
    /// What the sequences are made from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first sequence: a later one of a seed can be run by itself
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The one side
    #[arg(long, default_value = "mock:gaudi2")]
    mock: DeviceSpec,
    /// The other side
    #[arg(long, default_value = "kernel:0")]
    driver: DeviceSpec,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = Plan {
        seed: args.seed,
        first: args.first,
        cases: args.cases,
        ops: args.ops,
    };
    let mut told = Instant::now();
    let mut found = 0;
    let report = run(&plan, [&args.mock, &args.driver], |report| {
        if report.differences() > found || told.elapsed() > Duration::from_secs(30) {
            println!(
                "{} operations, {} differences",
                report.operations(),
                report.differences()
            );
            report
                .latest()
                .filter(|_| report.differences() > found)
                .inspect(|latest| println!("{latest}"));
            (told, found) = (Instant::now(), report.differences());
        }
    });
    match report {
        Ok(report) => {
            println!("{report}");
            match report.differences() {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("gaudi-diff: {error:?}");
            ExitCode::FAILURE
        }
    }
}
