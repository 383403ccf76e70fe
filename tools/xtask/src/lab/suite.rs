//! `cargo xtask lab test`: test binaries of this machine's cargo, run in a guest of each kernel.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::bail;
use clap::Args;

use super::bench::{GuestKernel, LIMIT, SILENCE, Tools, folder, open};
use super::build::{self, Binary, Built, count};
use super::guest::{Side, Variant, Verdict};
use super::image::{Job, PROGRAMS, Program};
use super::kernels::{Kernel, Kernels};
use super::lock::Lock;
use super::peer;
use super::stall::{Limits, Stalled};
use super::transcript::Transcript;
use super::ucx;
use crate::files;
use crate::ledger::Row;
use crate::missing::or_missing;
use crate::packages::Cache;
use crate::run::{Outcome, tail};
use crate::test::report::{Report, skips};
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
    let _ = fs::remove_file(&socket); // of a process that had the same number
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
    let _ = fs::remove_file(&socket); // what stays is only a name
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
    /// A row of its own. A guest whose kernel did not reach init is started once more.
    fn row(&self, name: &str) -> Row {
        Row::time(name, |row| {
            let again = |first: &Booted, stalled: &Stalled| {
                first.print();
                let kept = first.console.with_extension("first.log");
                let finding = &stalled.finding;
                let note = match fs::rename(&first.console, &kept) {
                    Ok(()) => format!(
                        "{finding} at the first start (its console: {}); started again",
                        kept.display()
                    ),
                    Err(error) => {
                        format!("{finding} at the first start (its console is lost: {error}); started again")
                    }
                };
                println!("note  {name}  {note}");
                row.notes.push(note);
            };
            let booted = at_most_twice(|| self.boot(), again)?;
            self.settle(row, booted);
            Ok(())
        })
    }

    /// Boots once, runs them and fills in the row.
    pub(super) fn run(&self, row: &mut Row) -> anyhow::Result<Verdict> {
        let booted = self.boot()?;
        let verdict = booted.verdict.clone();
        self.settle(row, booted);
        Ok(verdict)
    }

    /// The programs as the guest runs them, and where they come from.
    fn plan(&self) -> (Vec<Program>, Vec<Job>) {
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
        (programs, plan)
    }

    fn boot(&self) -> anyhow::Result<Booted> {
        let (programs, plan) = self.plan();
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
        let mut transcript = Transcript::of(&name);
        let mut limits = Limits::of(LIMIT);
        limits.silence = SILENCE;
        let verdict = kernel.tools.qemu.boot(&machine, limits, |message| {
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
        Ok(Booted {
            verdict,
            transcript,
            log,
            console: machine.console.clone(),
        })
    }

    /// Fills in the row.
    fn settle(&self, row: &mut Row, booted: Booted) {
        let outcome = Outcome {
            code: Some(booted.transcript.worst),
            timed_out: false,
            log: booted.log.clone(),
        };
        self.judge(row, &booted, &outcome);
        if !row.failures.is_empty() {
            booted.print();
        }
    }

    fn judge(&self, row: &mut Row, booted: &Booted, outcome: &Outcome) {
        let (transcript, verdict) = (&booted.transcript, &booted.verdict);
        let last = transcript.place();
        let mut report = Report::read(transcript.lines.iter().cloned());
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

/// A guest that ended.
#[derive(Debug, Default)]
struct Booted {
    verdict: Verdict,
    transcript: Transcript,
    /// The output of its programs, and of its kernel.
    log: PathBuf,
    console: PathBuf,
}

impl Booted {
    /// Prints the ends of its logs, and what it executed when it stalled.
    fn print(&self) {
        println!("\n{}", tail(&self.console));
        let logs = ["qemu.log", "card0.log", "card1.log"].map(|end| self.console.with_extension(end));
        for log in logs.iter().filter(|log| log.exists()) {
            println!("\n{}", tail(log));
        }
        let stalled = self.verdict.stalled.iter();
        stalled.for_each(|stalled| println!("\n{}", stalled.report));
    }
}

/// Boots, and boots once more if the kernel did not reach init: that guest ran nothing of ours.
/// `again` records the first start.
fn at_most_twice(
    mut boot: impl FnMut() -> anyhow::Result<Booted>,
    again: impl FnOnce(&Booted, &Stalled),
) -> anyhow::Result<Booted> {
    let first = boot()?;
    match first.verdict.no_init() {
        None => Ok(first),
        Some(stalled) => {
            again(&first, stalled);
            boot()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::stall::Exceeded;

    /// A guest that exceeded a limit, before or after its first process wrote a line.
    fn stalled(exceeded: Exceeded, boot: Option<f64>) -> Booted {
        let verdict = Verdict {
            boot,
            stalled: Some(Stalled {
                exceeded,
                finding: "it stalled".to_owned(),
                report: String::new(),
            }),
            ..Verdict::default()
        };
        Booted {
            verdict,
            ..Booted::default()
        }
    }

    /// Returns the last guest of these that ran, the number of starts and that of notes.
    fn started(guests: Vec<Booted>) -> (Booted, usize, usize) {
        let (all, mut notes) = (guests.len(), 0);
        let mut guests = guests.into_iter();
        let boot = || Ok(guests.next().expect("no further start"));
        let last = at_most_twice(boot, |_, _| notes += 1).expect("each boots");
        (last, all - guests.len(), notes)
    }

    #[test]
    fn guest_without_init_starts_once_more() {
        let hung = || stalled(Exceeded::Boot, None);
        let (last, starts, notes) = started(vec![hung(), Booted::default()]);
        assert_eq!((starts, notes), (2, 1), "the second start is recorded");
        assert!(last.verdict.stalled.is_none(), "the second start counts");
        let (last, starts, notes) = started(vec![hung(), hung(), Booted::default()]);
        assert_eq!((starts, notes), (2, 1), "there is no third start");
        assert!(last.verdict.no_init().is_some(), "the second failure stays");
    }

    #[test]
    fn guest_that_reached_init_never_restarts() {
        for guest in [
            stalled(Exceeded::Boot, Some(2.0)),
            stalled(Exceeded::Silence, Some(2.0)),
            stalled(Exceeded::Whole, None),
            Booted::default(),
        ] {
            let (_, starts, notes) = started(vec![guest, Booted::default()]);
            assert_eq!((starts, notes), (1, 0), "one start");
        }
    }
}
