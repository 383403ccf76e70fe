//! `cargo xtask lab test`: test binaries of this machine's cargo, run in a guest of each kernel.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;

use super::bench::{GuestKernel, LIMIT, Tools, Variant, bench, console_tail, folder, kernel, lock, machine};
use super::build::{self, Binary, count};
use super::card::Cards;
use super::channel::Message;
use super::guest::{Side, Verdict};
use super::image::{Job, PROGRAMS, Program};
use super::kernels::{Kernel, Kernels};
use crate::ledger::Row;
use crate::missing::or_missing;
use crate::packages::Cache;
use crate::run::Outcome;
use crate::test::report::{Report, skips, test_line};
use crate::workspace::Workspace;

/// The crate whose tests are ignored on the host, since they need a kernel that we chose.
pub(crate) const CRATE: &str = "gaudi-lab";

/// What `lab test` runs.
#[derive(Args, Default)]
pub(crate) struct Selection {
    /// A kernel's id (repeatable); all when none is given
    #[arg(long = "kernel", value_name = "ID")]
    kernels: Vec<String>,
    /// A crate of the workspace (repeatable); those of kernels.toml when none is given
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,
    /// Run it so many times, each in a fresh guest; the first run that fails is the last
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Build the tests for speed: for what moves much
    #[arg(long)]
    release: bool,
    /// Words for the test harness, such as a part of a test's name
    #[arg(last = true)]
    words: Vec<String>,
}

/// Fetches and builds what the lab needs, so that [`rows`] finds it in the cache.
pub(crate) fn prepare(workspace: &Workspace) -> Row {
    Row::time("lab fetch", |row| {
        let mut prepared = || {
            let kernels = Kernels::load(&workspace.root)?;
            let cache = or_missing(Cache::open())?;
            let _lock = cache
                .as_ref()
                .ok()
                .map(|cache| lock(workspace, cache))
                .transpose()?;
            let chosen = kernels.chosen(&[])?;
            set_up(row, workspace, &cache, &kernels, &chosen);
            anyhow::Ok(())
        };
        if let Err(error) = prepared() {
            row.fail(format!("{error:#}"));
        }
    })
}

/// One row for the set-up, one for each kernel.
pub(crate) fn rows(workspace: &Workspace, choice: &Selection) -> anyhow::Result<Vec<Row>> {
    let kernels = Kernels::load(&workspace.root)?;
    let chosen = kernels.chosen(&choice.kernels)?;
    let crates = crates(workspace, &kernels, &choice.packages)?;
    let mut binaries = Vec::new();
    let mut programs_built = Vec::new();
    let mut vgaudi = PathBuf::new();
    let mut rows = vec![Row::time("lab build", |row| {
        match build::tests(workspace, &crates, &kernels.guest, choice.release) {
            Ok(built) => {
                (binaries, programs_built, vgaudi) = built;
                row.pass();
            }
            Err(error) => row.fail(format!("{error:#}")),
        }
    })];
    if rows[0].counts.failed > 0 {
        return Ok(rows);
    }
    binaries.retain(|binary| !kernels.guest.host_only.contains(&binary.name));
    if !choice.words.is_empty() {
        // For a word that names no test of a program no guest need boot.
        binaries.retain(|binary| count([binary], &choice.words) > 0);
    }
    let cache = or_missing(Cache::open())?;
    // Without a cache nothing will run.
    let _lock = cache
        .as_ref()
        .ok()
        .map(|cache| lock(workspace, cache))
        .transpose()?;
    let mut ready = None;
    rows.push(Row::time("lab set-up", |row| {
        ready = Some(set_up(row, workspace, &cache, &kernels, &chosen));
    }));
    let ready = ready.context("the set-up did not run")?;
    let is_pair = |binary: &&Binary| kernels.guest.pairs.contains(&binary.name);
    let (pairs, alone): (Vec<_>, Vec<_>) = binaries.iter().partition(is_pair);
    for turn in 1..=choice.repeat.max(1) {
        let mut guests = Vec::new();
        // The newest kernel's first: it runs what the others leave out.
        for (row, kernel) in chosen.iter().zip(&ready.kernels).rev() {
            let name = match choice.repeat {
                0 | 1 => format!("lab {}", row.id),
                times => format!("lab {} {turn}/{times}", row.id),
            };
            let (bench, kernel) = match (&ready.bench, kernel) {
                (Ok(bench), Ok(kernel)) => (bench, kernel),
                (Err(need), _) | (_, Err(need)) => {
                    rows.push(skipped(&name, need, &binaries));
                    continue;
                }
            };
            let test = |binaries: Vec<_>, shape| Test {
                workspace,
                kernels: &kernels,
                bench,
                kernel,
                binaries,
                variant: Variant {
                    shape,
                    ..Variant::default()
                },
                programs: &programs_built,
                vgaudi: &vgaudi,
                words: &choice.words,
            };
            let (with_card, usual): (Vec<_>, Vec<_>) =
                alone.iter().partition(|binary| kernels.needs_card(&binary.name));
            guests.push((name.clone(), test(usual, None), false));
            guests.push((name.clone(), test(pairs.clone(), None), true));
            for shape in &kernels.shapes {
                let is_here = |binary: &&&Binary| shape.tests.contains(&binary.name);
                let of_it = if shape.cards > 0 { &with_card } else { &alone };
                let here: Vec<_> = of_it.iter().filter(is_here).copied().collect();
                let name = format!("{name} on {}", shape.id);
                match kernel.open_flag.as_ref().err().filter(|_| shape.has_driver()) {
                    Some(_) if here.is_empty() => {}
                    Some(need) => rows.push(skipped(&name, need, here.iter().copied())),
                    None => guests.push((name, test(here, Some(shape.clone())), shape.pair)),
                }
            }
        }
        guests.retain(|(_, test, _)| !test.binaries.is_empty());
        rows.extend(side_by_side(guests));
        if rows.iter().any(|row| row.counts.failed > 0) {
            break; // what it left in the logs is wanted
        }
    }
    Ok(rows)
}

