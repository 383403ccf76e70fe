//! `cargo xtask test`: the steps that a change must pass, in order, with a ledger.
//!
//! A test that cannot run here appends `SKIP <id>: <what is needed>` to the file that
//! `GAUDI_SKIP_LOG` names and returns. If `<id>` is the test's own name, the harness's "ok" does
//! not count: a skip is never a pass.

mod browser;
pub(crate) mod c_library;
mod demo;
mod oldest;
pub(crate) mod report;
pub(crate) mod ucx;

use std::env;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::sys::statvfs::statvfs;

use self::report::{Report, skips};
use crate::files;
use crate::lab::suite;
use crate::ledger::Row;
use crate::lint;
use crate::missing::or_missing;
use crate::packages::{Cache, Headers, Pins};
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

/// The variable that names the file which skipped tests write to.
const SKIP_LOG: &str = "GAUDI_SKIP_LOG";
/// Bytes that a whole run writes to an empty target folder.
const TARGET_BYTES: u64 = 25_000_000_000;
const CONFORMANCE: &str = "gaudi-conformance";
/// The crate whose tests have a form for loom.
const LOOM: &str = "gaudi-ranges";

/// Counts a test as skipped, as the harness of the workspace's tests does, which this program does
/// not link.
#[cfg(test)]
pub(crate) fn skip(id: &str, need: &str) {
    if let Some(log) = env::var_os(SKIP_LOG) {
        let file = fs::OpenOptions::new().append(true).create(true).open(log);
        let line = format!("SKIP {id}: {need}\n");
        file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()))
            .expect("the log of skips can be written");
    }
}

/// A step, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// C headers of three kernel series and three libibverbs, from Debian's packages into the cache
    Headers,
    /// Everything that `cargo xtask lint` checks
    Lint,
    /// Build every target
    Build,
    /// Unit, integration, property and doc tests of every crate
    Test,
    /// The production crates with the oldest compiler of the manifests, from Debian's packages in
    /// the cache
    RustVersion,
    /// Every order of the atomics of the address-range map, in a build of its own
    Loom,
    /// Tests that need a kernel of a known version, in QEMU
    Lab,
    /// The UCX plugin under UCX 1.18 and 1.23, from Debian's packages in the cache
    Ucx,
    /// The C library of Gaudi memory: a program in C and C++, and examples on Debian's libfabric
    CLibrary,
    /// `cargo run --release -- demo`, whole and corrupted at each stage
    Demo,
}

/// Runs the chosen steps, all when none is chosen.
pub(crate) fn run(workspace: &Workspace, steps: &[Step]) -> anyhow::Result<Vec<Row>> {
    let chosen = |step: Step| steps.is_empty() || steps.contains(&step);
    let mut run = Run::begin(workspace)?;
    if steps.is_empty() {
        warn_of_full_disk(&workspace.logs);
    }
    if let Some(row) = built_before(env::var("XTASK_BUILD_SECONDS").ok().as_deref()) {
        run.rows.push(row);
    }
    thread::scope(|scope| {
        // Fetching waits for the network, and the kernels' modules are built once: both beside
        // cargo.
        let set_up = chosen(Step::Lab).then(|| scope.spawn(|| suite::prepare(workspace)));
        if chosen(Step::Headers) || chosen(Step::Test) {
            run.headers()?;
        }
        if chosen(Step::Lint) {
            heading("lint");
            run.rows.extend(lint::run(workspace, true)?);
        }
        if chosen(Step::Build) {
            run.build();
        }
        if chosen(Step::Test) {
            run.test(chosen(Step::Lab))?;
        }
        if chosen(Step::Loom) {
            run.loom();
        }
        if chosen(Step::Ucx) {
            heading("ucx");
            run.rows.push(ucx::row(workspace));
        }
        if chosen(Step::CLibrary) {
            heading("c library");
            run.rows.push(c_library::row(workspace));
        }
        if let Some(set_up) = set_up {
            run.rows
                .push(set_up.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        // These two run beside the lab, whose guests leave processors idle during resets. Their
        // rows have the seconds spent waiting for them.
        let show = match chosen(Step::Lab) {
            true => Show::Quiet,
            false => Show::Stream,
        };
        let beside = scope.spawn(move || {
            let oldest = chosen(Step::RustVersion).then(|| oldest::check(workspace, show));
            let built = chosen(Step::Demo).then(|| demo::build(workspace, show));
            (oldest, built)
        });
        if chosen(Step::Lab) {
            heading("lab");
            run.rows
                .extend(suite::rows(workspace, &suite::Selection::default())?);
        }
        let begin = Instant::now();
        let (oldest, built) = beside.join().unwrap_or_else(|panic| resume_unwind(panic));
        if let Some(oldest) = oldest {
            heading("rust-version");
            run.rows.push(oldest::row(oldest, begin));
        }
        if let Some(built) = built {
            heading("demo");
            run.rows.push(demo::run(workspace, built));
        }
        anyhow::Ok(())
    })?;
    Ok(run.rows)
}

/// Says so if the disk may be too small: later, each step that fails names only `ENOSPC`.
fn warn_of_full_disk(folder: &Path) {
    let Ok(disk) = statvfs(folder) else {
        return;
    };
    let free = disk.blocks_available() * disk.fragment_size();
    if free < TARGET_BYTES {
        eprintln!(
            "warning: {} GB are free in {}; a run takes {} GB in an empty target folder",
            free / 1_000_000_000,
            folder.display(),
            TARGET_BYTES / 1_000_000_000
        );
    }
}

/// Prints id, chip and source of each conformance case.
pub(crate) fn list_conformance(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    if !workspace.crates.iter().any(|member| member.name == CONFORMANCE) {
        bail!("{CONFORMANCE} is not a member of this workspace; it holds the cases");
    }
    let mut command = workspace.cargo();
    command.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        CONFORMANCE,
        "--bin",
        CONFORMANCE,
    ]);
    let status = command
        .args(["--", "--list"])
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("{CONFORMANCE} --list failed: its binary is missing or broken; see cargo's message above");
    }
    Ok(ExitCode::SUCCESS)
}

