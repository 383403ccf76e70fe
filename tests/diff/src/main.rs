//! `gaudi-diff`: compares the mock with the real driver.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gaudi_diff::{Plan, run};
use gaudi_seam::DeviceSpec;

/// Runs the same generated operations on two devices and compares every answer
#[derive(Parser)]
#[command(name = "gaudi-diff")]
struct Args {
    /// The number of sequences
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Operations in each sequence
    #[arg(long, default_value_t = 200)]
    ops: usize,
    /// The seed of the sequences
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first sequence of the seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The device to compare
    #[arg(long, default_value = "mock:gaudi2")]
    mock: DeviceSpec,
    /// The device to compare it with
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
    let mut printed = Instant::now();
    let mut found = 0;
    let report = run(&plan, [&args.mock, &args.driver], |report| {
        if report.differences() > found || printed.elapsed() > Duration::from_secs(30) {
            println!(
                "{} operations, {} differences",
                report.operations(),
                report.differences()
            );
            report
                .latest()
                .filter(|_| report.differences() > found)
                .inspect(|latest| println!("{latest}"));
            (printed, found) = (Instant::now(), report.differences());
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
