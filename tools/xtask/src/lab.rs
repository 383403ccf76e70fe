//! `cargo xtask lab`: real kernels in QEMU, with our tests inside.
//!
//! - Stock Debian kernels, under TCG, without root: what a test proves there it proves about Linux,
//!   not about a model of it.
//! - Kernels are data (`tests/lab/kernels.toml`); packages come through [`crate::packages`], so a
//!   second run needs no network.
//! - The kernel's log and the programs' words travel apart ([`channel`]): neither can be taken for
//!   the other.
//! - What this machine lacks is a counted skip with what would un-skip it.

mod boot;
mod build;
mod card;
mod channel;
mod cpio;
mod diff;
mod guest;
mod image;
mod kernels;
mod kmod;
mod lock;
mod memory;
mod modules;
mod rxe;
mod smoke;
mod suite;
mod verbs;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use self::guest::{Machine, Qemu, Side};
use self::image::{Added, Job, Program, Root};
use self::kernels::{Kernel, Kernels, Shape};
use self::lock::Lock;
use self::verbs::Verbs;
use crate::ledger::{Ledger, Row};
use crate::missing::{missing, or_missing};
use crate::packages::Cache;
use crate::workspace::{self, Workspace};

pub(crate) use self::suite::{CRATE, prepare, rows};

/// Three times what the longest plan takes on two busy cores: that of a guest with a card, which is
/// reset fifty times.
const LIMIT: Duration = Duration::from_secs(1800);
/// Lines of the console that are shown when a guest failed.
const TAIL: usize = 60;

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Run the lab's tests in a guest of each kernel
    Test(Choice),
    /// Run one command in a guest; its output and exit code come back
    Run(boot::Run),
    /// Run the same operations on the mock and the real driver of a guest's card, and compare every
    /// answer
    Diff(diff::Questions),
    /// Prove in guests of their own that a hang and a kernel's cry fail a run
    Prove {
        #[command(flatten)]
        which: Which,
    },
    /// Boot a guest with a card again and again, and each time take a byte's whole way by RDMA into
    /// its memory and back
    Smoke(smoke::Choice),
    /// A shell in a guest, on this terminal
    Shell(boot::Shell),
    /// Remove the guests' images and logs; `--cache` also kernels and QEMU
    Clean {
        /// Remove the unpacked packages too: the next run fetches them again
        #[arg(long)]
        cache: bool,
    },
}

#[derive(Args)]
pub(crate) struct Which {
    /// A kernel's id; the newest when none is given
    #[arg(long, value_name = "ID")]
    kernel: Option<String>,
}

/// What `lab test` runs.
#[derive(Args, Default)]
pub(crate) struct Choice {
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

pub(crate) fn run(workspace: &Workspace, lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Test(choice) => {
            let mut ledger = Ledger::default();
            ledger.extend(rows(workspace, choice)?);
            Ok(ledger.finish())
        }
        Lab::Run(command) => boot::run(workspace, command),
        Lab::Diff(questions) => diff::run(workspace, questions),
        Lab::Prove { which } => prove(workspace, which),
        Lab::Smoke(choice) => smoke::run(workspace, choice),
        Lab::Shell(guest) => boot::shell(workspace, guest),
        Lab::Clean { cache } => clean(workspace, *cache),
    }
}

