//! `cargo xtask lab diff`: the same generated operations on the mock and on the real driver of a
//! guest's card (tests/diff).

use std::process::ExitCode;

use clap::Args;

use super::bench::Which;
use super::boot::Boot;
use super::image::Job;
use crate::workspace::Workspace;

/// The program that compares both sides.
const PROGRAM: &str = "gaudi-diff";
/// The machine of kernels.toml.
const MACHINE: &str = "whole-gaudi2";
/// Loads the driver and compares. The driver's limit on a submission stays as it is: a wait that
/// times out is reported as a difference before the driver kills the process. A kernel that
/// crashes ends the guest.
const SCRIPT: &str = "echo 1 >/proc/sys/kernel/panic_on_oops; lab-card >/dev/null && exec gaudi-diff \"$@\"";

/// What `lab diff` compares.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// The number of sequences
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Operations in each sequence
    #[arg(long, default_value_t = 200)]
    ops: u64,
    /// The seed of the sequences
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first sequence
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Build the programs optimized: for a long run
    #[arg(long)]
    release: bool,
}

pub(super) fn run(workspace: &Workspace, questions: &Options) -> anyhow::Result<ExitCode> {
    let mut words: Vec<_> = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned).to_vec();
    for (option, number) in [
        ("--cases", questions.cases),
        ("--ops", questions.ops),
        ("--seed", questions.seed),
        ("--first", questions.first),
    ] {
        words.extend([option.to_owned(), number.to_string()]);
    }
    let boot = Boot {
        which: questions.which.clone(),
        machine: Some(MACHINE.to_owned()),
        memory: None,
        release: questions.release,
        adds: Vec::new(),
    };
    let plan = vec![Job {
        name: "diff".to_owned(),
        words,
    }];
    boot.ready(workspace, &[PROGRAM], |_, _| Ok(plan))?
        .run(questions.limit)
}
