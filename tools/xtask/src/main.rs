//! Test, lint and package the workspace: `cargo xtask lint`, `cargo xtask test`, `cargo xtask lab`.
//!
//! - Depends on no crate of the workspace, so that it builds and reports when one of them does not
//!   build.
//! - Every rule is data: the arrows between crates in the workspace's `Cargo.toml`, the Debian
//!   packages in `packages.toml`, exemptions in the manifests' `[package.metadata.lint]`. A change
//!   of a rule is a change of a row.
//! - What cannot run here is counted as skipped, with its reason and what would un-skip it; it is
//!   never a pass.
//! - Children run under `timeout(1)`: a hung test is a failure with a name, not a lost CI job.

mod bench;
mod c_library;
mod deb;
mod files;
mod fuzz;
mod install;
mod lab;
mod ledger;
mod lint;
mod missing;
mod mutants;
mod packages;
mod run;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Test, lint and package the workspace",
    disable_version_flag = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check format, clippy, docs, the arrows between crates and the house rules
    Lint {
        /// Check only the house rules, in seconds: without fmt, clippy and docs
        #[arg(long)]
        house: bool,
    },
    /// Run everything that a change must pass, and print a ledger
    Test {
        /// Run this step only (repeatable); `test` brings `headers` with it
        #[arg(long = "step", value_name = "NAME")]
        steps: Vec<test::Step>,
        /// Print each conformance case instead of running steps: id, chip, source
        #[arg(long, value_name = "WHAT", conflicts_with = "steps", value_parser = ["conformance"])]
        list: Option<String>,
    },
    /// Write the page with the graph of the crates
    Graph,
    /// Compare the cost of the stack with its peers: times, or instructions with --count
    Bench {
        /// For the benchmarks' own program: --quick, --only TEXT, --count; `ucx` alone measures
        /// packaged UCX
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    Fuzz(fuzz::Fuzz),
    Mutants(mutants::Mutants),
    /// Build the program and the C libraries, and install them under a prefix
    Install(install::Install),
    /// Pack what install installs as Debian packages
    Deb(deb::Deb),
    /// Real kernels in QEMU: run tests, a command or a shell there
    #[command(subcommand)]
    Lab(lab::Lab),
}

fn main() -> ExitCode {
    task(Cli::parse().task).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn task(task: Task) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load()?;
    match task {
        Task::Lint { house } => Ok(ledger::finish(&lint::run(&workspace, !house)?)),
        Task::Graph => {
            let page = lint::graph::page(&workspace.crates);
            std::fs::write(workspace.root.join(lint::graph::PAGE), page)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Test { list: Some(_), .. } => test::list_conformance(&workspace),
        Task::Bench { arguments } => bench::run(&workspace, &arguments),
        Task::Fuzz(fuzz) => Ok(ledger::finish(&fuzz::run(&workspace, &fuzz)?)),
        Task::Mutants(mutants) => Ok(ledger::finish(&mutants::run(&workspace, &mutants)?)),
        Task::Install(install) => install::run(&workspace, &install).map(|()| ExitCode::SUCCESS),
        Task::Deb(deb) => Ok(ledger::finish(&deb::run(&workspace, &deb)?)),
        Task::Lab(lab) => lab::run(&workspace, &lab),
        Task::Test { steps, list: None } => Ok(ledger::finish(&test::run(&workspace, &steps)?)),
    }
}
