//! Runs the stack under faults: many cases of a seed, or one case again.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use gaudi_layers::fault::Plan;
use gaudi_seam::{Error, ErrorKind};
use gaudi_sim::Mutation;
use gaudi_sim::case::Case;
use gaudi_sim::run::Runner;
use gaudi_sim::shrink::shrink;

/// Runs random operation sequences under random fault plans, each on its own mock, in virtual time.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The seed of all cases [default: GAUDI_TEST_SEED, otherwise from the clock].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The number of cases.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// The number of the first case.
    #[arg(long, value_name = "K", default_value_t = 0)]
    from: u64,
    /// Run only this case.
    #[arg(long, value_name = "K")]
    case: Option<u64>,
    /// Run only these operations of that case.
    #[arg(long, value_name = "NUMBERS", requires = "case", value_parser = numbers)]
    only: Option<Numbers>,
    /// Run that case with this plan instead of its own.
    #[arg(long, value_name = "PLAN", requires = "case")]
    plan: Option<Plan>,
    /// Break this rule; the run succeeds if it detects the defect.
    #[arg(long, value_name = "NAME", value_parser = mutation)]
    mutate: Option<Mutation>,
    /// Continue after failures, and report at most this many.
    #[arg(long, value_name = "N", default_value_t = 1)]
    failures: u64,
    /// Do not reduce failing cases.
    #[arg(long)]
    no_shrink: bool,
}

/// Numbers of operations, separated by commas; may be empty.
#[derive(Debug, Clone)]
struct Numbers(Vec<usize>);

fn numbers(text: &str) -> Result<Numbers, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let read = |word: &str| {
        word.parse()
            .map_err(|_| format!("{word:?} is not the number of an operation"))
    };
    words.map(read).collect::<Result<_, _>>().map(Numbers)
}

fn mutation(name: &str) -> Result<Mutation, String> {
    let all = Mutation::ALL;
    all.iter()
        .copied()
        .find(|known| known.name() == name)
        .ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|known| known.name()).collect();
            format!("unknown mutation; known: {}", names.join(", "))
        })
}

/// The time after which a run counts as hung: no case waits for the machine's clock.
const HANG_LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> gaudi_seam::Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(gaudi_random::seed);
    let mut runner = Runner::new(arguments.mutate)?;
    if arguments.mutate.is_some() {
        // A panic caused by the mutation is caught and reported, so its backtrace is not needed.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let now = Arc::new(AtomicU64::new(arguments.case.unwrap_or(arguments.from)));
    watch(seed, Arc::clone(&now), runner.beat());
    if let Some(number) = arguments.case {
        return one(arguments, &mut runner, seed, number);
    }
    let Some(end) = arguments.from.checked_add(arguments.cases) else {
        return Err(Error::new(ErrorKind::InvalidInput, "count cases")
            .saw(arguments.from, "a first case with room for the rest"));
    };
    println!("seed {seed}, cases {} to {}", arguments.from, end - 1);
    let start = Instant::now();
    let mut failed = 0;
    for number in arguments.from..end {
        now.store(number, Ordering::Relaxed);
        let case = Case::generate(seed, number);
        let violations = runner.run(&case);
        if violations.is_empty() {
            continue;
        }
        failed += 1;
        report(arguments, &mut runner, &case, violations);
        if failed == arguments.failures {
            break;
        }
    }
    let (counts, seconds) = (&runner.counts, start.elapsed().as_secs_f64());
    println!(
        "{} cases in {seconds:.1} s ({:.0} per second), {} with an injected fault; {} operations, {} calls to the driver, {:.2} faults per case",
        counts.cases,
        counts.cases as f64 / seconds,
        counts.with_faults,
        counts.operations,
        counts.calls,
        counts.faults as f64 / counts.cases.max(1) as f64
    );
    let errnos: Vec<String> = counts
        .errnos
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    println!("refusals that the stack received: {}", errnos.join(", "));
    println!("{failed} failed");
    Ok(verdict(arguments, failed > 0))
}

/// Violations mean failure, except under a mutation, which they prove to be detected.
fn verdict(arguments: &Arguments, violated: bool) -> ExitCode {
    ExitCode::from(u8::from(violated != arguments.mutate.is_some()))
}

fn one(arguments: &Arguments, runner: &mut Runner, seed: u64, number: u64) -> gaudi_seam::Result<ExitCode> {
    let mut case = Case::generate(seed, number);
    if let Some(Numbers(only)) = &arguments.only {
        let kept = only.iter().map(|&at| case.ops.get(at).copied().ok_or(at));
        case.ops = kept.collect::<Result<_, _>>().map_err(|at| {
            Error::new(ErrorKind::InvalidInput, "choose operations").saw(
                at,
                format!("below {}, the operations of the case", case.ops.len()),
            )
        })?;
    }
    if let Some(plan) = &arguments.plan {
        case.plan = plan.clone();
    }
    for op in &case.ops {
        println!("{op}");
    }
    println!("plan: {}", case.plan);
    let violations = runner.run(&case);
    for violation in &violations {
        println!("violated: {violation}");
    }
    println!("{}", if violations.is_empty() { "passed" } else { "failed" });
    Ok(verdict(arguments, !violations.is_empty()))
}

fn report(arguments: &Arguments, runner: &mut Runner, case: &Case, violations: Vec<String>) {
    let small = match arguments.no_shrink {
        true => None,
        false => shrink(runner, case),
    };
    match small {
        Some(failure) => println!("{failure}"),
        None => println!(
            "seed {} case {} failed once and passed when it was repeated to reduce it: {violations:#?}",
            case.seed, case.number
        ),
    }
}

/// Ends the process if one run of a case takes longer than `HANG_LIMIT`, and prints the command
/// that repeats it. `beat` counts the runs.
fn watch(seed: u64, now: Arc<AtomicU64>, beat: Arc<AtomicU64>) {
    let watched = std::thread::Builder::new().name("watch".into()).spawn(move || {
        let mut last = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let runs = beat.load(Ordering::Relaxed);
            if runs != last.0 {
                last = (runs, Instant::now());
            } else if last.1.elapsed() > HANG_LIMIT {
                let number = now.load(Ordering::Relaxed);
                eprintln!(
                    "seed {seed} case {number} hangs; again: cargo run -p gaudi-sim --release -- --seed {seed} --case {number}"
                );
                std::process::exit(2);
            }
        }
    });
    if let Err(error) = watched {
        eprintln!("cannot start the thread that detects hung cases: {error}");
    }
}
