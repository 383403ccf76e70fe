//! `cargo xtask fuzz`: builds targets of `fuzz/` for libFuzzer and runs each for some seconds.
//!
//! The instrumentation is LLVM's and needs no nightly compiler. `cargo +nightly fuzz run TARGET`
//! runs the same targets, with AddressSanitizer, where cargo-fuzz is installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::files;
use crate::ledger::Row;
use crate::missing::missing;
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

/// The crate with the targets' bodies and seeds.
const BODIES: &str = "gaudi-fuzz";
/// What libFuzzer needs of the compiler, as cargo-fuzz passes it.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// The longest run of one input, and the most memory: a modelled card has its own.
const LIMITS: &[&str] = &["-timeout=60", "-rss_limit_mb=8192", "-print_final_stats=1"];

/// Run fuzz targets, each for some seconds; inputs that find something are kept for the next run
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// A target of fuzz/fuzz_targets (repeatable; all if none is named)
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

struct Fuzzing<'a> {
    workspace: &'a Workspace,
    seconds: u32,
    /// Where builds, corpora and findings go.
    folder: PathBuf,
    host: String,
}

/// Runs the targets, and returns one row for each.
pub(crate) fn run(workspace: &Workspace, arguments: &Fuzz) -> anyhow::Result<Vec<Row>> {
    let all: Vec<String> = files::children(&workspace.root.join("fuzz/fuzz_targets"))?
        .iter()
        .map(|path| files::name(&path.with_extension("")))
        .collect();
    if let Some(unknown) = arguments.targets.iter().find(|name| !all.contains(name)) {
        bail!("{unknown} is not a fuzz target; there are: {}", all.join(" "));
    }
    let chosen = if arguments.targets.is_empty() {
        &all
    } else {
        &arguments.targets
    };
    let version = run::text(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let fuzzing = Fuzzing {
        workspace,
        seconds: arguments.seconds,
        folder: workspace.logs.join("fuzz"),
        host: host.context("`rustc -vV` names no host")?.to_owned(),
    };
    if run::text(Command::new("c++").arg("--version")).is_err() {
        return missing("libFuzzer is C++: install g++ or clang++");
    }
    Ok(chosen.iter().map(|name| fuzzing.row(name)).collect())
}

impl Fuzzing<'_> {
    fn row(&self, name: &str) -> Row {
        Row::time(name, |row| {
            let program = self.build(name)?;
            let note = self.run(name, &program)?;
            println!("ok    {name}  {note}");
            row.pass();
            Ok(())
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn build(&self, name: &str) -> anyhow::Result<PathBuf> {
        let target = self.folder.join("target");
        let mut command = self.workspace.cargo();
        // With --target, the flags apply to the targets and not to build scripts.
        command
            .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"])
            .args(["--bin", name, "--target", &self.host, "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", FLAGS.join(" "));
        run::run(&command, &self.log(name), LIMIT, Show::Stream)?.check("the build")?;
        Ok(target.join(&self.host).join("release").join(name))
    }

    /// Returns what libFuzzer counted.
    fn run(&self, name: &str, program: &Path) -> anyhow::Result<String> {
        let corpus = self.folder.join("corpus").join(name);
        let seeds = self.folder.join("seeds").join(name);
        let found = self.folder.join("found").join(name);
        for folder in [&corpus, &found] {
            files::make_folder(folder)?;
        }
        run::output(self.bodies().args(["corpus", name]).arg(&seeds))?;
        let before = files::children(&found)?;
        let mut command = Command::new(program);
        command
            .args(LIMITS)
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-artifact_prefix={}/", found.display()))
            .args([&corpus, &seeds])
            .env_remove("GAUDI_DEVICE")
            .env_remove("GAUDI_MAPPING_TABLE");
        let log = self.log(name);
        let limit = Duration::from_secs(self.seconds.into()) + LIMIT;
        let outcome = run::run(&command, &log, limit, Show::Quiet)?;
        for input in files::children(&found)? {
            if !before.contains(&input) {
                let text = run::text(self.bodies().args(["text", name]).arg(&input))?;
                println!("{name} failed on {}\n{text}", input.display());
            }
        }
        outcome.check("the target")?;
        let number = |what: &str| {
            let mut lines = outcome.lines();
            lines.find_map(|line| Some(line.strip_prefix(what)?.trim().to_owned()))
        };
        let executed = number("stat::number_of_executed_units:").context("no count of runs")?;
        let last = outcome.lines().filter(|line| line.contains(" cov: ")).last();
        let last = last.unwrap_or_default();
        let coverage = last
            .split(" cov: ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let coverage = coverage.unwrap_or("0");
        Ok(format!(
            "{executed} inputs in {} s, {coverage} edges",
            self.seconds
        ))
    }

    fn bodies(&self) -> Command {
        let mut command = self.workspace.cargo();
        command.args(["run", "--quiet", "--locked", "--package", BODIES, "--"]);
        command
    }
}
