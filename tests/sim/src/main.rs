//! Runs the stack under faults: many cases of a seed, or one of them again.

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

/// Random operation sequences under random fault plans, on mocks of their own, in virtual time.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// What all cases are made from; that of GAUDI_TEST_SEED, else a number of the clock's, if it is left out.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many cases.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// The first of them.
    #[arg(long, value_name = "K", default_value_t = 0)]
    from: u64,
    /// This one only.
    #[arg(long, value_name = "K")]
    case: Option<u64>,
    /// Of that one, these operations only.
    #[arg(long, value_name = "NUMBERS", requires = "case", value_parser = numbers)]
    only: Option<Numbers>,
    /// With that one, this plan instead of its own.
    #[arg(long, value_name = "PLAN", requires = "case")]
    plan: Option<Plan>,
    /// Break this rule on purpose; it is a success if that is caught.
    #[arg(long, value_name = "NAME", value_parser = mutation)]
    mutate: Option<Mutation>,
    /// Go on after failures, and show as many.
    #[arg(long, value_name = "N", default_value_t = 1)]
    failures: u64,
    /// Leave failing cases as they are.
    #[arg(long)]
    no_shrink: bool,
}

/// Numbers of operations, with commas between them; perhaps none.
#[derive(Debug, Clone)]
struct Numbers(Vec<usize>);

fn numbers(text: &str) -> Result<Numbers, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let read = |word: &str| {
        word.parse()
            .map_err(|_| format!("{word:?} is no number of an operation"))
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
            format!("no such mutation; known: {}", names.join(", "))
        })
}

/// A run of a case that takes this long hangs: nothing in it waits for the machine's clock.
const HANGS: Duration = Duration::from_secs(60);

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
        // A defect may well end in a panic, which is caught and told; its trace is of no use.
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
        tell(arguments, &mut runner, &case, violations);
        if failed == arguments.failures {
            break;
        }
    }
    let (counts, seconds) = (&runner.counts, start.elapsed().as_secs_f64());
    println!(
        "{} cases in {seconds:.1} s ({:.0} a second), {} with a fault that struck; {} operations, {} calls to the driver, {:.2} faults a case",
        counts.cases,
        counts.cases as f64 / seconds,
        counts.struck,
        counts.operations,
        counts.calls,
        counts.faults as f64 / counts.cases.max(1) as f64
    );
    let errnos: Vec<String> = counts
        .errnos
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    println!("refusals that the stack met: {}", errnos.join(", "));
    println!("{failed} failed");
    Ok(verdict(arguments, failed > 0))
}

/// Violations are a failure, but where a rule is broken on purpose: there they are what is wanted.
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
    println!("{}", if violations.is_empty() { "held" } else { "failed" });
    Ok(verdict(arguments, !violations.is_empty()))
}

fn tell(arguments: &Arguments, runner: &mut Runner, case: &Case, violations: Vec<String>) {
    let small = match arguments.no_shrink {
        true => None,
        false => shrink(runner, case),
    };
    match small {
        Some(failure) => println!("{failure}"),
        None => println!(
            "seed {} case {} failed, and not again when it was to be made small: {violations:#?}",
            case.seed, case.number
        ),
    }
}

/// Ends the process where one run of a case takes too long, with what repeats it. `beat` counts the runs.
fn watch(seed: u64, now: Arc<AtomicU64>, beat: Arc<AtomicU64>) {
    let watched = std::thread::Builder::new().name("watch".into()).spawn(move || {
        let mut last = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let runs = beat.load(Ordering::Relaxed);
            if runs != last.0 {
                last = (runs, Instant::now());
            } else if last.1.elapsed() > HANGS {
                let number = now.load(Ordering::Relaxed);
                eprintln!(
                    "seed {seed} case {number} hangs; again: cargo run -p gaudi-sim --release -- --seed {seed} --case {number}"
                );
                std::process::exit(2);
            }
        }
    });
    if let Err(error) = watched {
        eprintln!("nobody watches for cases that hang: {error}");
    }
}
