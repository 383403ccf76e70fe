//! `gaudi info`: failures in place, CSV by hl-smi's names, and time stamps.

mod program;

use program::{gaudi, run, text};

#[test]
fn failed_device_is_shown_in_place() {
    let arguments = ["info", "-d", "kernel:250", "-d", "mock:gaudi2"];
    let output = run(&arguments);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    let (failed, good) = printed.split_once("\n\n").expect("two blocks");
    assert!(
        failed.starts_with("kernel:250:\n  < open on device accel250"),
        "{failed}"
    );
    assert!(good.starts_with("mock:gaudi2:\n  backend"), "{good}");
    let output = run(&[&arguments[..], &["--json"]].concat());
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let devices = document["devices"].as_array().unwrap();
    assert!(devices[0]["error"].is_string() && devices[0]["status"].is_null());
    assert_eq!(
        (&devices[1]["error"], &devices[1]["status"]),
        (&serde_json::Value::Null, &"operational".into())
    );
}

#[test]
fn query_prints_csv_by_name() {
    let csv = |more: &[&str]| {
        let arguments = [
            "info",
            "-d",
            "mock:gaudi2",
            "-Q",
            "name,memory.total,temperature.aip,utilization.aip",
        ];
        let output = run(&[&arguments[..], more].concat());
        assert!(output.status.success());
        text(&output.stdout)
    };
    assert_eq!(
        csv(&[]),
        "name, memory.total [MiB], temperature.aip [C], utilization.aip [%]\nHL225, 97536 MiB, N/A, 0 %\n"
    );
    assert_eq!(
        csv(&["--format", "csv,noheader,nounits"]),
        "HL225, 97536, N/A, 0\n"
    );
    let wrong = run(&["info", "-d", "mock:gaudi2", "-Q", "temperature"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("temperature.aip"),
        "the known names are listed"
    );
    let both = run(&["info", "-d", "mock:gaudi2", "-Q", "name", "--json"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn loop_prints_time_of_each_round() {
    use std::io::{BufRead as _, BufReader};
    let time = regex::Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").unwrap();
    for (more, lines) in [
        (&["-Q", "timestamp,name", "--format", "csv,noheader"][..], 2),
        (&[], 1),
    ] {
        let arguments = [&["info", "-d", "mock:gaudi2", "--loop=0.01"], more].concat();
        let mut child = gaudi(&arguments)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..lines {
            let line = output.next().unwrap().unwrap();
            assert!(time.is_match(&line), "{line}");
        }
        // The program ends by itself when its reader does.
        drop(output);
        assert!(child.wait().unwrap().success());
    }
}
