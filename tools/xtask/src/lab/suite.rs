//! `cargo xtask lab test`: test binaries of this machine's cargo, run in a guest of each kernel.

use std::io::{self, BufWriter, Write};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::bail;
use clap::Args;

use super::bench::{GuestKernel, LIMIT, Tools, folder, open};
use super::build::{self, Binary, Built, count};
use super::channel::Message;
use super::guest::{Side, Variant, Verdict};
use super::image::{Job, PROGRAMS, Program};
use super::kernels::{Kernel, Kernels};
use super::lock::Lock;
use super::peer;
use super::ucx;
use crate::files;
use crate::ledger::Row;
use crate::missing::or_missing;
use crate::packages::Cache;
use crate::run::{Outcome, tail};
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
    /// Build the tests optimized: for tests that move much data
    #[arg(long)]
    release: bool,
    /// Words for the test harness, such as a part of a test's name
    #[arg(last = true)]
    words: Vec<String>,
}

/// Fetches and builds what the lab needs, so that [`rows`] finds it in the cache.
pub(crate) fn prepare(workspace: &Workspace) -> Row {
    Row::time("lab fetch", |row| {
        let kernels = Kernels::load(&workspace.root)?;
        let cache = or_missing(open(workspace))?;
        set_up(row, workspace, &cache, &kernels, &kernels.chosen(&[])?);
        Ok(())
    })
}