/// How many guests run side by side. Most wait for the driver's timers half of their time: on two
/// processors three need less time in all than two, and a fourth only slows the others down.
const GUESTS: usize = 3;

/// Runs guests and pairs of guests side by side, each with a row.
fn side_by_side(mut guests: Vec<(String, Test<'_>, bool)>) -> Vec<Row> {
    // Those with a card take longest.
    guests.sort_by_key(|(_, test, _)| test.cards() == 0);
    let free = Mutex::new(GUESTS);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (name, test, is_pair) in &guests {
            let needed = if *is_pair { 2 } else { 1 };
            let wait = changed.wait_while(free.lock().unwrap_or_else(PoisonError::into_inner), |free| {
                *free < needed
            });
            *wait.unwrap_or_else(PoisonError::into_inner) -= needed;
            let (free, changed) = (&free, &changed);
            running.push(scope.spawn(move || {
                let rows = if *is_pair {
                    pair(name, test)
                } else {
                    vec![test.row(name)]
                };
                *free.lock().unwrap_or_else(PoisonError::into_inner) += needed;
                changed.notify_one();
                rows
            }));
        }
        let rows = running.into_iter().map(|one| one.join());
        rows.flat_map(|rows| rows.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// A row for test programs that cannot run: one reason, and each test is counted.
fn skipped<'a>(name: &str, need: &str, binaries: impl IntoIterator<Item = &'a Binary>) -> Row {
    println!("skip  {name}  {need}");
    Row::time(name, |row| {
        row.skip(name, need);
        row.counts.skipped = count(binaries, &[]).max(1);
    })
}

/// Two guests with a network between them, each with a row.
fn pair(name: &str, test: &Test<'_>) -> Vec<Row> {
    // Short, and of this run: a path of a socket has 107 bytes at most, and a folder of the
    // workspace may have more. Two pairs may run at once.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("gaudi-lab-{}-{number}.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket); // of a process that had the same number
    let tests = ['a', 'b'].map(|letter| {
        let mut test = test.clone();
        test.variant.side = Some(Side {
            letter,
            socket: socket.clone(),
        });
        (format!("{name} pair {letter}"), test)
    });
    let rows = std::thread::scope(|scope| {
        let running = tests
            .each_ref()
            .map(|(name, test)| scope.spawn(|| test.row(name)));
        running.map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let _ = std::fs::remove_file(&socket); // what stays is only a name
    rows.into()
}

/// QEMU and the kernels, or what the machine lacks; every other error is a failure of the row.
pub(super) fn set_up(
    row: &mut Row,
    workspace: &Workspace,
    cache: &Result<Cache, String>,
    kernels: &Kernels,
    chosen: &[&Kernel],
) -> SetUp {
    let found = cache.as_ref().map_err(Clone::clone);
    let bench = found.and_then(|cache| or_fail(row, bench(cache, kernels)));
    note(row, "qemu", bench.as_ref().map(|bench| bench.note.as_str()));
    if let Ok(bench) = &bench {
        note(
            row,
            "verbs",
            bench.verbs.as_ref().map(|_| bench.verbs_note.as_str()),
        );
    }
    let kernels = chosen.iter().map(|one| {
        let begin = Instant::now();
        // Without QEMU a kernel is not worth its download.
        let ready = cache.as_ref().and_then(|cache| Ok((cache, bench.as_ref()?)));
        let booted = ready
            .map_err(Clone::clone)
            .and_then(|(cache, bench)| or_fail(row, kernel(workspace, cache, bench, one)));
        note(row, &one.id, booted.as_ref().map(|kernel| kernel.note.as_str()));
        if let Ok(kernel) = &booted {
            let seconds = begin.elapsed().as_secs_f64();
            let built = format!("the lab's own build of rdma_rxe, here after {seconds:.1} s");
            note(
                row,
                &format!("{} rxe", one.id),
                kernel.rxe.as_ref().map(|_| built.as_str()),
            );
            let flag = kernel.open_flag.as_ref().map(|_| "tools/hl-open-flag, built");
            note(row, &format!("{} hl_open_flag", one.id), flag);
        }
        booted
    });
    let kernels = kernels.collect();
    SetUp { bench, kernels }
}

/// What [`set_up`] found, or what the machine lacks.
pub(super) struct SetUp {
    pub(super) bench: Result<Tools, String>,
    /// In the order of the chosen ones.
    pub(super) kernels: Vec<Result<GuestKernel, String>>,
}

fn note(row: &mut Row, what: &str, found: Result<&str, &String>) {
    match found {
        Ok(note) => {
            println!("ok    {what}  {note}");
            row.pass();
        }
        Err(need) => println!("skip  {what}  {need}"),
    }
}

fn or_fail<T>(row: &mut Row, result: anyhow::Result<T>) -> Result<T, String> {
    or_missing(result).unwrap_or_else(|error| {
        row.fail(format!("{error:#}"));
        Err(format!("{error:#}"))
    })
}

/// The crates whose tests are built: those of the file, or the named ones, which may be any of the
/// workspace.
fn crates<'a>(
    workspace: &Workspace,
    kernels: &'a Kernels,
    named: &'a [String],
) -> anyhow::Result<Vec<&'a str>> {
    let is_member = |name: &String| workspace.crates.iter().any(|member| member.name == *name);
    if let Some(other) = named.iter().find(|name| !is_member(name)) {
        bail!("{other} is no crate of this workspace");
    }
    let source = if named.is_empty() {
        &kernels.guest.crates
    } else {
        named
    };
    Ok(source.iter().map(String::as_str).collect())
}

/// Test programs in one guest.
#[derive(Clone)]
pub(super) struct Test<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) kernels: &'a Kernels,
    pub(super) bench: &'a Tools,
    pub(super) kernel: &'a GuestKernel,
    pub(super) binaries: Vec<&'a Binary>,
    pub(super) variant: Variant,
    pub(super) programs: &'a [Program],
    /// The program that serves cards.
    pub(super) vgaudi: &'a Path,
    /// For the harness of each.
    pub(super) words: &'a [String],
}

