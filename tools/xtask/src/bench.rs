//! `cargo xtask bench`: builds the benchmarks for speed and runs them.

use std::process::ExitCode;

use anyhow::Context;

use crate::workspace::{self, Workspace};

const CRATE: &str = "gaudi-bench";

/// Runs the benchmarks with these arguments; their exit code.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut command = workspace::cargo();
    command
        .args([
            "run",
            "--quiet",
            "--locked",
            "--release",
            "--package",
            CRATE,
            "--bin",
            CRATE,
            "--",
        ])
        .args(arguments)
        .current_dir(&workspace.root);
    let status = command.status().context("cannot run cargo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
