//! `cargo xtask mutants`: plants defects in a copy of the tree, one at a time, and measures how
//! long the tests take to find each.
//!
//! A defect is a patch of `tests/mutants`. Its first lines are `defect: LAYER: WHAT` and `found by:
//! faults`, which are the random cases of `gaudi faults run`, or `found by: CRATE TARGET [TEST]`.
//! Defects at the seam are layers: `drivers/faults/tests/planted.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::files;
use crate::ledger::Row;
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

const FOLDER: &str = "tests/mutants";
/// The longest run in which a defect must be found.
const FIND: Duration = Duration::from_secs(60);
/// The random cases: crate, target and test, without an end of their own.
const FAULTS: &str = "gaudi-faults stack stack_breaks_no_invariant";
/// What a failed test prints first, and the time between two looks at its log.
const PANIC: &str = "panicked at";
const TURN: Duration = Duration::from_millis(20);
const MANY_CASES: &str = "1000000000";

/// Plant the defects of tests/mutants in a copy of the tree, and find each with its test
#[derive(clap::Args)]
pub(crate) struct Mutants {
    /// A patch of tests/mutants, without `.patch` (repeatable; all if none is named)
    names: Vec<String>,
}

#[derive(Debug)]
struct Mutant {
    name: String,
    path: PathBuf,
    defect: String,
    /// Crate, target, and perhaps the name of a test.
    found_by: String,
}

impl Mutant {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = files::read_text(path)?;
        let value = |key: &str| {
            let mut lines = text.lines();
            let found = lines.find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()));
            found.with_context(|| format!("{} has no line `{key}`", path.display()))
        };
        let found_by = match value("found by:")? {
            faults if faults == "faults" => FAULTS.to_owned(),
            test if (2..=3).contains(&test.split(' ').count()) => test,
            other => bail!(
                "{}: found by: {other}: wanted faults, or CRATE TARGET [TEST]",
                path.display()
            ),
        };
        Ok(Self {
            name: files::name(&path.with_extension("")),
            path: path.to_owned(),
            defect: value("defect:")?,
            found_by,
        })
    }

    /// `git apply` in a tree. It fails if the patch does not fit.
    fn apply(&self, tree: &Path, options: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("git");
        // The copy lies inside of a repository and is not a part of it.
        let above = tree.parent().unwrap_or(tree);
        command
            .args(["apply", "--whitespace=nowarn"])
            .args(options)
            .arg(&self.path)
            .env("GIT_CEILING_DIRECTORIES", above)
            .current_dir(tree);
        run::output(&mut command).with_context(|| format!("{} no longer applies", self.name))?;
        Ok(())
    }
}

fn all(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let paths = files::children(&root.join(FOLDER))?;
    paths.iter().map(|path| Mutant::read(path)).collect()
}

/// How a mutant ended.
struct Found {
    seconds: f64,
    /// The first message of a panic.
    message: String,
}

/// Runs the chosen mutants, and prints a table.
pub(crate) fn run(workspace: &Workspace, arguments: &Mutants) -> anyhow::Result<Vec<Row>> {
    let all = all(&workspace.root)?;
    let is_chosen = |mutant: &&Mutant| arguments.names.is_empty() || arguments.names.contains(&mutant.name);
    if let Some(unknown) = arguments
        .names
        .iter()
        .find(|name| all.iter().all(|m| m.name != **name))
    {
        bail!("{FOLDER} has no {unknown}.patch");
    }
    let folder = workspace.logs.join("mutants");
    let tree = folder.join("tree");
    copy(workspace, &tree)?;
    let (mut rows, mut seconds) = (Vec::new(), Vec::new());
    for mutant in all.iter().filter(is_chosen) {
        rows.push(Row::time(&mutant.name, |row| {
            let found = find(workspace, mutant, &folder);
            copy(workspace, &tree)?;
            let Found {
                seconds: after,
                message,
            } = found?;
            println!(
                "found {:<40} after {after:6.2} s  {}\n      {message}",
                mutant.name, mutant.defect
            );
            seconds.push(after);
            row.pass();
            Ok(())
        }));
    }
    seconds.sort_by(f64::total_cmp);
    if let (Some(median), Some(most)) = (seconds.get(seconds.len() / 2), seconds.last()) {
        let count = seconds.len();
        println!(
            "{count} of {} found; median {median:.2} s, longest {most:.2} s",
            rows.len()
        );
    }
    Ok(rows)
}

/// Builds and runs the test of a mutant. A test that passes, or that does not end in time, is an
/// error: the mutant survived.
fn find(workspace: &Workspace, mutant: &Mutant, folder: &Path) -> anyhow::Result<Found> {
    let tree = folder.join("tree");
    mutant.apply(&tree, &[])?;
    let mut words = mutant.found_by.split(' ');
    let (package, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut build = workspace.cargo();
    build
        .args(["test", "--locked", "--package", package, "--test", target])
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("GAUDI_TEST_CASES", MANY_CASES);
    if mutant.found_by != FAULTS {
        build.env_remove("GAUDI_TEST_CASES");
    }
    let mut test = run::after(Command::new("env"), &build);
    build.arg("--no-run");
    let log = folder.join(format!("{}.log", mutant.name));
    run::run(&build, &log, LIMIT, Show::Quiet)?.check("the build")?;
    // A failure is printed at once. A failed test may wait for its peers before it ends.
    test.args(["--", "--nocapture"]).args(words);
    let begin = Instant::now();
    let is_over = AtomicBool::new(false);
    let (outcome, panicked) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if run::lines(&log).any(|line| line.contains(PANIC)) {
                    return Some(begin.elapsed());
                }
                thread::sleep(TURN);
            }
            None
        });
        let outcome = run::run(&test, &log, FIND, Show::Quiet);
        is_over.store(true, Ordering::Relaxed);
        (outcome, watcher.join().unwrap_or(None))
    });
    let (outcome, seconds) = (
        outcome?,
        panicked.unwrap_or_else(|| begin.elapsed()).as_secs_f64(),
    );
    if outcome.ok() || (outcome.timed_out && panicked.is_none()) {
        bail!(
            "survived {seconds:.0} s of {}: {}",
            mutant.found_by,
            mutant.defect
        );
    }
    let mut lines = outcome.lines().skip_while(|line| !line.contains(PANIC));
    let message = lines.nth(1).unwrap_or_else(|| outcome.why("the test"));
    Ok(Found { seconds, message })
}

/// Makes the copy equal to the tracked files. A file that is equal keeps its time, so that cargo
/// does not build it again.
fn copy(workspace: &Workspace, tree: &Path) -> anyhow::Result<()> {
    for name in workspace.files()? {
        let (from, to) = (workspace.root.join(&name), tree.join(&name));
        let Ok(bytes) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|other| other == bytes) {
            continue;
        }
        to.parent().map_or(Ok(()), files::make_folder)?;
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mutants = all(&root).expect("patches");
        assert!(mutants.len() >= 15, "{} patches", mutants.len());
        for mutant in mutants {
            mutant
                .apply(&root, &["--check"])
                .unwrap_or_else(|error| panic!("{error:#}"));
        }
    }
}