impl Test<'_> {
    fn cards(&self) -> u8 {
        self.variant.shape.as_ref().map_or(0, |shape| shape.cards)
    }

    /// A row of its own.
    fn row(&self, name: &str) -> Row {
        Row::time(name, |row| {
            if let Err(error) = self.run(row) {
                println!("FAIL  {name}  {error:#}");
                row.fail(format!("{error:#}"));
            }
        })
    }

    /// Boots, runs them and fills in the row.
    pub(super) fn run(&self, row: &mut Row) -> anyhow::Result<Verdict> {
        let mut programs = self.programs.to_vec();
        let mut plan = Vec::new();
        for binary in &self.binaries {
            let guest = format!("{PROGRAMS}/{}", file_name(&binary.path));
            let mut words = vec![format!("/{guest}")];
            if binary.package == CRATE {
                words.push("--include-ignored".to_owned());
            }
            if self.variant.side.is_some() || self.cards() > 0 {
                // Each test meets its other half: both guests must be at the same one. And a card
                // has one user at a time.
                words.push("--test-threads=1".to_owned());
            }
            for test in self.kernels.guest.left_out(&binary.name) {
                words.extend(["--skip".to_owned(), test.to_owned()]);
            }
            words.extend(self.words.iter().cloned());
            plan.push(Job {
                name: binary.name.clone(),
                words,
            });
            programs.push(Program {
                host: binary.path.clone(),
                guest,
            });
        }
        let begin = Instant::now();
        let machine = machine(
            self.workspace,
            self.kernels,
            self.bench,
            self.kernel,
            &programs,
            &plan,
            self.variant.clone(),
        )?;
        let image = begin.elapsed().as_secs_f64();
        let name = self.variant.name(&self.kernel.id);
        let log = folder(self.workspace)?.join(format!("{name}.log"));
        let mut file =
            BufWriter::new(File::create(&log).with_context(|| format!("cannot write {}", log.display()))?);
        let mut heard = Transcript::new(&name);
        let cards = match &self.variant.shape {
            Some(shape) if shape.cards > 0 => Some(Cards::start(self.vgaudi, shape, &machine.console)?),
            _ => None,
        };
        let verdict = self.bench.qemu.boot(&machine, cards.as_ref(), LIMIT, |said| {
            if let Some(line) = heard.hear(said) {
                let _ = writeln!(io::stdout(), "{line}");
            }
            // A full disk must not stop the guest: the ledger is the answer.
            let _ = heard.last.as_ref().map(|line| writeln!(file, "{line}"));
        })?;
        drop(file);
        let memory = verdict.memory.as_ref();
        println!(
            "{name} ({}): image {image:.1} s, boot {:.1} s, guest {:.1} s{}",
            self.kernel.release,
            verdict.boot.unwrap_or_default(),
            verdict.wall,
            memory.map_or_else(String::new, |peak| format!(", with its cards {peak} at most")),
        );
        let outcome = Outcome {
            code: Some(heard.worst),
            timed_out: false,
            log,
        };
        self.judge(row, heard, &verdict, &outcome);
        if !row.failures.is_empty() {
            let console = console_tail(&machine.console);
            println!("\n-- the end of {}\n{console}", machine.console.display());
        }
        Ok(verdict)
    }

    fn judge(&self, row: &mut Row, heard: Transcript, verdict: &Verdict, outcome: &Outcome) {
        let unheard: Vec<_> = self
            .binaries
            .iter()
            .map(|binary| &binary.name)
            .filter(|name| !heard.ended.contains(name))
            .cloned()
            .collect();
        let mut report = Report::read(heard.lines.into_iter());
        report.take_back(skips(&heard.skips));
        let said = report.excerpt();
        report.into_row(row, "a test in the guest", outcome);
        if !said.is_empty() {
            println!("\n-- from {}\n{said}", outcome.log.display());
        }
        for finding in &verdict.findings {
            row.fail(finding.clone());
        }
        if !unheard.is_empty() {
            let last = if heard.program.is_empty() {
                "nothing"
            } else {
                &heard.program
            };
            row.fail(format!(
                "the last to run was {last}; without an end: {}",
                unheard.join(", ")
            ));
        }
    }
}

