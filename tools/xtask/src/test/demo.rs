//! The README's main job: `cargo run --release -- demo`, then once more with each stage corrupted.

use std::process::Command;
use std::time::Duration;

use crate::ledger::Row;
use crate::run::{self, Outcome, Show};
use crate::workspace::{self, Workspace};

const LIMIT: Duration = Duration::from_secs(600);
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Stages on a file's way at which the demo can be told to spoil a byte.
const STAGES: usize = 5;

pub(super) fn run(workspace: &Workspace) -> Row {
    Row::time("demo", |row| {
        if let Err(error) = steps(workspace, row) {
            println!("FAIL  demo  {error:#}");
            row.fail(format!("{error:#}"));
        }
    })
}

fn steps(workspace: &Workspace, row: &mut Row) -> anyhow::Result<()> {
    let gaudi = |name: &str, args: &[&str], show: Show| {
        let mut command: Command = workspace::cargo();
        command
            .args(["run", "--release", "--locked", "--quiet", "--"])
            .args(args);
        command
            .current_dir(&workspace.root)
            .env_remove("GAUDI_DEVICE")
            .env_remove("GAUDI_MAPPING_TABLE");
        run::run(
            &command,
            &workspace.logs.join(format!("demo-{name}.log")),
            LIMIT,
            show,
        )
    };
    let mut build = workspace::cargo();
    build
        .args(["build", "--release", "--locked"])
        .current_dir(&workspace.root);
    let built = run::run(
        &build,
        &workspace.logs.join("demo-build.log"),
        BUILD_LIMIT,
        Show::Stream,
    )?;
    if !built.ok() {
        row.fail(built.why("cargo build --release"));
        return Ok(());
    }
    let help = gaudi("help", &["demo", "-h"], Show::Quiet)?;
    let words: Vec<String> = help.lines().collect();
    if !help.ok() || !words.iter().any(|line| line.contains("demo")) {
        println!("skip  demo");
        row.skip(
            "demo",
            "a `gaudi` that answers `demo -h`; this one has no demo yet",
        );
        return Ok(());
    }
    judge(row, "demo", &gaudi("whole", &["demo"], Show::Stream)?, None);
    let stages = stages(&words.join(" "));
    if stages.len() != STAGES {
        row.fail(format!(
            "`gaudi demo -h` lists {} stages for --corrupt, wanted {STAGES}: {stages:?}",
            stages.len()
        ));
    }
    for stage in &stages {
        let outcome = gaudi(
            &format!("corrupt-{stage}"),
            &["demo", "--corrupt", stage],
            Show::Quiet,
        )?;
        judge(row, &format!("demo --corrupt {stage}"), &outcome, Some(stage));
    }
    Ok(())
}

/// A whole run ends with 0; a corrupted one ends with 1 and names the stage. Anything else is a failure.
fn judge(row: &mut Row, what: &str, outcome: &Outcome, stage: Option<&str>) {
    let named = |stage: &str| outcome.lines().any(|line| line.contains(stage));
    let wrong = match (stage, outcome.code) {
        (None, Some(0)) => None,
        (None, _) => Some(outcome.why(what)),
        (Some(stage), Some(1)) if named(stage) => None,
        (Some(_), Some(1)) => Some(format!("{what} failed as it must but named no stage")),
        (Some(_), Some(0)) => Some(format!("{what} did not notice")),
        (Some(_), _) => Some(format!("{}, wanted exit code 1", outcome.why(what))),
    };
    match wrong {
        None => {
            println!("ok    {what}");
            row.pass();
        }
        Some(why) => {
            println!("{}\nFAIL  {what}  {why}", outcome.tail(40));
            row.fail(why);
        }
    }
}

/// The values that help offers for `--corrupt`; help may have wrapped them.
fn stages(help: &str) -> Vec<String> {
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let option = words.split_once("--corrupt").map_or("", |(_, rest)| rest);
    let option = option.split(" --").next().unwrap_or_default();
    let values = option
        .split_once("[possible values: ")
        .and_then(|(_, rest)| rest.split_once(']'));
    values
        .map(|(values, _)| values.split(',').map(|value| value.trim().to_owned()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn stages_are_read_from_help_though_it_wraps() {
        let help = "Options:\n  --file <F>  A file\n  --corrupt <STAGE>  Spoil a byte [possible values: host-to-a,\n  \
                    dma,   export]\n  --color <C>  [possible values: auto, never]\n";
        assert_eq!(
            stages(help),
            ["host-to-a", "dma", "export"],
            "only the values of --corrupt"
        );
        assert_eq!(
            stages("--corrupt <STAGE>  Spoil --color <C> [possible values: auto]"),
            [""; 0],
            "no values"
        );
        assert_eq!(stages("--file <F>"), [""; 0], "no such option");
    }

    #[test]
    fn a_corrupted_run_must_fail_with_1_and_name_its_stage() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        fs::write(&log, "error: digest differs after stage export\n").expect("a log");
        let failures = |code: i32, stage: Option<&str>| {
            let mut row = Row::default();
            judge(
                &mut row,
                "demo",
                &Outcome {
                    code: Some(code),
                    timed_out: false,
                    log: log.clone(),
                },
                stage,
            );
            row.counts.failed
        };
        assert_eq!(failures(0, None), 0, "a whole run ends with 0");
        assert_eq!(failures(1, None), 1, "a whole run must not fail");
        assert_eq!(failures(1, Some("export")), 0, "it failed and named the stage");
        assert_eq!(failures(1, Some("read-back")), 1, "it named another stage");
        assert_eq!(failures(0, Some("export")), 1, "it did not notice");
        assert_eq!(failures(101, Some("export")), 1, "a panic is no detection");
    }
}
