//! `gaudi faults run --seeds A..B -- CMD` with programs of this file: it runs itself.

mod program;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gaudi::Device;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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

#[test]
fn program_without_mock_is_not_tested() {
    let output = program::run(&["faults", "run", "--seeds", "0..2", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    let error = program::text(&output.stderr);
    assert!(
        error.contains("no run opened the mock of GAUDI_DEVICE"),
        "{error}"
    );
}

#[test]
fn options_of_cases_conflict_with_seeds() {
    for option in ["--cases", "--jobs", "--minutes"] {
        let output = program::run(&["faults", "run", option, "2", "--seeds", "0..2", "--", "true"]);
        assert_eq!(output.status.code(), Some(2), "{option}");
    }
}

/// The number of a process that a script writes to a file, once it is there.
fn pid_in(file: &Path) -> Pid {
    for _ in 0..2000 {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(number) = text.strip_suffix('\n') {
            return Pid::from_raw(number.parse().expect("a number"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("the script did not start");
}

/// Waits until a process has ended. Its parent may not await it.
fn ends(pid: Pid) -> bool {
    (0..2000).any(|_| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let runs = stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'));
        if runs {
            thread::sleep(Duration::from_millis(5));
        }
        !runs
    })
}

#[test]
fn process_that_the_program_leaves_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}", file.display());
    program::run(&["faults", "run", "--seeds", "0..1", "--", "sh", "-c", &script]);
    assert!(ends(pid_in(&file)));
}

#[test]
fn interrupt_ends_the_program_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 600", file.display());
    let mut gaudi = program::gaudi(&["faults", "run", "--seeds", "0..9", "--", "sh", "-c", &script])
        .spawn()
        .expect("the program starts");
    let pid = pid_in(&file);
    let own = i32::try_from(gaudi.id()).expect("a process");
    kill(Pid::from_raw(own), Signal::SIGINT).expect("it runs");
    let status = gaudi.wait().expect("it ends");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32));
    assert!(ends(pid));
}