/// The seconds that a wrapper spent on building this program, so that the ledger has all of a run.
fn built_before(seconds: Option<&str>) -> Option<Row> {
    let seconds: f64 = seconds?.parse().ok()?;
    Some(Row {
        name: "build xtask".to_owned(),
        seconds,
        ..Row::default()
    })
}

fn heading(name: &str) {
    println!("\n== {name}");
}

struct Run<'a> {
    workspace: &'a Workspace,
    rows: Vec<Row>,
    skip_log: PathBuf,
    /// Where the headers are, for the tests.
    headers: Vec<(String, PathBuf)>,
}

impl<'a> Run<'a> {
    fn begin(workspace: &'a Workspace) -> anyhow::Result<Run<'a>> {
        let logs = &workspace.logs;
        files::make_folder(logs)?;
        Ok(Run {
            workspace,
            rows: Vec::new(),
            skip_log: logs.join("skips.log"),
            headers: Vec::new(),
        })
    }

    fn headers(&mut self) -> anyhow::Result<()> {
        heading("headers");
        let pins = Pins::load(&self.workspace.root)?;
        let row = Row::time("headers", |row| {
            let found = |headers: &Headers| {
                let (tree, note) = match from_environment(headers).or_else(|| from_machine(headers)) {
                    Some(found) => found,
                    None => {
                        let unpacked = Cache::open()?.bundle(&headers.bundle)?;
                        (unpacked.tree, unpacked.note)
                    }
                };
                if !tree.join(&headers.holds).is_file() {
                    bail!("{note}: {} has no {}", tree.display(), headers.holds);
                }
                Ok((tree.join("usr/include"), note))
            };
            for headers in pins.headers {
                let found = found(&headers).map(|(include, note)| {
                    let note = format!("{note}: {}={}", headers.variable, include.display());
                    self.headers.push((headers.variable, include));
                    note
                });
                row.settle(&headers.bundle.id, found);
            }
            Ok(())
        });
        self.rows.push(row);
        Ok(())
    }

    fn build(&mut self) {
        heading("build");
        let row = Row::time("build", |row| {
            let command = self.cargo(&["test", "--locked", "--workspace", "--no-run"]);
            let log = self.workspace.logs.join("build.log");
            run::run(&command, &log, LIMIT, Show::Stream)?.check("the build")?;
            row.pass();
            Ok(())
        });
        self.rows.push(row);
    }

    /// With `lab`, the lab's own tests run in their own step, so they are not skips here.
    fn test(&mut self, lab: bool) -> anyhow::Result<()> {
        heading("test");
        files::create(&self.skip_log)?;
        let row = Row::time("test", |row| {
            let mut command = self.cargo(&["test", "--locked", "--workspace", "--no-fail-fast"]);
            if lab {
                command.args(["--exclude", suite::CRATE]);
            }
            command.env(SKIP_LOG, &self.skip_log);
            command.envs(self.headers.iter().map(|(name, path)| (name, path)));
            // Without a browser, its tests count a skip.
            if env::var_os(browser::VARIABLE).is_none() {
                match or_missing(browser::prepare(self.workspace))? {
                    Ok(browser) => drop(command.env(browser::VARIABLE, browser)),
                    Err(need) => println!("skip  chromium  {need}"),
                }
            }
            self.judge(row, &command, "test.log", Some(&self.skip_log))
        });
        self.rows.push(row);
        Ok(())
    }

    fn loom(&mut self) {
        heading("loom");
        let row = Row::time("loom", |row| {
            let mut command = self.cargo(&["test", "--locked"]);
            command.args(["--package", LOOM, "--test", "loom"]);
            // Other flags rebuild everything, so these builds have a folder of their own.
            command.args(["--target-dir", "target/loom"]);
            let flags = env::var("RUSTFLAGS").unwrap_or_default();
            command.env("RUSTFLAGS", format!("{flags} --cfg loom"));
            self.judge(row, &command, "loom.log", None)
        });
        self.rows.push(row);
    }

    /// Runs tests and counts the results that they print and the skips that they write.
    fn judge(
        &self,
        row: &mut Row,
        command: &Command,
        log: &str,
        skip_log: Option<&Path>,
    ) -> anyhow::Result<()> {
        let outcome = run::run(command, &self.workspace.logs.join(log), LIMIT, Show::Stream)?;
        let mut report = Report::read(outcome.lines());
        let skipped = skip_log.map(files::read_text).transpose()?;
        report.take_back(skips(&skipped.unwrap_or_default())); // no log: its tests name no skips
        let excerpt = report.excerpt();
        report.into_row(row, "cargo test", &outcome);
        if !row.failures.is_empty() {
            match excerpt.as_str() {
                "" => println!("\n{}", run::tail(&outcome.log)),
                excerpt => println!("\n-- from {}\n{excerpt}", outcome.log.display()),
            }
        }
        Ok(())
    }

    /// A cargo whose tests do not see the device that the user's environment chooses.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.workspace.cargo();
        command
            .args(args)
            .env_remove("GAUDI_DEVICE")
            .env_remove("GAUDI_MAPPING_TABLE");
        command
    }
}

