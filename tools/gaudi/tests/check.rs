//! `gaudi check` on the mock: what it prints, what it reports, and that it can fail.

mod program;

use program::{run, text};
use serde_json::Value;
use snapbox::file;

const MOCK: [&str; 4] = ["check", "-d", "mock:gaudi2", "--quiet"];

#[test]
fn check_passes_and_summarizes() {
    let output = run(&MOCK);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The machine's own facts differ.
    let seen = text(&output.stdout)
        .lines()
        .map(|line| match line.split_once("  ") {
            Some((key @ ("driver" | "kernel"), _)) => format!("{key:<11} …\n"),
            _ if line.contains(" passed, ") => {
                let (passed, rest) = line.split_once(" passed, ").expect("a count");
                let (counts, _) = rest.rsplit_once(", ").expect("seconds");
                assert!(passed.parse::<u32>().is_ok_and(|passed| passed > 300), "{line}");
                format!("… passed, {counts}, … s\n")
            }
            _ => format!("{line}\n"),
        })
        .collect::<String>();
    snapbox::Assert::new()
        .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
        .eq(seen, file!["golden/check.txt"]);
}

#[test]
fn check_reports_nothing_that_identifies() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("check.json");
    let report = |more: &[&str]| -> Value {
        let path = path.to_str().expect("UTF-8");
        let output = run(&[&MOCK[..], &["--report", path], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report = std::fs::read(path).expect("a report");
        serde_json::from_slice(&report).expect("one document")
    };
    let plain = report(&[]);
    assert_eq!(
        (&plain["schema"], &plain["identity"]),
        (&"gaudi.check".into(), &Value::Null)
    );
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let named = report(&["--identify"]);
    assert_eq!(named["identity"]["host"], host.trim());
    assert_eq!(
        plain["cases"].as_array().map(Vec::len),
        named["cases"].as_array().map(Vec::len)
    );
}

#[test]
fn check_fails_on_a_wrong_answer() {
    let failing = [&MOCK[..], &["--fault", "mem_map_device:error=EIO", "--json"]].concat();
    let output = run(&failing);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert!(
        report["summary"]["failed"].as_u64() > Some(0),
        "{}",
        report["summary"]
    );
    let cases = report["cases"].as_array().expect("cases");
    let failed = cases
        .iter()
        .find(|case| case["verdict"] == "failed")
        .expect("one");
    assert!(
        failed["failure"]["seen"]
            .as_str()
            .is_some_and(|seen| seen.contains("EIO")),
        "{failed}"
    );
    let difference = &failed["differences"][0];
    assert_eq!(difference["answered_by"], "device", "{failed}");
}

#[test]
fn check_skips_cases_past_its_timeout() {
    let output = run(&[&MOCK[..], &["--timeout", "0.001", "--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let cases = report["cases"].as_array().expect("cases");
    let last = cases.last().expect("a case");
    assert_eq!(
        (&last["verdict"], &last["reason"]),
        (&"skipped".into(), &"more time: --timeout".into())
    );
}

#[test]
fn check_needs_one_device() {
    let code = |arguments: &[&str]| run(&[&["check"], arguments].concat()).status.code();
    assert_eq!(code(&["-d", "kernel:250"]), Some(3));
    assert_eq!(code(&["-d", "mock:gaudi2", "-d", "mock:gaudi2?index=1"]), Some(2));
    let unwritable = ["-d", "mock:gaudi2", "--report", "/nonexistent/check.json"];
    assert_eq!(code(&unwritable), Some(1));
}