/// One row for the set-up, one for each kernel.
pub(crate) fn rows(workspace: &Workspace, choice: &Selection) -> anyhow::Result<Vec<Row>> {
    let kernels = Kernels::load(&workspace.root)?;
    let chosen = kernels.chosen(&choice.kernels)?;
    let crates = crates(workspace, &kernels, &choice.packages)?;
    let mut built = None;
    let mut rows = vec![Row::time("lab build", |row| {
        built = Some(build::tests(workspace, crates, &kernels.guest, choice.release)?);
        row.pass();
        Ok(())
    })];
    let Some(mut built) = built else {
        return Ok(rows);
    };
    let mut binaries = std::mem::take(&mut built.binaries);
    binaries.retain(|binary| !kernels.guest.host_only.contains(&binary.name));
    if !choice.words.is_empty() {
        // For a word that names no test of a program no guest need boot.
        binaries.retain(|binary| count([binary], &choice.words) > 0);
    }
    let cache = or_missing(open(workspace))?; // without it nothing will run
    let mut ready = Vec::new();
    rows.push(Row::time("lab set-up", |row| {
        ready = set_up(row, workspace, &cache, &kernels, &chosen);
        Ok(())
    }));
    let is_pair = |binary: &&Binary| kernels.guest.pairs.contains(&binary.name);
    let (pairs, alone): (Vec<_>, Vec<_>) = binaries.iter().partition(is_pair);
    for turn in 1..=choice.repeat.max(1) {
        let mut guests = Vec::new();
        // The newest kernel's first: it runs what the others leave out.
        for (row, kernel) in chosen.iter().zip(&ready).rev() {
            let name = match choice.repeat {
                0 | 1 => format!("lab {}", row.id),
                times => format!("lab {} {turn}/{times}", row.id),
            };
            let kernel = match kernel {
                Ok(kernel) => kernel,
                Err(need) => {
                    rows.push(skipped(&name, need, &binaries));
                    continue;
                }
            };
            let test = |binaries: Vec<_>, shape| Test {
                workspace,
                kernels: &kernels,
                kernel,
                binaries,
                variant: Variant::of(shape),
                built: &built,
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
            break; // its logs must not be overwritten
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
    guests.sort_by_key(|(_, test, _)| test.variant.cards() == 0);
    let free = Mutex::new(GUESTS);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (name, test, is_pair) in &guests {
            let needed = if *is_pair { 2 } else { 1 };
            let unlocked = free.lock().unwrap_or_else(PoisonError::into_inner);
            let enough = changed.wait_while(unlocked, |free| *free < needed);
            *enough.unwrap_or_else(PoisonError::into_inner) -= needed;
            let (free, changed) = (&free, &changed);
            running.push(scope.spawn(move || {
                let rows = match is_pair {
                    true => pair(name, test),
                    false => vec![test.row(name)],
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
        Ok(())
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

/// The chosen kernels, or what the machine lacks for each; every other error is a failure of the
/// row.
fn set_up(
    row: &mut Row,
    workspace: &Workspace,
    cache: &Result<(Cache, Lock), String>,
    kernels: &Kernels,
    chosen: &[&Kernel],
) -> Vec<Result<GuestKernel, String>> {
    let cache = cache.as_ref().map_err(Clone::clone);
    let tools = cache.and_then(|(cache, _)| Ok((cache, Arc::new(or_fail(row, Tools::get(cache, kernels))?))));
    note(row, "qemu", tools.as_ref().map(|(_, tools)| &*tools.note));
    if let Ok((_, tools)) = &tools {
        note(row, "verbs", tools.verbs.as_ref().map(|(_, note)| &**note));
    }
    let mut ready = Vec::new();
    for one in chosen {
        let begin = Instant::now();
        // Without QEMU a kernel is not worth its download.
        let kernel = tools.clone().and_then(|(cache, tools)| {
            or_fail(row, GuestKernel::get(workspace, cache, &tools, kernels, one))
        });
        note(row, &one.id, kernel.as_ref().map(|kernel| &*kernel.note));
        if let Ok(kernel) = &kernel {
            let seconds = begin.elapsed().as_secs_f64();
            let built = format!("the lab's own build of rdma_rxe, here after {seconds:.1} s");
            let rxe = kernel.rxe.as_ref().map(|_| &*built);
            let flag = kernel.open_flag.as_ref().map(|_| "tools/hl-open-flag, built");
            for (module, found) in [("rxe", rxe), ("hl_open_flag", flag)] {
                note(row, &format!("{} {module}", one.id), found);
            }
        }
        ready.push(kernel);
    }
    ready
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
) -> anyhow::Result<&'a [String]> {
    let is_member = |name: &String| workspace.crates.iter().any(|member| member.name == *name);
    match named.iter().find(|name| !is_member(name)) {
        Some(other) => bail!("{other} is not a crate of this workspace"),
        None if named.is_empty() => Ok(&kernels.guest.crates),
        None => Ok(named),
    }
}

/// Test programs in one guest.
#[derive(Clone)]
pub(super) struct Test<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) kernels: &'a Kernels,
    pub(super) kernel: &'a GuestKernel,
    pub(super) binaries: Vec<&'a Binary>,
    pub(super) variant: Variant,
    pub(super) built: &'a Built,
    /// For the harness of each.
    pub(super) words: &'a [String],
}

impl Test<'_> {
    /// A row of its own.
    fn row(&self, name: &str) -> Row {
        Row::time(name, |row| self.run(row).map(drop))
    }

    /// Boots, runs them and fills in the row.
    pub(super) fn run(&self, row: &mut Row) -> anyhow::Result<Verdict> {
        let mut programs = [&*self.built.programs, &self.built.libraries].concat();
        let mut plan = Vec::new();
        for binary in &self.binaries {
            let guest = format!("{PROGRAMS}/{}", files::name(&binary.path));
            let mut words = vec![format!("/{guest}")];
            if binary.package == CRATE {
                words.push("--include-ignored".to_owned());
            }
            if self.variant.side.is_some() || self.variant.cards() > 0 {
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
        let (kernel, mut variant) = (self.kernel, self.variant.clone());
        let runs = |tests: &str| self.binaries.iter().any(|binary| binary.name == tests);
        if runs(peer::TESTS) {
            variant.added.extend(peer::perftest(self.workspace)?);
        }
        if runs(ucx::TESTS) {
            variant.added.extend(ucx::files(self.workspace)?);
        }
        let server = Some(&*self.built.server);
        let machine = kernel.machine(self.workspace, &programs, &plan, variant, server)?;
        let image = begin.elapsed().as_secs_f64();
        let name = self.variant.name(&kernel.id);
        let log = folder(self.workspace)?.join(format!("{name}.log"));
        let mut file = BufWriter::new(files::create(&log)?);
        let mut transcript = Transcript {
            kernel: name.clone(),
            ..Transcript::default()
        };
        let verdict = kernel.tools.qemu.boot(&machine, LIMIT, |message| {
            // A closed stdout or a full disk must not stop the guest: the ledger is the answer.
            if let Some(line) = transcript.hear(message) {
                let _ = writeln!(io::stdout(), "{line}");
            }
            let _ = transcript.last.as_ref().map(|line| writeln!(file, "{line}"));
        })?;
        drop(file);
        let boot = verdict.boot.unwrap_or_default(); // a guest that never came up
        let memory = verdict.memory.as_ref();
        let memory = memory.map_or_else(String::new, |peak| format!(", with its cards {peak} at most"));
        let (release, wall) = (&kernel.release, verdict.wall);
        println!("{name} ({release}): image {image:.1} s, boot {boot:.1} s, guest {wall:.1} s{memory}");
        let outcome = Outcome {
            code: Some(transcript.worst),
            timed_out: false,
            log,
        };
        self.judge(row, transcript, &verdict, &outcome);
        if !row.failures.is_empty() {
            println!("\n{}", tail(&machine.console));
            let logs = ["qemu.log", "card0.log", "card1.log"].map(|end| machine.console.with_extension(end));
            for log in logs.iter().filter(|log| log.exists()) {
                println!("\n{}", tail(log));
            }
            verdict.stalled.iter().for_each(|report| println!("\n{report}"));
        }
        Ok(verdict)
    }

    fn judge(&self, row: &mut Row, transcript: Transcript, verdict: &Verdict, outcome: &Outcome) {
        let last = transcript.place();
        let mut report = Report::read(transcript.lines.into_iter());
        report.take_back(skips(&transcript.skips));
        let excerpt = report.excerpt();
        report.into_row(row, "a test in the guest", outcome);
        if !excerpt.is_empty() {
            println!("\n-- from {}\n{excerpt}", outcome.log.display());
        }
        for (case, report) in &transcript.hung {
            println!(
                "\n-- case {case} in {}\n{}",
                outcome.log.display(),
                report.join("\n")
            );
            row.fail(format!("case {case} passed its deadline"));
        }
        for finding in &verdict.findings {
            row.fail(finding.clone());
        }
        let names = self.binaries.iter().map(|binary| binary.name.as_str());
        let endless: Vec<_> = names
            .filter(|name| !transcript.ended.iter().any(|end| end == name))
            .collect();
        if !endless.is_empty() {
            row.fail(format!(
                "the last to run was {last}; without an end: {}",
                endless.join(", ")
            ));
        }
    }
}

/// What the guest's programs printed, in the form that the report of cargo's own tests reads.
#[derive(Debug, Default)]
struct Transcript {
    kernel: String,
    program: String,
    lines: Vec<String>,
    /// The newest line, for the log.
    last: Option<String>,
    skips: String,
    ended: Vec<String>,
    worst: i32,
    /// The case that a suite of conformance began last.
    case: Option<String>,
    /// The cases that passed their deadline, each with what its program reported about it.
    hung: Vec<(String, Vec<String>)>,
}

impl Transcript {
    /// Takes a message. Returns the line for the terminal: one for each test, and how a program
    /// died.
    fn hear(&mut self, message: &Message) -> Option<String> {
        self.last = None;
        let (word, text) = match message {
            Message::Begin(name) => {
                self.program.clone_from(name);
                self.case = None;
                self.last = Some(format!("== {name}"));
                return None;
            }
            Message::Out(line) | Message::Err(line) => {
                self.last = Some(line.clone());
                self.lines.push(line.clone());
                self.hear_case(line);
                let (test, verdict) = test_line(line)?;
                match verdict.split([',', ' ']).next() {
                    Some("ok") => ("ok  ", test.to_owned()),
                    Some("ignored") => ("skip", test.to_owned()),
                    _ => ("FAIL", test.to_owned()),
                }
            }
            Message::Skip(line) => {
                self.skips += &format!("{line}\n");
                ("skip", line.clone())
            }
            Message::End { status, seconds } => {
                self.ended.push(self.program.clone());
                self.last = Some(format!("-- status {status} at {seconds} s"));
                self.worst = self.worst.max(*status);
                if *status == 0 {
                    return None;
                }
                // As cargo prints it, so that a program that died without a result is counted.
                let rerun = format!("`{} in the lab`", self.program);
                self.lines
                    .push(format!("error: test failed, to rerun pass {rerun}"));
                ("FAIL", format!("ended with status {status}"))
            }
            Message::Noise(line) => return Some(format!("?     {}  {line}", self.kernel)),
            Message::Boot(_) | Message::Done(_) => return None,
        };
        Some(format!("{word}  {}  {}  {text}", self.kernel, self.program))
    }

    /// Follows the lines of gaudi-harness's `Watch`.
    fn hear_case(&mut self, line: &str) {
        let case = line.strip_prefix("case ");
        if let Some(name) = case.and_then(|rest| rest.strip_suffix(" begins")) {
            self.case = Some(name.to_owned());
        } else if let Some((name, _)) = case.and_then(|rest| rest.split_once(" did not end in ")) {
            self.hung.push((name.to_owned(), Vec::new()));
        }
        // The report of a case that hangs is the last of its program.
        if let Some((_, report)) = self.hung.last_mut() {
            report.push(line.to_owned());
        }
    }

    /// The program that began last, and its case if it names cases.
    fn place(&self) -> String {
        match (self.program.as_str(), &self.case) {
            ("", _) => "nothing".to_owned(),
            (program, None) => program.to_owned(),
            (program, Some(case)) => format!("{program}, case {case}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(messages: &[Message]) -> (Transcript, Vec<String>) {
        let mut transcript = Transcript {
            kernel: "7.3".to_owned(),
            ..Transcript::default()
        };
        let shown = messages
            .iter()
            .filter_map(|message| transcript.hear(message))
            .collect();
        (transcript, shown)
    }

    fn program(name: &str, lines: &[&str], status: i32) -> Vec<Message> {
        let mut messages = vec![Message::Begin(name.into())];
        messages.extend(lines.iter().map(|line| Message::Out((*line).into())));
        messages.push(Message::End { status, seconds: 1.0 });
        messages
    }

    #[test]
    fn each_test_prints_one_line() {
        let lines = [
            "running 1 test",
            "test maps ... ok",
            "test later ... ignored, needs a NIC",
            "test bad ... FAILED",
        ];
        let (_, shown) = transcript(&program("gaudi-lab/dmabuf", &lines, 0));
        assert_eq!(
            shown,
            [
                "ok    7.3  gaudi-lab/dmabuf  maps",
                "skip  7.3  gaudi-lab/dmabuf  later",
                "FAIL  7.3  gaudi-lab/dmabuf  bad"
            ],
            "other lines stay in the log"
        );
    }

    #[test]
    fn crashed_program_is_a_failure() {
        let (transcript, shown) = transcript(&program("gaudi-sys/lib", &["test a ... ok"], 139));
        assert_eq!(transcript.worst, 139, "the status is kept");
        assert!(
            shown.iter().any(|line| line.contains("status 139")),
            "it is shown: {shown:?}"
        );
        let mut row = Row::default();
        let outcome = Outcome {
            code: Some(139),
            timed_out: false,
            log: std::path::PathBuf::new(),
        };
        Report::read(transcript.lines.into_iter()).into_row(&mut row, "the guest", &outcome);
        assert_eq!(row.counts.failed, 1, "it is counted: {row:?}");
        assert!(
            row.failures[0].contains("gaudi-sys/lib"),
            "it is named: {:?}",
            row.failures
        );
    }

    #[test]
    fn last_case_and_hung_case_are_named() {
        let begin = Message::Begin("gaudi-lab/card_resets".into());
        let lines = ["case a.first begins", "case b.second begins"].map(|line| Message::Err(line.into()));
        let (mut heard, _) = transcript(&[&[begin], &lines[..]].concat());
        assert_eq!(heard.place(), "gaudi-lab/card_resets, case b.second");
        assert!(heard.hung.is_empty(), "none passed its deadline");
        for line in ["case b.second did not end in 300 s", "thread 7 waits"] {
            heard.hear(&Message::Err(line.into()));
        }
        let (case, report) = &heard.hung[0];
        assert_eq!(
            (case.as_str(), report.len()),
            ("b.second", 2),
            "the case and its report"
        );
        heard.hear(&Message::Begin("gaudi-lab/card".into()));
        assert_eq!(heard.place(), "gaudi-lab/card", "another program names no case");
    }

    #[test]
    fn skips_in_the_guest_are_read() {
        let (transcript, _) = transcript(&[Message::Skip("SKIP maps: a Gaudi".into())]);
        assert_eq!(
            skips(&transcript.skips)[0].need,
            "a Gaudi",
            "as it would be read from the file"
        );
    }
}