/// Headers that a variable names already, and a note.
fn from_environment(headers: &Headers) -> Option<(PathBuf, String)> {
    let include = PathBuf::from(env::var_os(&headers.variable)?);
    let tree = include.parent()?.parent()?.to_owned();
    let is_there = tree.join(&headers.holds).is_file();
    is_there.then(|| (tree, "from the environment".to_owned()))
}

/// The machine's own headers, where they are of the wanted series, and a note.
fn from_machine(headers: &Headers) -> Option<(PathBuf, String)> {
    let tree = PathBuf::from("/");
    let version = fs::read_to_string(tree.join("usr/include/linux/version.h")).ok()?;
    let serves = headers.series == Some(kernel_series(&version)?) && tree.join(&headers.holds).is_file();
    serves.then(|| (tree, "the machine's own".to_owned()))
}

/// `major.minor` of a `linux/version.h`.
fn kernel_series(version_h: &str) -> Option<String> {
    let code = version_h
        .lines()
        .find_map(|line| line.strip_prefix("#define LINUX_VERSION_CODE "))?;
    let code: u32 = code.trim().parse().ok()?;
    Some(format!("{}.{}", code >> 16, (code >> 8) & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_headers_is_read() {
        assert_eq!(
            kernel_series("#define LINUX_VERSION_CODE 393659\n"),
            Some("6.1".to_owned()),
            "393659 is 6.1.187"
        );
        assert_eq!(
            kernel_series("#define LINUX_VERSION_CODE x\n"),
            None,
            "no number, no series"
        );
        assert_eq!(kernel_series(""), None, "no define, no series");
    }

    #[test]
    fn earlier_build_time_is_a_row() {
        let row = built_before(Some("12")).expect("a row");
        assert_eq!(
            (row.seconds, row.counts),
            (12.0, crate::ledger::Counts::default()),
            "seconds, no counts"
        );
        assert_eq!(built_before(Some("soon")), None, "not a number of seconds");
        assert_eq!(built_before(None), None, "without a value there is no row");
    }
}
