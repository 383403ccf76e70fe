//! What cargo builds for the guests: programs of tests, programs, examples.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use cargo_metadata::{Artifact, CrateType, Message, TargetKind};

use super::image::{PROGRAMS, Program};
use super::kernels::Guest;
use super::suite::CRATE;
use crate::workspace::{Crate, Workspace};
use crate::{files, run};

/// The program that serves modelled cards to guests.
pub(super) const SERVER: &str = "vgaudi";

/// A test binary, built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    pub(super) package: String,
    /// `gaudi-dmabuf/fork`: for the channel and the reader.
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// What `lab test` boots guests with.
pub(super) struct Built {
    pub(super) binaries: Vec<Binary>,
    /// Programs and examples that tests find on PATH.
    pub(super) programs: Vec<Program>,
    /// Shared libraries of the tests' crates, beside the test binaries as in cargo's folder.
    pub(super) libraries: Vec<Program>,
    /// The program that serves cards.
    pub(super) server: PathBuf,
}

/// Builds the tests of the crates with this machine's cargo, and the guest's programs and examples
/// beside them.
pub(super) fn tests(
    workspace: &Workspace,
    crates: &[String],
    guest: &Guest,
    release: bool,
) -> anyhow::Result<Built> {
    // The lab's own examples serve its own tests.
    let is_wanted = |row: &&String| target(row).0 != CRATE || crates.iter().any(|name| name == CRATE);
    let examples: Vec<_> = guest.examples.iter().filter(is_wanted).cloned().collect();
    let examples_by_name: Vec<_> = examples.iter().map(|row| target(row)).collect();
    let programs = guest.programs.iter().map(|row| target(row).0);
    // The tests of a package come with its programs. In a build of their own, cargo would build
    // their dependencies again, with other features.
    let named = crates.iter().map(String::as_str).chain(programs).chain([SERVER]);
    let named: Vec<_> = named.chain(examples_by_name.iter().map(|row| row.0)).collect();
    let command = |words: &[&str]| {
        let mut command = workspace.cargo();
        command.args(words).arg("--locked");
        if release {
            command.arg("--release");
        }
        for name in &named {
            command.args(["--package", name]);
        }
        command
    };
    let mut artifacts = built(command(&["test", "--no-run", "--lib", "--tests"]))?;
    if !examples.is_empty() {
        // By themselves: named to `cargo test`, an example becomes a harness of tests.
        let mut command = command(&["build"]);
        for (_, name) in &examples_by_name {
            command.args(["--example", name]);
        }
        artifacts.extend(built(command)?);
    }
    let binary = |artifact: &Artifact| {
        let manifest = artifact.manifest_path.strip_prefix(&workspace.root).ok()?;
        let is_of = |member: &&Crate| manifest.parent().is_some_and(|folder| folder == member.folder);
        let package = workspace.crates.iter().find(is_of)?.name.clone();
        let target = match artifact.target.kind.first()? {
            TargetKind::Test => artifact.target.name.clone(),
            kind => kind.to_string(),
        };
        let is_test = artifact.profile.test && crates.contains(&package);
        let path = artifact.executable.clone().filter(|_| is_test)?;
        Some(Binary {
            name: format!("{package}/{target}"),
            package,
            path: path.into(),
        })
    };
    let mut binaries: Vec<_> = artifacts.iter().filter_map(binary).collect();
    // In the order of the file: the order of cargo's messages depends on its threads.
    binaries.sort_by_key(|binary| {
        let place = crates.iter().position(|name| *name == binary.package);
        (place, binary.name.clone())
    });
    let server = programs_of(&artifacts, &TargetKind::Bin, &[SERVER.to_owned()])?.pop();
    let mut programs = programs_of(&artifacts, &TargetKind::Bin, &guest.programs)?;
    let is_library = |row: &String| {
        let is_it = |artifact: &&Artifact| artifact.target.name == target(row).1;
        artifacts
            .iter()
            .any(|artifact| is_it(&artifact) && makes_library(artifact))
    };
    let mut examples = examples;
    examples.retain(|row| !is_library(row));
    programs.extend(programs_of(&artifacts, &TargetKind::Example, &examples)?);
    Ok(Built {
        binaries,
        programs,
        libraries: libraries_of(&artifacts),
        server: server.context("cargo made no server of cards")?.host,
    })
}

/// Whether an artifact is a shared library with a C interface.
fn makes_library(artifact: &Artifact) -> bool {
    artifact.target.crate_types.contains(&CrateType::CDyLib)
}

fn libraries_of(artifacts: &[Artifact]) -> Vec<Program> {
    let libraries = artifacts.iter().filter(|artifact| makes_library(artifact));
    let mut paths: Vec<PathBuf> = libraries
        .flat_map(|artifact| &artifact.filenames)
        .filter(|path| path.extension() == Some("so"))
        .map(PathBuf::from)
        .collect();
    paths.sort();
    paths.dedup();
    let program = |host: PathBuf| Program {
        guest: format!("{PROGRAMS}/{}", files::name(&host)),
        host,
    };
    paths.into_iter().map(program).collect()
}

/// The crate and the name of a program or an example of kernels.toml.
fn target(row: &str) -> (&str, &str) {
    row.split_once('/').unwrap_or((row, row))
}

/// Builds programs of the workspace, optimized or not; in the guest they are on PATH.
pub(super) fn programs(
    workspace: &Workspace,
    names: &[String],
    release: bool,
) -> anyhow::Result<Vec<Program>> {
    if names.is_empty() {
        return Ok(Vec::new()); // cargo would build its default
    }
    let mut command = workspace.cargo();
    command.args(["build", "--locked"]);
    if release {
        command.arg("--release");
    }
    for name in names {
        let (package, name) = target(name);
        command.args(["--package", package, "--bin", name]);
    }
    programs_of(&built(command)?, &TargetKind::Bin, names)
}

fn programs_of(artifacts: &[Artifact], kind: &TargetKind, names: &[String]) -> anyhow::Result<Vec<Program>> {
    let program = |row: &String| {
        let (_, name) = target(row);
        let is_it = |artifact: &&Artifact| {
            artifact.target.name == name && !artifact.profile.test && artifact.target.is_kind(kind.clone())
        };
        let host = artifacts
            .iter()
            .find(is_it)
            .and_then(|artifact| artifact.executable.clone());
        Ok(Program {
            host: host
                .with_context(|| format!("cargo made no program {name}"))?
                .into(),
            guest: format!("usr/bin/{name}"),
        })
    };
    names.iter().map(program).collect()
}

/// Runs a build; its messages for the user go to this terminal.
fn built(mut command: Command) -> anyhow::Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the build failed; cargo's message is above");
    }
    let mut artifacts = Vec::new();
    for message in Message::parse_stream(&output.stdout[..]) {
        if let Message::CompilerArtifact(artifact) = message.context("cannot read cargo's messages")? {
            let is_made = artifact.executable.is_some() || makes_library(&artifact);
            artifacts.extend(is_made.then_some(artifact));
        }
    }
    Ok(artifacts)
}

/// How many tests the binaries hold: what is skipped when none can run.
pub(super) fn count<'a>(binaries: impl IntoIterator<Item = &'a Binary>, words: &[String]) -> usize {
    let tests = |binary: &Binary| {
        let mut list = Command::new(&binary.path);
        let text = run::text(list.args(["--list", "--format", "terse"]).args(words));
        // A program that cannot list its tests is counted as none, and fails when it runs.
        text.map_or(0, |text| {
            text.lines().filter(|line| line.ends_with(": test")).count()
        })
    };
    binaries.into_iter().map(tests).sum()
}
