//! `gaudi faults`: random sequences of the library's operations under random faults, in memory.

use std::ffi::OsString;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use gaudi::faults::{
    Case, Coverage, DeviceState, Invariant, NicPair, OPERATIONS, Outcome, Pair, Place, Stack, Violation,
    Where,
};
use gaudi::{Error, ErrorKind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::{Common, seconds};
use crate::exit;
use crate::faults_limit::{Running, Stuck, Worker};
use crate::faults_page;
use crate::faults_program;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{Column, columns, object, records};
use crate::saved::Saved;

/// Run the library under random faults, on mocks in memory.
#[derive(Debug, Args)]
pub(crate) struct Faults {
    #[command(subcommand)]
    command: Command,
}

impl Faults {
    /// Whether injected faults are not logged unless the user asks: a run has millions.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.command, Command::Run(_) | Command::Minimize(_))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run random cases: 20 operations each under a random plan, with every invariant checked.
    Run(Run),
    /// Run one case again, and print its plan and operations.
    Replay(Replay),
    /// Print the smallest case that breaks the same invariant as a case.
    Minimize(Replay),
    /// List the invariants, and which verdict meets which operation.
    List,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 if a case breaks an invariant; the result names the case, its smallest \
                  form and the command that repeats the whole case.\n\n\
                  Examples:\n  gaudi faults run --minutes 0.1\n  gaudi faults run --cases 100000 --seed 7 --jobs 2 --json\n  \
                  gaudi faults run --seeds 0..100 -- ./my-program"
)]
struct Run {
    /// How long to run; fractions are allowed.
    #[arg(long, value_name = "MINUTES", default_value = "1", value_parser = minutes)]
    minutes: Duration,
    /// Run so many cases, however long they take.
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = clap::value_parser!(u64).range(1..))]
    cases: Option<u64>,
    /// Threads; without it one for each processor. One more thread runs the cases on two nodes,
    /// which mostly wait.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Also write the coverage to FILE as an HTML page. A pair of the table that can meet and has
    /// not met is an error then.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    html: Option<PathBuf>,
    /// Run a program instead, once under the plan of each seed from A to the one before B:
    /// GAUDI_DEVICE names a mock with the plan. Crashes, hangs and leaks are reported.
    #[arg(long, value_name = "A..B", requires = "program", value_parser = faults_program::seeds,
          conflicts_with_all = ["minutes", "cases", "jobs"])]
    seeds: Option<Range<u64>>,
    /// Seconds that one case may take, and its reduction, or the program under one plan.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    /// The program and its arguments.
    #[arg(last = true, requires = "seeds", value_name = "CMD")]
    program: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi faults replay 7 --case 12\n  gaudi faults minimize 7 --case 12 || echo found"
)]
struct Replay {
    /// The seed of the run.
    seed: u64,
    /// The number of the case.
    #[arg(long, value_name = "N")]
    case: u64,
    /// Seconds that the case may take, and its reduction.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = seconds)]
    timeout: Duration,
}

/// A case and a run in which it broke an invariant.
type Failed = (Case, Outcome);

/// A case that does not end.
fn endless(case: Case, limit: Duration) -> Failed {
    let mut outcome = Outcome::default();
    outcome.violations.push(Violation {
        invariant: Invariant::TimeBudget,
        what: format!("the case runs for more than {limit:?} of real time"),
    });
    (case, outcome)
}

/// Reduces a failed case, and shows `running` every step.
fn reduce(stack: &mut Stack, running: &Running<Failed>, case: Case, outcome: Outcome) -> Failed {
    running.reduce((case.clone(), outcome.clone()));
    stack.reduce_and(case, outcome, |case, outcome| {
        running.reduce((case.clone(), outcome.clone()));
    })
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    let wanted = || "a number of minutes above 0, at most 100000".to_owned();
    if !(minutes > 0.0 && minutes <= 1e5) {
        return Err(wanted());
    }
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| wanted())
}

