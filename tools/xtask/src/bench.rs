//! `cargo xtask bench`: builds the benchmarks for speed and runs them, with the peer that Debian
//! carries.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::ledger;
use crate::missing::or_missing;
use crate::packages::{Cache, Pins};
use crate::test::ucx::rates;
use crate::workspace::Workspace;

const CRATE: &str = "gaudi-bench";
/// Cargo's profile of what is measured.
const PROFILE: &str = "dist";
/// The variable that names the folder of UCX's files to the benchmarks.
const UCX: &str = "PEER_UCX";
/// The rows that UCX is the peer of.
const REGIONS: [&str; 2] = ["regions", "memory-types"];

/// Whether the arguments let those rows run.
fn wants_regions(arguments: &[String]) -> bool {
    let argument = |(at, argument): (usize, &'_ String)| match argument.as_str() {
        "--only" => arguments.get(at + 1).cloned(),
        other => other.strip_prefix("--only=").map(str::to_owned),
    };
    let only = arguments.iter().enumerate().find_map(argument);
    let times = !arguments.iter().any(|argument| argument == "--count");
    times && only.is_none_or(|only| REGIONS.iter().any(|name| name.contains(&*only)))
}

/// UCX's tree, from the cache or from Debian.
fn ucx(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let unpacked = Cache::open()?.bundle(&Pins::load(&workspace.root)?.ucx)?;
    println!("{}", unpacked.note);
    Ok(unpacked.tree)
}

/// Runs the benchmarks with these arguments; their exit code.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<ExitCode> {
    if arguments == ["ucx"] {
        return Ok(ledger::finish(&[rates::row(workspace)]));
    }
    // `cargo run` builds one program; the rows of tracing run another.
    let mut build = workspace.cargo();
    build.args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        PROFILE,
        "--package",
        CRATE,
        "--bins",
    ]);
    if !build.status().context("cannot run cargo")?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let mut command = workspace.cargo();
    command.args(["run", "--quiet", "--locked", "--profile", PROFILE]);
    command
        .args(["--package", CRATE, "--bin", CRATE, "--"])
        .args(arguments);
    if env::var_os(UCX).is_none() && wants_regions(arguments) {
        match or_missing(ucx(workspace))? {
            Ok(tree) => drop(command.env(UCX, tree)),
            Err(need) => println!("UCX is absent: {need}"),
        }
    }
    let status = command.status().context("cannot run cargo")?;
    // A wrong command line is 2 there, as everywhere.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_is_fetched_only_when_needed() {
        let wants = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            wants_regions(&arguments)
        };
        assert!(
            wants(&[]) && wants(&["--quick"]) && wants(&["--only", "region"]) && wants(&["--only=regions"])
        );
        assert!(!wants(&["--only", "copy"]) && !wants(&["--only=wait", "--quick"]) && !wants(&["--count"]));
    }
}
