//! `cargo xtask lab`: real kernels in QEMU, with our tests inside.
//!
//! - Stock Debian kernels, under TCG, without root: what a test proves there it proves about Linux,
//!   not about a model of it.
//! - Kernels are data (`tests/lab/kernels.toml`); packages come through [`crate::packages`], so a
//!   second run needs no network.
//! - The kernel's log and the programs' words travel apart ([`channel`]): neither can be taken for
//!   the other.
//! - What this machine lacks is a counted skip with what would un-skip it.

mod bench;
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
pub(crate) mod suite;
mod verbs;

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;

use self::bench::{Variant, Which, console_tail, folder, lock, machine, one};
use self::image::Job;
use self::suite::Selection;
use crate::ledger::{Ledger, Row};
use crate::packages::Cache;
use crate::workspace::Workspace;

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Run the lab's tests in a guest of each kernel
    Test(Selection),
    /// Run one command in a guest; its output and exit code come back
    Run(boot::Run),
    /// Run the same operations on the mock and the real driver of a guest's card, and compare every
    /// answer
    Diff(diff::Options),
    /// Prove in guests of their own that a hang and a kernel's cry fail a run
    Prove {
        #[command(flatten)]
        which: Which,
    },
    /// Boot a guest with a card again and again, and each time take a byte's whole way by RDMA into
    /// its memory and back
    Smoke(smoke::Selection),
    /// A shell in a guest, on this terminal
    Shell(boot::Shell),
    /// Remove the guests' images and logs; `--cache` also kernels and QEMU
    Clean {
        /// Remove the unpacked packages too: the next run fetches them again
        #[arg(long)]
        cache: bool,
    },
}

pub(crate) fn run(workspace: &Workspace, lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Test(choice) => {
            let mut ledger = Ledger::default();
            ledger.extend(suite::rows(workspace, choice)?);
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
                    Variant::default(),
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
