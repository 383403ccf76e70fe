//! `cargo xtask lab diff`: the same generated operations on the mock and on the real driver of a
//! guest's card (tests/diff).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::bench::{Variant, Which, console_tail, machine, one};
use super::build::{self, SERVER};
use super::card::Cards;
use super::channel::Message;
use super::image::Job;
use crate::workspace::Workspace;

/// The program that asks both sides.
const PROGRAM: &str = "gaudi-diff";
/// The machine of kernels.toml.
const MACHINE: &str = "whole-gaudi2";
/// Loads the driver and asks. Its limit on a submission stays as it is: whatever a wait of the run
/// does not live to see is told as a difference before the driver kills who asked. A kernel that
/// crashes ends the guest.
const SCRIPT: &str = "echo 1 >/proc/sys/kernel/panic_on_oops; lab-card >/dev/null && exec gaudi-diff \"$@\"";

/// What `lab diff` asks.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// How many sequences
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Operations in each sequence
    #[arg(long, default_value_t = 200)]
    ops: u64,
    /// What the sequences are made from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first sequence
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Build the programs for speed: for a long run
    #[arg(long)]
    release: bool,
}

pub(super) fn run(workspace: &Workspace, questions: &Options) -> anyhow::Result<ExitCode> {
    let names = [PROGRAM, SERVER].map(str::to_owned);
    let mut programs = build::programs(workspace, &names, questions.release)?;
    let server = programs.pop().context("cargo made no server of cards")?.host;
    let (kernels, bench, kernel, _lock) = one(workspace, &questions.which)?;
    let shape = kernels.shape(MACHINE)?.clone();
    let mut words: Vec<_> = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned).to_vec();
    for (option, number) in [
        ("--cases", questions.cases),
        ("--ops", questions.ops),
        ("--seed", questions.seed),
        ("--first", questions.first),
    ] {
        words.extend([option.to_owned(), number.to_string()]);
    }
    let plan = [Job {
        name: "diff".to_owned(),
        words,
    }];
    let variant = Variant {
        shape: Some(shape.clone()),
        ..Variant::default()
    };
    let machine = machine(workspace, &kernels, &bench, &kernel, &programs, &plan, variant)?;
    let cards = Cards::start(&server, &shape, &machine.console)?;
    let mut ended = None;
    let limit = Duration::from_secs(questions.limit);
    let verdict = bench
        .qemu
        .boot(&machine, Some(&cards), limit, |said| match said {
            Message::Out(line) => println!("{line}"),
            Message::Err(line) | Message::Noise(line) | Message::Skip(line) => eprintln!("{line}"),
            Message::End { status, .. } => ended = Some(*status),
            Message::Boot(_) | Message::Begin(_) | Message::Done(_) => {}
        })?;
    eprintln!("{} ended after {:.1} s", kernel.release, verdict.wall);
    if !verdict.findings.is_empty() {
        let tail = console_tail(&machine.console);
        eprintln!("-- the end of {}\n{tail}", machine.console.display());
        anyhow::bail!("{}", verdict.findings.join("; "));
    }
    let status = ended.context("the guest did not say how the run ended")?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}
