//! The benchmarks run, every row of them: no figure is looked at.

use std::process::Command;

#[test]
fn every_row_runs() {
    let output = Command::new(env!("CARGO_BIN_EXE_gaudi-bench"))
        .arg("--quick")
        .output()
        .expect("the benchmarks start");
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{error}");
    for what in [
        "submit: user time",
        "poll: user time",
        "wait of 1 s",
        "hlthunk_command_submission: user time",
        "hlthunk_notifier_create: user time",
        "LIN_DMA packets",
        "LIN_DMA of 64 KiB",
        "LIN_DMA of 16 MiB",
        "copy() and wait of 1 MiB",
        "put zcopy of 64 KiB",
        "put short",
        "shuffled pieces",
        "pool: allocate",
        "submit to completion",
        "a fault layer that is off",
        "dup and close",
        "memory type, hit of 1000 ranges",
        "memory type, host memory",
        "let go: 1000 regions",
        "2 threads: 100000 regions",
        "entry in the ledger",
    ] {
        assert!(out.contains(what), "no row of {what:?} in\n{out}");
    }
    let absent = ["PEER_HLTHUNK", "PEER_UCX"]
        .iter()
        .any(|peer| std::env::var_os(peer).is_none());
    assert_eq!(
        out.contains("peer absent"),
        absent,
        "a missing peer is reported as absent:\n{out}"
    );
}

#[test]
fn only_without_match_is_a_usage_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_gaudi-bench"))
        .args(["--quick", "--only", "cache"])
        .output()
        .expect("the benchmarks start");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("\"cache\"") && error.contains("regions"),
        "{error}"
    );
    assert!(output.stdout.is_empty());
}