/// The cases between two readings of the clock.
const BATCH: u64 = 64;
/// Cases on two nodes that wait for their thread. If there are more, the other threads run them
/// too.
const BACKLOG: usize = 4;
/// The time between two looks at the state of the other threads.
const LOOK: Duration = Duration::from_millis(20);

/// What threads found.
#[derive(Debug, Default)]
struct Totals {
    cases: u64,
    with_faults: u64,
    calls: u64,
    coverage: Coverage,
    failed: Option<Failed>,
}

impl Totals {
    fn merge(&mut self, other: Self) {
        self.cases += other.cases;
        self.with_faults += other.with_faults;
        self.calls += other.calls;
        self.coverage.merge(&other.coverage);
        // The case with the lowest number, so that the result does not depend on the threads.
        let earlier = |own: &Failed, other: &Failed| own.0.number < other.0.number;
        self.failed = match (self.failed.take(), other.failed) {
            (Some(own), Some(other)) => Some(if earlier(&own, &other) { own } else { other }),
            (own, other) => own.or(other),
        };
    }
}

/// What all threads of a run share. Each takes batches of case numbers.
struct Shared {
    seed: u64,
    next: AtomicU64,
    cases: Option<u64>,
    end: Instant,
    stop: AtomicBool,
    progress: Mutex<Progress>,
}

