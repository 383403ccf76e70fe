//! RDMA devices, RDMA measured, and a NIC and a card tried together, as a user meets them. Golden
//! files as in `cli.rs`.

mod program;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use program::{gaudi, run, settled, text};
use serde_json::Value;
use snapbox::{Data, file};

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn is(seen: String, golden: Data) {
    snapbox::Assert::new()
        .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
        .eq(seen, golden);
}

/// Few operations: what is tested is that they happen, not how fast.
const FEW: [&str; 6] = ["--iterations", "40", "--warm-up", "5", "--sizes", "8,5000"];

#[test]
fn devices_ports_addresses_and_cards_are_listed() {
    is(printed(&["nics", "--help"]), file!["golden/nics-help.txt"]);
    is(printed(&["nics", "--example"]), file!["golden/nics-example.txt"]);
    is(
        printed(&["nics", "--example", "--nic", "mlx5_3", "--json"]),
        file!["golden/nics-one.json"],
    );
}

#[test]
fn machine_without_rdma_shows_an_example() {
    let trees = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../dmabuf/tests/reach/fixtures/nothing.tree"
    );
    let output = run(&["nics", "--sysfs", trees]);
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("gaudi nics --example"),
        "{output:?}"
    );
    let output = run(&["nics", "--sysfs", trees, "--nic", "mlx5_0"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    // This machine, whatever it has.
    assert!(run(&["nics"]).status.success());
}

#[test]
fn soft_roce_in_guest_is_named_software() {
    let trees = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../dmabuf/tests/reach/fixtures/q35-max.tree"
    );
    let report = json(&["nics", "--sysfs", trees, "--nic", "rxe0"]);
    let nic = &report["nics"][0];
    assert_eq!(
        (&nic["software"], &nic["driver"], &nic["dmabuf"]["answer"]),
        (&true.into(), &"rdma_rxe".into(), &"unlikely".into()),
        "{nic}"
    );
    assert_eq!(nic["reach"][0]["answer"], "refused", "{nic}");
}

/// Every operation, on every memory and way that it has, in one machine.
#[test]
fn every_operation_is_measured_as_software() {
    for arguments in [
        &["perf", "write"][..],
        &["perf", "read"],
        &["perf", "send"],
        &["perf", "atomic"],
        &["perf", "write", "--memory", "device", "--dmabuf", "require"],
        &["perf", "read", "--memory", "device", "-d", "mock:gaudi2?index=1"],
        &["perf", "atomic", "--memory", "device"],
        &["perf", "write", "--memory", "device", "--dmabuf", "never"],
        &["perf", "read", "--memory", "device", "--dmabuf", "never"],
    ] {
        let report = json(&[arguments, &FEW].concat());
        assert_eq!(
            (&report["schema"], &report["backend"], &report["clock"]),
            (
                &"gaudi.perf_rdma".into(),
                &"software".into(),
                &"CLOCK_MONOTONIC".into()
            ),
            "{arguments:?}"
        );
        let rows = report["rows"].as_array().expect("rows");
        let sizes = if arguments[1] == "atomic" { 1 } else { 2 };
        assert_eq!(
            rows.len(),
            2 * sizes,
            "{arguments:?}: bandwidth and latency of each size"
        );
        for row in rows {
            let figure = |name: &str| row[name].as_u64().unwrap_or(0);
            assert_eq!(figure("n"), 40, "{row}");
            // Completions of a group come together: their distances are no times of operations.
            let is_latency = row["measure"] == "latency";
            assert_eq!(row["min_ns"].is_u64(), is_latency, "{row}");
            assert!(
                !is_latency
                    || figure("min_ns") > 0
                        && figure("min_ns") <= figure("median_ns")
                        && figure("median_ns") <= figure("p99_ns")
                        && figure("p99_ns") <= figure("max_ns"),
                "{row}"
            );
            let compared = arguments[1] != "atomic" && row["measure"] == "bandwidth";
            assert!(!compared || row["verified"] == true, "{row}");
        }
        let staged = arguments.contains(&"never");
        for side in ["local", "remote"] {
            assert_eq!(
                report[side]["path"] == "staged",
                staged,
                "{arguments:?}: {report}"
            );
        }
    }
}