/// What the guest's programs said, in the form that the report of cargo's own tests reads.
#[derive(Debug)]
struct Transcript {
    kernel: String,
    program: String,
    lines: Vec<String>,
    /// The newest line, for the log.
    last: Option<String>,
    skips: String,
    ended: Vec<String>,
    worst: i32,
}

impl Transcript {
    fn new(kernel: &str) -> Transcript {
        Transcript {
            kernel: kernel.to_owned(),
            program: String::new(),
            lines: Vec::new(),
            last: None,
            skips: String::new(),
            ended: Vec::new(),
            worst: 0,
        }
    }

    /// Takes a line; the answer is for the terminal: one line a test, and how a program died.
    fn hear(&mut self, said: &Message) -> Option<String> {
        self.last = None;
        match said {
            Message::Begin(name) => {
                self.program.clone_from(name);
                self.last = Some(format!("== {name}"));
                None
            }
            Message::Out(line) | Message::Err(line) => {
                self.last = Some(line.clone());
                self.lines.push(line.clone());
                let (test, verdict) = test_line(line)?;
                let word = match verdict.split(',').next() {
                    Some("ok") => "ok  ",
                    Some("ignored") => "skip",
                    _ => "FAIL",
                };
                Some(format!("{word}  {}  {}  {test}", self.kernel, self.program))
            }
            Message::Skip(line) => {
                self.skips += line;
                self.skips.push('\n');
                Some(format!("skip  {}  {}  {line}", self.kernel, self.program))
            }
            Message::End { status, seconds } => {
                self.ended.push(self.program.clone());
                self.last = Some(format!("-- status {status} at {seconds} s"));
                self.worst = self.worst.max(*status);
                if *status == 0 {
                    return None;
                }
                // As cargo says it, so that a program that died without a result is counted.
                self.lines.push(format!(
                    "error: test failed, to rerun pass `{} in the lab`",
                    self.program
                ));
                Some(format!(
                    "FAIL  {}  {}  ended with status {status}",
                    self.kernel, self.program
                ))
            }
            Message::Noise(line) => Some(format!("?     {}  {line}", self.kernel)),
            Message::Boot(_) | Message::Done(_) => None,
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(said: &[Message]) -> (Transcript, Vec<String>) {
        let mut heard = Transcript::new("7.3");
        let shown = said.iter().filter_map(|said| heard.hear(said)).collect();
        (heard, shown)
    }

    fn program(name: &str, lines: &[&str], status: i32) -> Vec<Message> {
        let mut said = vec![Message::Begin(name.into())];
        said.extend(lines.iter().map(|line| Message::Out((*line).into())));
        said.push(Message::End { status, seconds: 1.0 });
        said
    }

    #[test]
    fn each_test_prints_one_line() {
        let lines = [
            "running 1 test",
            "test maps ... ok",
            "test later ... ignored, needs a NIC",
            "test bad ... FAILED",
        ];
        let (_, shown) = heard(&program("gaudi-lab/dmabuf", &lines, 0));
        assert_eq!(
            shown,
            [
                "ok    7.3  gaudi-lab/dmabuf  maps",
                "skip  7.3  gaudi-lab/dmabuf  later",
                "FAIL  7.3  gaudi-lab/dmabuf  bad"
            ],
            "other words stay in the log"
        );
    }

    #[test]
    fn crashed_program_is_a_failure() {
        let (heard, shown) = heard(&program("gaudi-sys/lib", &["test a ... ok"], 139));
        assert_eq!(heard.worst, 139, "the status is kept");
        assert!(
            shown.iter().any(|line| line.contains("status 139")),
            "it is shown: {shown:?}"
        );
        let mut row = Row::default();
        let outcome = Outcome {
            code: Some(139),
            timed_out: false,
            log: PathBuf::new(),
        };
        Report::read(heard.lines.into_iter()).into_row(&mut row, "the guest", &outcome);
        assert_eq!(row.counts.failed, 1, "it is counted: {row:?}");
        assert!(
            row.failures[0].contains("gaudi-sys/lib"),
            "it is named: {:?}",
            row.failures
        );
    }

    #[test]
    fn skips_in_the_guest_are_read() {
        let (heard, _) = heard(&[Message::Skip("SKIP maps: a Gaudi".into())]);
        assert_eq!(
            skips(&heard.skips)[0].need,
            "a Gaudi",
            "as it would be read from the file"
        );
    }
}
