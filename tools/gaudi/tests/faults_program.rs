//! `gaudi faults run --seeds A..B -- CMD` with programs of this file: it runs itself.

mod program;

use std::time::Duration;

use gaudi::Device;
use serde_json::Value;

/// Runs a test of this file as the program, under the plans of three seeds.
fn run(name: &str) -> (Option<i32>, Value) {
    let own = std::env::current_exe().expect("a path");
    let own = own.to_str().expect("UTF-8");
    let output = program::run(&[
        "faults",
        "run",
        "--seeds",
        "0..3",
        "--timeout",
        "60",
        "--json",
        "--",
        own,
        name,
        "--exact",
        "--ignored",
    ]);
    let text = program::text(&output.stdout);
    let document = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (output.status.code(), document)
}

#[test]
#[ignore = "a program that the other tests run"]
fn releases_everything() {
    let Ok(device) = Device::open_default() else {
        return;
    };
    let Ok(buffer) = device.alloc(1 << 20) else { return };
    let Ok(host) = device.alloc_host(4096) else { return };
    let Ok(part) = buffer.at(..4096) else { return };
    if let Ok(copy) = device.copy(&part, &host) {
        // The plan decides how it ends.
        let _ = copy.wait(Duration::from_secs(5));
    }
}

#[test]
#[ignore = "a program that the other tests run"]
fn forgets_buffer() {
    let Ok(device) = Device::open_default() else {
        return;
    };
    let buffer = device.alloc(1 << 20);
    std::mem::forget((device, buffer));
}

#[test]
fn clean_program_leaks_nothing() {
    let (code, document) = run("releases_everything");
    assert_eq!(
        (code, &document["bad"]),
        (Some(0), &Value::from(0)),
        "{document:#}"
    );
}

#[test]
fn forgotten_buffer_is_a_leak() {
    let (code, document) = run("forgets_buffer");
    assert_eq!(
        (code, &document["bad"]),
        (Some(1), &Value::from(3)),
        "{document:#}"
    );
    let runs = document["runs"].as_array().expect("runs");
    for run in runs {
        let leaks = run["leaks"].as_str().expect("leaks in words");
        assert!(leaks.starts_with("1 open devices"), "{leaks}");
        assert_eq!(run["ended"], "exit 0");
    }
    let with_memory = runs.iter().filter(|run| {
        let leaks = run["leaks"].as_str().unwrap_or_default();
        leaks.contains("805306368 bytes of device memory")
    });
    assert!(with_memory.count() > 0, "{document:#}");
}

#[test]
fn short_run_leaves_missing_cells() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("coverage.html");
    let name = file.to_str().expect("UTF-8");
    let output = program::run(&["faults", "run", "--cases", "64", "--seed", "1", "--html", name]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "most pairs have not met in 64 cases"
    );
    let error = program::text(&output.stderr);
    assert!(error.contains("have not met"), "{error}");
    let page = std::fs::read_to_string(&file).expect("the page is written");
    for part in [
        "<td class=\"met\">",
        "<td class=\"never\"",
        "64 cases of seed 1",
        "</html>",
    ] {
        assert!(page.contains(part), "{part}");
    }
}