#[test]
fn table_says_what_figures_measure() {
    let output = run(&[&["perf", "write", "--memory", "device"][..], &FEW].concat());
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for row in table.lines().filter(|line| line.starts_with("write")) {
        assert!(row.contains("software"), "every row names its backend: {row}");
    }
    assert!(table.contains("no figure above is hardware's"), "{table}");
    assert!(table.contains("device memory of mock0 (mock)"), "{table}");
}

#[test]
fn two_machines_listen_and_connect() {
    for operation in ["write", "read"] {
        let mut server = gaudi(&["perf", operation, "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(server.stderr.as_mut().expect("standard error"))
            .read_line(&mut line)
            .expect("a line");
        let address = line
            .trim()
            .strip_prefix("waiting at ")
            .expect("its address")
            .to_owned();
        let report = json(&[&["perf", operation, "--connect", &address][..], &FEW].concat());
        assert_eq!(report["rows"].as_array().map(Vec::len), Some(4), "{report}");
        assert!(server.wait().expect("it ends").success());
    }
}

#[test]
fn unmeasurable_rows_give_a_reason() {
    for (arguments, code, word) in [
        (
            &["perf", "send", "--memory", "device", "--dmabuf", "never"][..],
            1,
            "needs regions at both ends",
        ),
        (&["perf", "write", "--peer-nic", "rxe99"], 2, "a NIC of one kind"),
        (&["perf", "write", "--sizes", "0"], 2, "1 byte to 1 GiB"),
        (&["perf", "write", "--serve"], 1, "not a socket"),
        (
            &["perf", "write", "--listen", "127.0.0.1:0", "--connect", "x:1"],
            2,
            "cannot be used",
        ),
    ] {
        let output = gaudi(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
}

#[test]
fn nic_and_card_are_checked_together() {
    is(
        settled(&printed(&[
            "doctor",
            "--nic",
            "softnic",
            "--device",
            "mock:gaudi2",
        ])),
        file!["golden/doctor-pair.txt"],
    );
    let output = run(&["doctor", "--nic", "softnic", "--device", "mock:gaudi2"]);
    assert_eq!(
        text(&output.stderr),
        "",
        "everything that was taken is given back"
    );
    let output = run(&["doctor", "--nic", "rxe99", "--device", "mock:gaudi2", "--json"]);
    assert_eq!(output.status.code(), Some(1), "a line fails");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a document all the same");
    let failed = report["checks"].as_array().expect("checks").iter();
    assert!(
        failed
            .clone()
            .any(|check| check["name"] == "NIC" && check["verdict"] == "fail"),
        "{report}"
    );
}

#[test]
fn unknown_errno_is_usage_error() {
    is(
        printed(&["doctor", "--explain", "524"]),
        file!["golden/doctor-explain.txt"],
    );
    let all = json(&["doctor", "--explain", "EINVAL"]);
    assert!(
        all["meanings"]
            .as_array()
            .is_some_and(|meanings| meanings.len() > 3)
    );
    assert_eq!(run(&["doctor", "--explain", "EWHAT"]).status.code(), Some(2));
}

#[test]
fn nic_faults_end_in_their_status() {
    let plan = "softnic+fault=nic.post:when=20:status=REM_ACCESS_ERR";
    // The peer of a write has no work of its own: it ends with the failure of the other end.
    for op in ["send", "write"] {
        let perf = ["perf", op, "--measure", "bandwidth", "--memory", "host"];
        let mut took = Duration::MAX;
        // Before the peer misses the heartbeats of a stopped process. It always misses them if the
        // failure is not reported at once; a machine that stalls is late once.
        for _ in 0..3 {
            if took < Duration::from_secs(14) {
                break;
            }
            let begin = Instant::now();
            let output = run(&[&perf[..], &FEW, &["--nic", plan, "--peer-nic", "softnic"]].concat());
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let error = text(&output.stderr);
            assert!(error.contains("ended with REM_ACCESS_ERR"), "{error}");
            assert!(
                error.contains("nic.post:when=20:status=REM_ACCESS_ERR"),
                "{error}"
            );
            took = begin.elapsed();
        }
        assert!(took < Duration::from_secs(14), "{op}: {took:?}");
    }
}

/// Rules that never fire are reported by both ends; rules that fire are not.
#[test]
fn unfired_nic_rule_is_reported() {
    let plan = [
        "--fault",
        "nic.packet:when=3:duplicate;nic.state:when=99:error=EIO",
    ];
    let write = ["perf", "write", "--measure", "latency", "--memory", "host"];
    let output = run(&[&write[..], &FEW, &plan].concat());
    assert!(output.status.success(), "{output:?}");
    let error = text(&output.stderr);
    for warning in [
        "warning: the fault rule nic.state:when=99:error=EIO never fired: nic.state matched 3 times",
        "warning: peer: the fault rule nic.state:when=99:error=EIO never fired: nic.state matched 3 times",
    ] {
        assert!(error.contains(warning), "{warning}: {error}");
    }
    assert!(!error.contains("duplicate never fired"), "{error}");
}

/// Each rule of a command is executed, or rejected with the reason.
#[test]
fn nic_rules_need_the_software_nic() {
    for (arguments, cause) in [
        (
            &[
                "copy",
                "-d",
                "mock",
                "--size",
                "4KiB",
                "--fault",
                "nic.packet:lose",
            ][..],
            "this command opens none",
        ),
        (
            &["perf", "write", "--nic", "mlx5_9", "--fault", "nic.packet:lose"],
            "needs the software NIC: mlx5_9 injects no faults",
        ),
        (
            &["perf", "write", "--fault", "nic.packet:lose;submit:lose"],
            "--fault does nothing here",
        ),
        (
            &["demo", "--nic", "softnic+fault=submit:lose"],
            "submit:lose is not for an event of a NIC",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = text(&output.stderr);
        assert!(error.contains(cause), "{arguments:?}: {error}");
    }
}

/// One plan for the cards and the NICs of both nodes.
#[test]
fn demo_survives_a_lossy_cable() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let plan = "submit:when=1:delay=1ms;nic.packet:size=1..:when=1:lose";
    let output = run(&["demo", "--file", file, "--fault", plan, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(report["verified"], true);
    let error = text(&output.stderr);
    assert!(
        error.contains("fault injected by rule nic.packet:size=1..:when=1:lose"),
        "{error}"
    );
}

/// A UCX of 1.18 whose program the loader finds, and a plugin that nothing loads.
#[test]
fn doctor_names_what_keeps_ucx_from_loading() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ucx_info");
    let script = "#!/bin/sh\necho '# Library version: 1.18.1'\necho '# Library path: /lib/libucs.so.0'\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("libuct_gaudi.so.0"), "").unwrap();
    let asked = |more: &[&str]| {
        let output = gaudi(&[&["doctor", "--ucx"], more].concat())
            .env("PATH", folder.path())
            .env("UCX_PLUGIN_PATH", folder.path())
            .env("UCX_TLS", "rc,tcp")
            .env("GAUDI_DEVICE", "mock:gaudi2")
            .env_remove("LD_PRELOAD")
            .output()
            .expect("the program starts");
        assert_eq!(
            output.status.code(),
            Some(1),
            "a line fails: {}",
            text(&output.stderr)
        );
        text(&output.stdout).replace(folder.path().to_str().unwrap(), "/plugins")
    };
    let seen = asked(&[]);
    // A command stays in one line, which only a terminal's width breaks.
    let fits = |line: &str| line.contains("remedy: ") || line.chars().count() <= 80;
    assert!(seen.lines().all(fits), "80 columns: {seen}");
    is(seen, file!["golden/doctor-ucx.txt"]);
    let report: Value = serde_json::from_str(&asked(&["--json"])).expect("one JSON document");
    assert_eq!(report["failed"], 1, "UCX_TLS: {report}");
    assert_eq!(report["warned"], 1, "nothing loads the plugin: {report}");
}
