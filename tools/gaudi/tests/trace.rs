//! `gaudi trace`, `record` and `decode` as a user runs them.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

const TEXT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../hal/capture/tests/fixtures/session.txt"
);
const LINES: &str = include_str!("../../../hal/capture/tests/fixtures/session.lines");

fn gaudi(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    let output = command.args(arguments).env_remove("GAUDI_DEVICE").output();
    output.expect("gaudi starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn traced_program_keeps_output_and_status() {
    for backend in ["auto", "ptrace"] {
        let output = gaudi(&[
            "trace",
            "--backend",
            backend,
            "--",
            "sh",
            "-c",
            "echo out; exit 7",
        ]);
        assert_eq!(output.status.code(), Some(7), "{backend}: {output:?}");
        assert_eq!(text(&output.stdout), "out\n", "{backend}: the program's alone");
        let lines = text(&output.stderr);
        assert!(lines.contains("exit{status=7}"), "{backend}: {lines}");
        assert!(
            lines.contains(" 0 lost"),
            "{backend}: the summary is printed: {lines}"
        );
    }
}

#[test]
fn traced_program_keeps_its_signal() {
    let output = gaudi(&["trace", "--backend", "ptrace", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
}

#[test]
fn missing_program_is_an_error() {
    let output = gaudi(&["trace", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(
        error.starts_with("error: cannot trace /nonexistent/program"),
        "{error}"
    );
}

#[test]
fn record_needs_a_file() {
    let output = gaudi(&["record", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("--output FILE"), "{output:?}");
}

#[test]
fn recorded_capture_is_decoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let file = file.to_str().expect("a path in UTF-8");
    for compress in [&["--quiet"][..], &["--quiet", "--compress"]] {
        let record = [
            &["record", "--output", file][..],
            compress,
            &["--", "sh", "-c", "exit 3"],
        ]
        .concat();
        let output = gaudi(&record);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stderr), "", "quiet");
        let lines = text(&gaudi(&["decode", file]).stdout);
        assert!(lines.contains("exec{path="), "{lines}");
        assert!(lines.ends_with("exit{status=3}\n"), "{lines}");
    }
}

#[test]
fn text_and_binary_decode_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session.gcap");
    let binary = file.to_str().expect("a path in UTF-8");
    let output = gaudi(&["decode", TEXT, "--as", "gcap", "--output", binary]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(&gaudi(&["decode", TEXT]).stdout),
        text(&gaudi(&["decode", binary]).stdout)
    );
    let back = gaudi(&["decode", binary, "--as", "text"]);
    assert_eq!(
        text(&back.stdout),
        std::fs::read_to_string(TEXT).expect("the fixture")
    );
}

#[test]
fn filters_choose_events() {
    let all = LINES.lines().count();
    let count = |filter: &[&str]| {
        let output = gaudi(&[&["decode", TEXT][..], filter].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().count()
    };
    assert_eq!(count(&[]), all);
    let failures = count(&["--errno", "any"]);
    assert!(failures > 0 && failures < all, "{failures} of {all}");
    assert_eq!(count(&["--errno", "ENOTBLK"]), 0, "no event has it");
    let memory = count(&["--op", "HL_IOCTL_MEMORY"]);
    assert!(memory > 0 && memory < all, "{memory} of {all}");
    assert_eq!(count(&["--thread", "1"]), 0);
    assert_eq!(count(&["--slower-than", "1e9"]), 0);
}

#[test]
fn damaged_capture_names_its_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("damaged.gcap");
    let path = file.to_str().expect("a path in UTF-8");
    gaudi(&["decode", TEXT, "--as", "gcap", "--output", path]);
    let whole = std::fs::read(&file).expect("the capture");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("half of it");
    let output = gaudi(&["decode", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stdout.is_empty(), "what is whole is printed");
    let error = text(&output.stderr);
    assert!(
        error.contains("capture, byte ") && error.contains("ends inside a frame"),
        "{error}"
    );
}