impl Shared {
    /// Runs batches of cases. `nodes` takes the numbers of those on two nodes: they wait for
    /// timeouts in the machine's time, and this thread does not.
    fn work(&self, running: &Running<Failed>, nodes: &SyncSender<u64>) -> Result<Totals> {
        let mut stack = Stack::new()?;
        let mut totals = Totals::default();
        while !self.stop.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(BATCH, Ordering::Relaxed);
            let end = self.cases.unwrap_or(u64::MAX).min(first.saturating_add(BATCH));
            if first >= end || (self.cases.is_none() && Instant::now() >= self.end) {
                break;
            }
            for number in first..end {
                let case = Case::mixed(self.seed, number);
                if case.place == Where::Nodes && nodes.try_send(number).is_ok() {
                    continue;
                }
                running.begin(number);
                self.run(case, running, &mut stack, &mut totals)?;
                if totals.failed.is_some() {
                    return Ok(totals);
                }
            }
            let mut progress = self
                .progress
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            progress.advance(match self.cases {
                Some(_) => end - first,
                None => 0,
            });
        }
        Ok(totals)
    }

    /// Runs the cases with these numbers, until no thread sends more.
    fn work_on_nodes(&self, running: &Running<Failed>, numbers: &Receiver<u64>) -> Result<Totals> {
        let mut stack = Stack::default();
        let mut totals = Totals::default();
        while !self.stop.load(Ordering::Relaxed) {
            // A thread that hangs never disconnects.
            match numbers.recv_timeout(LOOK) {
                Ok(number) => {
                    running.begin(number);
                    let case = Case::mixed(self.seed, number);
                    self.run(case, running, &mut stack, &mut totals)?;
                    running.rest();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(totals)
    }

    /// Runs a case. If it breaks an invariant, reduces it and stops all threads.
    fn run(
        &self,
        case: Case,
        running: &Running<Failed>,
        stack: &mut Stack,
        totals: &mut Totals,
    ) -> Result<()> {
        let outcome = stack
            .run(&case)
            .with_context(|| format!("case {} of seed {} cannot run", case.number, case.seed))?;
        totals.cases += 1;
        totals.with_faults += u64::from(outcome.has_fault());
        totals.calls += outcome.calls;
        totals.coverage.add_case(case.place, &outcome);
        if !outcome.violations.is_empty() {
            self.stop.store(true, Ordering::Relaxed);
            totals.failed = Some(reduce(stack, running, case, outcome));
        }
        Ok(())
    }
}

const PAIRS: &[Column<Pair>] = &columns! { Pair:
    text "verdict" "verdict" |pair| pair.verdict;
    text "operation" "operation" |pair| pair.operation.name();
    grouped "idle" "idle" |pair| pair.faults[0];
    grouped "mapped" "mapped" |pair| pair.faults[1];
    grouped "busy" "busy" |pair| pair.faults[2];
    grouped "after_reset" "after reset" |pair| pair.faults[3];
    text "never" "" |pair| pair.never;
};

const NIC_PAIRS: &[Column<NicPair>] = &columns! { NicPair:
    text "verdict" "verdict" |pair| pair.verdict;
    text "event" "event" |pair| pair.event.name();
    grouped "runs" "runs" |pair| pair.runs;
    text "never" "" |pair| pair.never;
};

type Row = (Where, Place);

const PLACES: &[Column<Row>] = &columns! { Row:
    text "place" "place" |row| row.0.name();
    grouped "cases" "cases" |row| row.1.cases;
    grouped "with_faults" "with faults" |row| row.1.with_faults;
    text "code" "code under test" |row| row.0.code();
};

const _: () = assert!(DeviceState::ALL.len() == 4, "a column for each state");

pub(crate) fn run(common: &Common, faults: &Faults, output: &mut Output) -> Result<u8> {
    match &faults.command {
        Command::Run(arguments) => run_cases(common, arguments, output),
        Command::Replay(arguments) => replay(arguments, false, output),
        Command::Minimize(arguments) => replay(arguments, true, output),
        Command::List => list(output),
    }
}

fn run_cases(common: &Common, arguments: &Run, output: &mut Output) -> Result<u8> {
    if let Some(seeds) = arguments.seeds.clone() {
        return faults_program::run(&arguments.program, seeds, arguments.timeout, output);
    }
    let jobs = arguments.jobs.map_or_else(
        || thread::available_parallelism().map_or(1, usize::from),
        |jobs| jobs as usize,
    );
    let seed = common.seed.unwrap_or_else(gaudi::sys::clock::monotonic_raw_ns);
    output.note(format!("seed {seed}, {jobs} jobs, on mocks in memory"));
    let begin = Instant::now();
    let shared = Arc::new(Shared {
        seed,
        next: AtomicU64::new(0),
        cases: arguments.cases,
        end: begin + arguments.minutes,
        stop: AtomicBool::new(false),
        progress: Mutex::new(Progress::new(
            "cases",
            arguments.cases.unwrap_or(0),
            output.is_quiet(),
        )),
    });
    let totals = gather(&shared, jobs, arguments.timeout)?;
    drop(shared);
    let seconds = begin.elapsed().as_secs_f64();
    let per_minute = totals.cases as f64 * 60.0 / seconds.max(1e-9);
    let (pairs, nic_pairs) = (totals.coverage.pairs(), totals.coverage.nic_pairs());
    let places: Vec<Row> = totals.coverage.places().collect();
    let failure = totals.failed.as_ref();
    if let Some(file) = &arguments.html {
        let summary = format!(
            "{} cases of seed {seed} on a mock, faults in {} of them, {} calls",
            totals.cases, totals.with_faults, totals.calls
        );
        write_page(file, &summary, &pairs)?;
    }
    if output.is_json() {
        let document = object! {
            backend: "mock",
            seed: seed,
            jobs: jobs,
            cases: totals.cases,
            operations_per_case: OPERATIONS,
            with_faults: totals.with_faults,
            calls: totals.calls,
            seconds: seconds,
            per_minute: per_minute.round(),
            failure: failure.map(|(case, outcome)| described(case, &outcome.violations)),
            coverage: records(PAIRS, &pairs),
            nic_coverage: records(NIC_PAIRS, &nic_pairs),
            places: records(PLACES, &places),
        };
        output.document("gaudi.faults", &document)?;
    } else {
        let met: Vec<Pair> = pairs
            .iter()
            .filter(|pair| pair.faults.iter().any(|&count| count > 0))
            .cloned()
            .collect();
        output.rows(PAIRS, &met)?;
        let nic_met: Vec<NicPair> = nic_pairs.iter().filter(|pair| pair.runs > 0).cloned().collect();
        if !nic_met.is_empty() {
            output.rows(NIC_PAIRS, &nic_met)?;
        }
        output.rows(PLACES, &places)?;
        let count = |never: bool| pairs.iter().filter(|pair| pair.never.is_some() == never).count();
        output.line(format!(
            "{} of {} pairs met; {} cannot meet or are not drawn (gaudi faults list)",
            met.len(),
            count(false),
            count(true)
        ))?;
        output.line(format!(
            "{} cases on a mock in {seconds:.1} s, {per_minute:.0} a minute; faults in {} of them; {} calls",
            totals.cases, totals.with_faults, totals.calls
        ))?;
        if let Some((case, outcome)) = failure {
            print_case(case, &outcome.violations, output)?;
        }
    }
    match arguments.html {
        Some(_) if failure.is_none() => complete(&totals.coverage.missing()),
        _ => verdict(failure),
    }
}

fn write_page(file: &Path, summary: &str, pairs: &[Pair]) -> Result<()> {
    let mut saved = Saved::create(file)?;
    let page = faults_page::page("Coverage of fault runs", summary, pairs);
    saved
        .write_all(page.as_bytes())
        .with_context(|| format!("cannot write to {}", file.display()))?;
    saved.keep()
}

/// The exit code of a run with a page: every cell without a count needs a reason.
fn complete(missing: &[Pair]) -> Result<u8> {
    exit::judged(missing.is_empty(), Ok(()), || {
        let first = missing.first().map_or(String::new(), |pair| {
            format!("{} of {}", pair.verdict, pair.operation.name())
        });
        let what = format!(
            "{} pairs can meet and have not met, such as {first}: run more cases",
            missing.len()
        );
        Error::new(ErrorKind::Corrupt, "faults").because(what)
    })
}

/// What a thread does.
type Work = Box<dyn FnOnce(&Shared, &Running<Failed>) -> Result<Totals> + Send>;

/// Runs the cases in threads. A case that takes longer than `limit` has failed; its thread runs
/// until the process ends.
fn gather(shared: &Arc<Shared>, jobs: usize, limit: Duration) -> Result<Totals> {
    let main = thread::current();
    let spawn = |work: Work| {
        let (running, main) = (Running::default(), main.clone());
        let (shared, own) = (Arc::clone(shared), running.clone());
        let thread = thread::spawn(move || {
            let found = work(&shared, &own);
            drop(shared);
            main.unpark();
            found
        });
        Worker::new(thread, running)
    };
    let (nodes, numbers) = sync_channel(BACKLOG);
    let mut workers = vec![spawn(Box::new(move |shared, running| {
        shared.work_on_nodes(running, &numbers)
    }))];
    workers.extend((0..jobs).map(|_| {
        let nodes = nodes.clone();
        spawn(Box::new(move |shared, running| shared.work(running, &nodes)))
    }));
    drop(nodes);
    let mut totals = Totals::default();
    while !workers.is_empty() {
        thread::park_timeout(LOOK);
        let mut waiting = Vec::new();
        for mut worker in workers {
            if worker.is_finished() {
                totals.merge(worker.join()?);
            } else if let Some(stuck) = worker.stuck(limit) {
                shared.stop.store(true, Ordering::Relaxed);
                totals.merge(Totals {
                    failed: Some(match stuck {
                        Stuck::Case(number) => endless(Case::mixed(shared.seed, number), limit),
                        Stuck::Reduction(smallest) => smallest,
                    }),
                    ..Totals::default()
                });
            } else {
                waiting.push(worker);
            }
        }
        workers = waiting;
    }
    Ok(totals)
}

/// The exit code, and the error if a case breaks an invariant.
fn verdict(failure: Option<&Failed>) -> Result<u8> {
    exit::judged(failure.is_none(), Ok(()), || {
        let what = failure.map_or(String::new(), |(case, _)| {
            format!("case {} of seed {} breaks an invariant", case.number, case.seed)
        });
        Error::new(ErrorKind::Corrupt, "faults").because(what)
    })
}

#[derive(Serialize)]
struct Described {
    seed: u64,
    case: u64,
    violations: Vec<Value>,
    plan: String,
    operations: Vec<String>,
    again: String,
}

fn described(case: &Case, violations: &[Violation]) -> Described {
    let violations = violations
        .iter()
        .map(|violation| json!({"invariant": violation.invariant.name(), "what": violation.what}));
    Described {
        seed: case.seed,
        case: case.number,
        violations: violations.collect(),
        plan: case.plan.to_string(),
        operations: case.ops.iter().map(|(_, op)| op.to_string()).collect(),
        again: again(case),
    }
}

fn again(case: &Case) -> String {
    format!("gaudi faults replay {} --case {}", case.seed, case.number)
}

fn print_case(case: &Case, violations: &[Violation], output: &mut Output) -> Result<()> {
    for violation in violations {
        output.hanging("violated: ", &violation.to_string())?;
    }
    for line in case.to_string().lines() {
        output.line(line)?;
    }
    output.line(format!("again: {}", again(case)))
}

fn replay(arguments: &Replay, minimize: bool, output: &mut Output) -> Result<u8> {
    let case = Case::mixed(arguments.seed, arguments.case);
    let ran = run_limited(case, minimize, arguments.timeout)?;
    let (case, outcome) = &ran;
    if output.is_json() {
        let document = object! {
            backend: "mock",
            case: described(case, &outcome.violations),
            calls: outcome.calls,
            faults: outcome.met.len() + outcome.nic_fired.len(),
            unfired: outcome.unfired.iter().map(ToString::to_string).collect::<Vec<_>>(),
        };
        output.document("gaudi.faults.case", &document)?;
    } else {
        print_case(case, &outcome.violations, output)?;
        output.line(format!(
            "{} calls, {} faults on a mock",
            outcome.calls,
            outcome.met.len() + outcome.nic_fired.len()
        ))?;
        for rule in &outcome.unfired {
            output.note(format!("injected nothing: {rule}"));
        }
    }
    verdict((!outcome.violations.is_empty()).then_some(&ran))
}

/// Runs a case in a thread, which is left behind if it takes longer than `limit`. Returns the case,
/// or its smallest form, and its run.
fn run_limited(case: Case, minimize: bool, limit: Duration) -> Result<Failed> {
    let running = Running::default();
    running.begin(case.number);
    let (own, same, main) = (running.clone(), case.clone(), thread::current());
    let run = move || -> Result<Failed> {
        let mut stack = Stack::default();
        let outcome = stack.repeat(&case)?;
        Ok(match minimize {
            true => reduce(&mut stack, &own, case, outcome),
            false => (case, outcome),
        })
    };
    let thread = thread::spawn(move || {
        let ran = run();
        main.unpark();
        ran
    });
    let mut worker = Worker::new(thread, running);
    while !worker.is_finished() {
        thread::park_timeout(LOOK);
        match worker.stuck(limit) {
            Some(Stuck::Case(_)) => return Ok(endless(same, limit)),
            Some(Stuck::Reduction(smallest)) => return Ok(smallest),
            None => {}
        }
    }
    worker.join()
}

const INVARIANTS: &[Column<Invariant>] = &columns! { Invariant:
    text "name" "invariant" |invariant| invariant.name();
    text "holds" "what holds" |invariant| invariant.holds();
};

const REASONS: &[Column<Pair>] = &columns! { Pair:
    text "verdict" "verdict" |pair| pair.verdict;
    text "operation" "operation" |pair| pair.operation.name();
    text "never" "never meets because" |pair| pair.never;
};

fn list(output: &mut Output) -> Result<u8> {
    let pairs = Coverage::default().pairs();
    if output.is_json() {
        let document = object! {
            invariants: records(INVARIANTS, Invariant::ALL),
            pairs: records(REASONS, &pairs),
        };
        output.document("gaudi.faults.list", &document)?;
    } else {
        output.rows(INVARIANTS, Invariant::ALL)?;
        output.rows(REASONS, &pairs)?;
    }
    Ok(exit::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_may_be_fractions() {
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        for wrong in ["0", "-1", "inf", "nan", "1e9", "soon"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
