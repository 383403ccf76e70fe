//! The README's main job: `cargo run --release -- demo`, once more with each stage corrupted, and
//! with files of the sizes that it promises to carry.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::ledger::Row;
use crate::run::{self, Outcome, Show};
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(600);
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Stages on a file's way at which the demo can flip a bit.
const STAGES: [&str; 5] = ["host-a", "dma-a", "nic", "dma-b", "host-b"];
/// Bytes of the files that must arrive whole.
const SIZES: [u64; 5] = [0, 1, 4097, 64 << 20, 1 << 30];
/// The most memory that a node may use at its peak, for a file of any size: two slots of 8 MiB in
/// device memory, in pinned memory and in the processor's memory, and the program itself.
const PEAK_BYTES: u64 = 128 << 20;

/// Builds the program optimized.
pub(super) fn build(workspace: &Workspace, show: Show) -> anyhow::Result<Outcome> {
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--locked"]);
    run::run(&build, &workspace.logs.join("demo-build.log"), BUILD_LIMIT, show)
}

/// Runs what [`build`] built.
pub(super) fn run(workspace: &Workspace, built: anyhow::Result<Outcome>) -> Row {
    Row::time("demo", |row| {
        built?.check("cargo build --release")?;
        steps(workspace, row)
    })
}

fn steps(workspace: &Workspace, row: &mut Row) -> anyhow::Result<()> {
    let gaudi = |name: &str, args: &[&str], show: Show| {
        let mut command = workspace.cargo();
        command
            .args(["run", "--release", "--locked", "--quiet", "--"])
            .args(args);
        command
            .env_remove("GAUDI_DEVICE")
            .env_remove("GAUDI_MAPPING_TABLE");
        run::run(
            &command,
            &workspace.logs.join(format!("demo-{name}.log")),
            LIMIT,
            show,
        )
    };
    judge(row, "demo", &gaudi("whole", &["demo"], Show::Stream)?, None);
    for stage in STAGES {
        let outcome = gaudi(
            &format!("corrupt-{stage}"),
            &["demo", "--corrupt", stage],
            Show::Quiet,
        )?;
        judge(row, &format!("demo --corrupt {stage}"), &outcome, Some(stage));
    }
    let file = workspace.logs.join("demo-file");
    for size in SIZES {
        write_file(&file, size)?;
        let path = file.to_string_lossy();
        let outcome = gaudi(
            &format!("size-{size}"),
            &["demo", "--json", "--file", &path],
            Show::Quiet,
        )?;
        judge_size(row, size, &outcome);
    }
    fs::remove_file(&file)?;
    Ok(())
}

/// A file whose blocks all differ.
fn write_file(path: &Path, size: u64) -> anyhow::Result<()> {
    const BLOCK: u64 = 1 << 20;
    let mut block: Vec<u8> = (0..BLOCK)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect();
    let mut file = fs::File::create(path)?;
    for number in 0..size.div_ceil(BLOCK) {
        block[..8].copy_from_slice(&number.to_le_bytes());
        let len = (size - number * BLOCK).min(BLOCK);
        file.write_all(&block[..usize::try_from(len)?])?;
    }
    Ok(())
}

/// The digests are equal, and no node's memory grows with the file.
fn judge_size(row: &mut Row, size: u64, outcome: &Outcome) {
    let what = format!("demo --file of {size} bytes");
    let report = outcome
        .lines()
        .find_map(|line| serde_json::from_str::<serde_json::Value>(&line).ok());
    let Some(report) = report.filter(|_| outcome.ok()) else {
        println!("{}\nFAIL  {what}", run::tail(&outcome.log));
        row.fail(outcome.why(&what));
        return;
    };
    let peak = |node: &str| report[node]["peak_memory_bytes"].as_u64().unwrap_or(u64::MAX);
    let most = peak("node_a").max(peak("node_b"));
    let whole = report["verified"] == true
        && report["size_bytes"] == size
        && report["sha256_source"].is_string()
        && report["sha256_source"] == report["sha256_far_end"];
    if !whole {
        row.fail(format!("{what}: not whole at the far end: {report}"));
    } else if most > PEAK_BYTES {
        row.fail(format!(
            "{what}: a node took {most} bytes at its peak, wanted at most {PEAK_BYTES}"
        ));
    } else {
        println!("ok    {what}, {} MiB at the peak", most >> 20);
        row.pass();
    }
}

/// A whole run ends with 0; a corrupted one ends with 1 and names the stage. Anything else is a
/// failure.
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
            println!("{}\nFAIL  {what}  {why}", run::tail(&outcome.log));
            row.fail(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_arrives_whole_in_bounded_memory() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let failures = |text: &str| {
            fs::write(&log, text).expect("a log");
            let mut row = Row::default();
            judge_size(
                &mut row,
                7,
                &Outcome {
                    code: Some(0),
                    timed_out: false,
                    log: log.clone(),
                },
            );
            row.counts.failed
        };
        let report = |far: &str, peak: u64| {
            format!(
                r#"{{"verified":true,"size_bytes":7,"sha256_source":"a","sha256_far_end":"{far}","node_a":{{"peak_memory_bytes":{peak}}},"node_b":{{"peak_memory_bytes":1}}}}"#
            )
        };
        assert_eq!(failures(&report("a", 1)), 0, "whole, and small");
        assert_eq!(failures(&report("b", 1)), 1, "another digest");
        assert_eq!(failures(&report("a", PEAK_BYTES + 1)), 1, "too much memory");
        assert_eq!(failures("no document"), 1, "no report");
    }

    #[test]
    fn corrupted_run_fails_and_names_its_stage() {
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
        assert_eq!(failures(101, Some("export")), 1, "a panic is not a detection");
    }
}