/// Images and consoles of this workspace.
fn folder(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.logs.join("lab");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Locks the machine's lab for this run; prints which process it waits for.
fn lock(workspace: &Workspace, cache: &Cache) -> anyhow::Result<Lock> {
    let purpose = format!("a lab of {}", workspace.root.display());
    Lock::take(cache.folder(), &purpose, |holder| {
        eprintln!("one lab at a time: waiting for {holder}");
    })
}

/// QEMU, ready to run.
struct Bench {
    qemu: Qemu,
    busybox: PathBuf,
    note: String,
    /// libibverbs for the guests, or what keeps it away.
    verbs: Result<Verbs, String>,
    verbs_note: String,
}

/// A kernel, ready to boot.
struct Booted {
    id: String,
    release: String,
    image: PathBuf,
    modules: PathBuf,
    note: String,
    /// The lab's own build of soft-RoCE, or what keeps it away.
    rxe: Result<PathBuf, String>,
    /// The module that lets habanalabs nodes be opened, or why it is missing.
    open_flag: Result<PathBuf, String>,
}

/// QEMU of the cache, or of Debian.
fn bench(cache: &Cache, kernels: &Kernels) -> anyhow::Result<Bench> {
    if env::consts::ARCH != "x86_64" {
        return missing("the lab's kernels are amd64: run on an amd64 machine");
    }
    let unpacked = cache.bundle(&kernels.qemu)?;
    let qemu = Qemu {
        tree: unpacked.tree.clone(),
    };
    let version = match qemu.version() {
        Ok(version) => version,
        Err(error) => {
            return missing(format!(
                "{error:#}: set GAUDI_CACHE to a folder whose programs may run, or `cargo xtask lab clean --cache`"
            ));
        }
    };
    let verbs = or_missing(cache.bundle(&kernels.verbs))?;
    Ok(Bench {
        qemu,
        busybox: unpacked.tree.join("usr/bin/busybox"),
        note: format!("{version}; {}", unpacked.note),
        verbs_note: verbs
            .as_ref()
            .map_or_else(Clone::clone, |unpacked| unpacked.note.clone()),
        verbs: verbs.map(|unpacked| Verbs {
            tree: unpacked.tree,
            programs: kernels.verbs_programs.clone(),
        }),
    })
}

/// A kernel of the cache, or of Debian.
fn kernel(workspace: &Workspace, cache: &Cache, bench: &Bench, row: &Kernel) -> anyhow::Result<Booted> {
    let unpacked = cache.bundle(&row.bundle())?;
    let (root, busybox, release) = (&workspace.root, &bench.busybox, unpacked.release);
    Ok(Booted {
        id: row.id.clone(),
        image: unpacked.tree.join(row.image(&release)),
        modules: unpacked.tree.join(row.modules(&release)),
        note: unpacked.note,
        rxe: or_missing(rxe::build(cache, root, row, &release, busybox))?,
        open_flag: or_missing(kmod::open_flag(cache, root, row, &release, busybox))?,
        release,
    })
}

/// What a guest is, where it is not the usual one.
#[derive(Clone, Debug, Default)]
struct Unusual {
    /// One of two.
    side: Option<Side>,
    /// Another machine.
    shape: Option<Shape>,
    /// Its memory, as QEMU takes it.
    memory: Option<String>,
    /// Files that the user adds to its root.
    added: Vec<Added>,
}

impl Unusual {
    /// For files and lines: the kernel's id, and what is unusual.
    fn name(&self, kernel: &str) -> String {
        let side = self.side.iter().map(|side| side.letter.to_string());
        let shape = self.shape.iter().map(|shape| shape.id.clone());
        let parts: Vec<_> = [kernel.to_owned()].into_iter().chain(side).chain(shape).collect();
        parts.join("-")
    }
}

/// Writes a root for the kernel. Returns the machine that boots it.
fn machine(
    workspace: &Workspace,
    kernels: &Kernels,
    bench: &Bench,
    kernel: &Booted,
    programs: &[Program],
    plan: &[Job],
    unusual: Unusual,
) -> anyhow::Result<Machine> {
    let unpack = |file: &Path| -> anyhow::Result<Vec<u8>> {
        if file.extension().is_none_or(|end| end != "xz") {
            return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        }
        // The guest's busybox is static and so runs here too: the machine needs no xz.
        let mut command = Command::new(&bench.busybox);
        let output = command.args(["xz", "-dc"]).arg(file).output();
        let output = output.context("cannot run busybox")?;
        if !output.status.success() {
            bail!("xz cannot read {}", file.display());
        }
        Ok(output.stdout)
    };
    let modules = modules::Tree::open(&kernel.modules)?.closure(&kernels.guest.modules, unpack)?;
    let folder = folder(workspace)?;
    let name = unusual.name(&kernel.id);
    let machine = Machine {
        kernel: kernel.image.clone(),
        root: folder.join(format!("{name}.cpio")),
        console: folder.join(format!("{name}.console.log")),
        side: unusual.side,
        shape: unusual.shape,
        memory: unusual.memory,
    };
    let root = Root {
        workspace: &workspace.root,
        busybox: &bench.busybox,
        release: &kernel.release,
        modules: &modules,
        builtin: fs::read(kernel.modules.join("modules.builtin")).unwrap_or_default(),
        built: [("rdma_rxe", &kernel.rxe), ("hl_open_flag", &kernel.open_flag)],
        verbs: &bench.verbs,
        programs,
        added: &unusual.added,
        cards: machine.shape.as_ref().is_some_and(|shape| shape.cards > 0),
        plan,
    };
    root.write(&machine.root)?;
    Ok(machine)
}

/// The end of a console, for the reader of a failure.
fn console_tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// One kernel for `run` and `shell`: here a missing thing is an error, there is nothing to count.
fn one(workspace: &Workspace, which: &Which) -> anyhow::Result<(Kernels, Bench, Booted, Lock)> {
    let kernels = Kernels::load(&workspace.root)?;
    let named: Vec<_> = which.kernel.iter().cloned().collect();
    let row = kernels
        .chosen(&named)?
        .last()
        .copied()
        .cloned()
        .context("there is no kernel")?;
    let cache = Cache::open()?;
    let lock = lock(workspace, &cache)?;
    let bench = bench(&cache, &kernels)?;
    let kernel = kernel(workspace, &cache, &bench, &row)?;
    eprintln!("{}\n{}", bench.note, kernel.note);
    if let Err(need) = &kernel.rxe {
        eprintln!("stock soft-RoCE only: {need}");
    }
    Ok((kernels, bench, kernel, lock))
}

/// What must fail a run, and a word of the finding that says so.
const PROOFS: [(&str, &str, u64, &str); 3] = [
    (
        "a warning of the kernel",
        "echo '<4>WARNING: CPU: 0 PID: 1 at lab/proof.c:1 proof+0x0/0x1' >/dev/kmsg",
        600,
        "WARNING: CPU",
    ),
    (
        "a crash of the kernel",
        "echo c >/proc/sysrq-trigger",
        600,
        "Kernel panic",
    ),
    ("a hang", "sleep 100000", 60, "killed after 60 s"),
];

/// A rule that was never seen to be broken proves nothing: each of [`PROOFS`] breaks one in a
/// guest.
fn prove(workspace: &Workspace, which: &Which) -> anyhow::Result<ExitCode> {
    let (kernels, bench, kernel, _lock) = one(workspace, which)?;
    let mut ledger = Ledger::default();
    for (what, script, limit, word) in PROOFS {
        let plan = [Job {
            name: "proof".to_owned(),
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
        }];
        ledger.extend([Row::time(&format!("lab {} {what}", kernel.id), |row| {
            let boot = || {
                let machine = machine(
                    workspace,
                    &kernels,
                    &bench,
                    &kernel,
                    &[],
                    &plan,
                    Unusual::default(),
                )?;
                let verdict = bench
                    .qemu
                    .boot(&machine, None, Duration::from_secs(limit), |_| {})?;
                anyhow::Ok((machine, verdict))
            };
            match boot() {
                Ok((machine, verdict)) if verdict.findings.iter().any(|found| found.contains(word)) => {
                    println!("ok    {what} is found: {}", verdict.findings.join("; "));
                    println!("{}", console_tail(&machine.console));
                    row.pass();
                }
                Ok((_, verdict)) => row.fail(format!("{what} is not found, only {:?}", verdict.findings)),
                Err(error) => row.fail(format!("{error:#}")),
            }
        })]);
    }
    Ok(ledger.finish())
}

fn clean(workspace: &Workspace, cached: bool) -> anyhow::Result<ExitCode> {
    let cache = Cache::open()?;
    // Not under a lab that runs.
    let _lock = lock(workspace, &cache)?;
    let folder = folder(workspace)?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    println!("removed {}", folder.display());
    if cached {
        for folder in cache.clear()? {
            println!("removed {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A cargo that builds for the guest: what a person chose for this machine is not for it.
fn cargo(workspace: &Workspace) -> Command {
    let mut command = workspace::cargo();
    command.current_dir(&workspace.root);
    command
}
