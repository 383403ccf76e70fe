//! The demo and the examples, recorded on mocks and repeated on the recordings: the same output.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gaudi_harness::skip_named;
use serde_json::Value;

fn gaudi(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    command.args(words).env_remove("GAUDI_DEVICE");
    command.output().expect("gaudi starts")
}

/// Returns the output of a program that must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.env_remove("GAUDI_DEVICE").output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    // The order of completions is not the program's.
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines.join("\n")
}

/// An example of the facade; `None` if it was not built.
fn example(test: &str, name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_gaudi")).parent().expect("a folder");
    let path = target.join("examples").join(name);
    if !path.exists() {
        skip_named(test, "the examples: cargo build -p gaudi --examples");
    }
    path.exists().then_some(path)
}

/// The specs that record a mock to a file of the folder, and that replay the file.
fn tape(folder: &Path, index: u32) -> [String; 2] {
    let file = folder.join(format!("{index}.gcap"));
    let file = file.to_str().expect("UTF-8");
    [
        format!("mock:gaudi2?index={index}+record={file},data"),
        format!("replay:{file}"),
    ]
}

#[test]
fn demo_replays_as_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let bytes: Vec<u8> = (0..1_000_003_u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect();
    std::fs::write(&file, bytes).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let [a, b] = [tape(folder.path(), 0), tape(folder.path(), 1)];
    let reports = [0, 1].map(|turn| {
        let output = gaudi(&["demo", "--json", "--file", file, "-d", &a[turn], "-d", &b[turn]]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {text}{error}", a[turn]);
        serde_json::from_str::<Value>(&text).expect("a document")
    });
    for report in &reports {
        assert_eq!(report["verified"], true, "{report}");
    }
    let digest = |report: &Value| report["sha256_far_end"].clone();
    assert_eq!(digest(&reports[0]), digest(&reports[1]));
}

#[test]
fn examples_replay_as_recorded() {
    for name in ["first_copy", "epoll", "otel"] {
        let Some(example) = example("examples_replay_as_recorded", name) else {
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let [record, replay] = tape(folder.path(), 0);
        let [recorded, replayed] = [record, replay].map(|spec| output_of(Command::new(&example).arg(spec)));
        if name == "otel" {
            let calls = |text: &str| spans(text).len();
            assert!(calls(&recorded) > 10, "{recorded}");
            assert_eq!(calls(&recorded), calls(&replayed));
            continue;
        }
        assert!(!recorded.is_empty(), "{name} prints");
        assert_eq!(recorded.replace("mock", "replay"), replayed, "{name}");
    }
}

/// The spans of OTLP lines.
fn spans(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str::<Value>(line).expect("a line of JSON");
    let span = |line: Value| line["resourceSpans"][0]["scopeSpans"][0]["spans"][0].clone();
    text.lines().map(|line| span(parse(line))).collect()
}

#[test]
fn example_exports_spans_as_otlp() {
    let Some(example) = example("example_exports_spans_as_otlp", "otel") else {
        return;
    };
    let text = output_of(Command::new(example).arg("mock:gaudi2"));
    let spans = spans(&text);
    let named = |name: &str| spans.iter().find(|span| span["name"] == name);
    let submit = named("HL_IOCTL_CS").unwrap_or_else(|| panic!("a submission: {text}"));
    let time = |key: &str| submit[key].as_str().and_then(|time| time.parse::<u128>().ok());
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{submit}");
    assert!(time("startTimeUnixNano") > Some(1 << 60), "{submit}");
    assert_eq!(submit["traceId"].as_str().map(str::len), Some(32));
    assert_eq!(submit["spanId"].as_str().map(str::len), Some(16));
    let failed = spans.iter().find(|span| span["status"]["code"] == 2);
    let failed = failed.unwrap_or_else(|| panic!("an operation failed: {text}"));
    assert_eq!(failed["events"][0]["name"], "gaudi.failed", "{failed}");
}

#[test]
fn devices_of_a_transfer_replay_as_recorded() {
    let Some(example) = example("devices_of_a_transfer_replay_as_recorded", "device_to_device") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b] = [tape(folder.path(), 0), tape(folder.path(), 1)];
    let [recorded, replayed] =
        [0, 1].map(|turn| output_of(Command::new(&example).args([&a[turn], &b[turn]])));
    assert_eq!(recorded.replace("mock", "replay"), replayed);
}

/// The example's second open has no layers, so a tracer outside records it.
#[test]
fn reset_replays_as_recorded() {
    let Some(example) = example("reset_replays_as_recorded", "reset") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("reset.gcap");
    let file = file.to_str().expect("UTF-8");
    let program = example.to_str().expect("UTF-8");
    let traced = gaudi(&[
        "record",
        "--backend",
        "preload",
        "--data",
        "--output",
        file,
        "--",
        program,
    ]);
    let recorded = String::from_utf8_lossy(&traced.stdout).into_owned();
    assert!(
        traced.status.success(),
        "{}",
        String::from_utf8_lossy(&traced.stderr)
    );
    let replayed = output_of(Command::new(&example).arg(format!("replay:{file}")));
    let ends = |text: &str| {
        let mut ends: Vec<_> = text
            .lines()
            .filter(|line| line.ends_with("back"))
            .map(str::to_owned)
            .collect();
        ends.sort();
        ends
    };
    assert_eq!(ends(&recorded).len(), 3, "{recorded}");
    assert_eq!(ends(&recorded), ends(&replayed));
}
