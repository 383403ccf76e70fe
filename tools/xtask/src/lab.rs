//! `cargo xtask lab`: real kernels in QEMU, with our tests inside.
//!
//! - Stock Debian kernels, under TCG, without root: a test there is about Linux, not about a model
//!   of it.
//! - Kernels are data (`tests/lab/kernels.toml`); packages come through [`crate::packages`], so a
//!   second run needs no network.
//! - The kernel's log and the programs' output travel apart ([`channel`]): neither can be taken for
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
mod peer;
mod smoke;
mod stall;
pub(crate) mod suite;
mod transcript;
mod ucx;
mod verbs;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;

use self::bench::{Which, folder, one, open};
use self::guest::Variant;
use self::image::Job;
use self::kernels::Kernels;
use self::stall::Limits;
use self::suite::Selection;
use crate::ledger::{self, Row};
use crate::workspace::Workspace;
use crate::{files, run};

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Run the lab's tests in a guest of each kernel
    Test(Selection),
    /// Run one command in a guest; its output and exit code come back
    Run(boot::Run),
    /// Run the same operations on the mock and the real driver of a guest's card, and compare every
    /// answer
    Diff(diff::Options),
    /// Show, in guests of their own, that a hang and a kernel's warning fail a run
    Prove(Which),
    /// Boot a guest with a card repeatedly; each boot tests the way of a byte by RDMA into the
    /// card's memory and back
    Smoke(smoke::Selection),
    /// A shell in a guest, on this terminal
    #[command(after_long_help = "\
With a modelled card, and your own program in /root:
  cargo xtask lab shell --machine gaudi2 --add target/debug/my-program
In the guest, `lab-card` loads the driver and the open flag; its words are parameters of the driver.")]
    Shell(boot::Boot),
    /// Remove the guests' images and logs; `--cache` also kernels and QEMU
    Clean {
        /// Remove the unpacked packages too: the next run fetches them again
        #[arg(long)]
        cache: bool,
    },
}

pub(crate) fn run(workspace: &Workspace, lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Test(choice) => Ok(ledger::finish(&suite::rows(workspace, choice)?)),
        Lab::Run(command) => boot::run(workspace, command),
        Lab::Diff(questions) => diff::run(workspace, questions),
        Lab::Prove(which) => prove(workspace, which),
        Lab::Smoke(choice) => smoke::run(workspace, choice),
        Lab::Shell(guest) => boot::shell(workspace, guest),
        Lab::Clean { cache } => clean(workspace, *cache),
    }
}

const WARNING: &str = "echo '<4>WARNING: CPU: 0 PID: 1 at lab/proof.c:1 proof+0x0/0x1' >/dev/kmsg";

/// What must fail a run, a script that does it, seconds for the whole run and for the boot, and a
/// part of the finding.
const PROOFS: [(&str, &str, [u64; 2], &str); 4] = [
    ("a warning of the kernel", WARNING, [600, 180], "WARNING: CPU"),
    (
        "a crash of the kernel",
        "echo c >/proc/sysrq-trigger",
        [600, 180],
        "Kernel panic",
    ),
    ("a hang", "sleep 100000", [60, 60], "killed after 60 s"),
    (
        "a boot that hangs",
        "true",
        [600, 1],
        "did not reach init within 1 s",
    ),
];

/// A rule that was never seen to be broken proves nothing: each of [`PROOFS`] breaks one in a
/// guest.
fn prove(workspace: &Workspace, which: &Which) -> anyhow::Result<ExitCode> {
    let kernels = Kernels::load(&workspace.root)?;
    let (kernel, _lock) = one(workspace, &kernels, which)?;
    let prove = |(what, script, seconds, word): (&str, &str, [u64; 2], &str)| {
        let plan = [Job {
            name: "proof".to_owned(),
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
        }];
        Row::time(&format!("lab {} {what}", kernel.id), |row| {
            let machine = kernel.machine(workspace, &[], &plan, Variant::default(), None)?;
            let [whole, boot] = seconds.map(Duration::from_secs);
            let limits = Limits {
                boot,
                ..Limits::of(whole)
            };
            let verdict = kernel.tools.qemu.boot(&machine, limits, |_| {})?;
            let findings = verdict.findings;
            if !findings.iter().any(|found| found.contains(word)) {
                bail!("{what} is not found, only {findings:?}");
            }
            println!("ok    {what} is found: {}", findings.join("; "));
            println!("{}", run::tail(&machine.console));
            verdict
                .stalled
                .iter()
                .for_each(|stalled| println!("{}", stalled.report));
            row.pass();
            Ok(())
        })
    };
    Ok(ledger::finish(&PROOFS.map(prove)))
}

fn clean(workspace: &Workspace, cached: bool) -> anyhow::Result<ExitCode> {
    let (cache, _lock) = open(workspace)?; // not under a lab that runs
    let folder = folder(workspace)?;
    files::remove_folder(&folder)?;
    println!("removed {}", folder.display());
    if cached {
        for folder in cache.clear()? {
            println!("removed {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
