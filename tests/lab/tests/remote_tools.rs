//! `gaudi nics`, `gaudi doctor --nic` and `gaudi perf` on real soft-RoCE: as a user meets them, on
//! both builds of it.

mod common;

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use common::alone;
use gaudi_lab::rxe::{self, Build, skips, skips_verbs};
use serde_json::Value;

macro_rules! rxe0 {
    (Stock, $test:literal) => {{
        if skips_verbs($test) {
            return;
        }
        let guard = alone();
        rxe::device(Build::Stock, "rxe0", "eth0", "10.77.0.1");
        guard
    }};
    (Patched, $test:literal) => {{
        if skips_verbs($test) || skips($test) {
            return;
        }
        let guard = alone();
        rxe::device(Build::Patched, "rxe0", "eth0", "10.77.0.1");
        guard
    }};
}

/// Runs `gaudi`; returns its exit code and both streams.
fn gaudi(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new("gaudi").args(words).output().expect("gaudi runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    println!("$ gaudi {}\n{stdout}{stderr}", words.join(" "));
    (output.status.code(), stdout, stderr)
}

#[track_caller]
fn json(words: &[&str]) -> Value {
    let (code, stdout, stderr) = gaudi(&[words, &["--json"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).expect("one document")
}

#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "it must say {word:?}:\n{text}");
    }
}

/// The row of `rxe0`, as both builds have it, and the answer on dma-bufs.
fn nics() -> Value {
    let answer = json(&["nics", "--nic", "rxe0"]);
    let nic = &answer["nics"][0];
    assert_eq!((&nic["name"], &nic["software"]), (&"rxe0".into(), &true.into()));
    let port = &nic["ports"][0];
    assert_eq!(
        (&port["state"], &port["link_layer"]),
        (&"ACTIVE".into(), &"Ethernet".into())
    );
    let gids = port["gids"].as_array().expect("a table");
    assert!(
        gids.iter().any(|gid| gid["gid"] == "::ffff:10.77.0.1"
            && gid["kind"] == "RoCE v2"
            && gid["netdev"] == "eth0"),
        "the address that the NIC talks from: {gids:?}"
    );
    assert!(nic["limits"]["max_qp"].as_u64() > Some(0), "{nic}");
    // Root lists them by netlink; the kernel has a queue pair of its own on every port.
    assert!(answer["resources_error"].is_null(), "{answer}");
    let kinds: Vec<_> = nic["queue_pairs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| &one["type"])
        .collect();
    assert!(kinds.contains(&&"GSI".into()), "{nic}");
    nic["dmabuf"].clone()
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn nics_explains_stock_rxe() {
    let _alone = rxe0!(Stock, "nics_explains_stock_rxe");
    let dmabuf = nics();
    assert_eq!(dmabuf["answer"], "no", "{dmabuf}");
    assert_has(
        dmabuf["why"].as_str().expect("a reason"),
        &["ioctl answers EOPNOTSUPP"],
    );
    let (_, table, _) = gaudi(&["nics"]);
    assert_has(
        &table,
        &["rxe0", "ACTIVE", "::ffff:10.77.0.1", "rxe0: dma-buf no"],
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn nics_says_yes_of_the_patched_build() {
    let _alone = rxe0!(Patched, "nics_says_yes_of_the_patched_build");
    let dmabuf = nics();
    assert_eq!(dmabuf["answer"], "yes", "{dmabuf}");
    let (_, table, _) = gaudi(&["nics"]);
    assert_has(&table, &["rxe0", "yes"]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn doctor_explains_the_eopnotsupp_of_stock_rxe() {
    let _alone = rxe0!(Stock, "doctor_explains_the_eopnotsupp_of_stock_rxe");
    let (code, stdout, _) = gaudi(&["doctor", "--nic", "rxe0", "--device", "mock:gaudi2"]);
    assert_ne!(code, Some(0), "something fails");
    assert_has(
        &stdout,
        &["rxe0 (libibverbs) opens", "EOPNOTSUPP", "udmabuf", "staged"],
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn doctor_registers_on_the_patched_build() {
    let _alone = rxe0!(Patched, "doctor_registers_on_the_patched_build");
    let (code, stdout, stderr) = gaudi(&["doctor", "--nic", "rxe0", "--device", "mock:gaudi2"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert_has(&stdout, &["uverbs ioctl REG_DMABUF_MR"]);
}

/// Few and small: what is wanted are rows, not speeds.
fn perf(op: &str, more: &[&str]) -> Value {
    let few = [
        "perf",
        op,
        "--nic",
        "rxe0",
        "--sizes",
        "8,64KiB",
        "--iterations",
        "40",
        "--warm-up",
        "4",
    ];
    let answer = json(&[&few[..], more].concat());
    assert_eq!(
        answer["backend"], "software",
        "soft-RoCE is a processor's work: {answer}"
    );
    for side in ["local", "remote"] {
        assert_eq!(answer[side]["nic"], "rxe0");
        let provider = answer[side]["provider"].as_str().expect("a name");
        assert!(provider.contains("software on eth0"), "{provider}");
    }
    for row in rows(&answer) {
        assert_ne!(row["verified"], false, "{row}");
        assert!(
            row["n"] == 40 && row["bytes_per_second"].as_u64() > Some(0),
            "{row}"
        );
    }
    answer
}

fn rows(answer: &Value) -> &[Value] {
    answer["rows"].as_array().expect("rows")
}

fn verified(answer: &Value) -> usize {
    rows(answer).iter().filter(|row| row["verified"] == true).count()
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_measures_host_memory_between_two_processes() {
    let _alone = rxe0!(Stock, "perf_measures_host_memory_between_two_processes");
    for op in ["write", "read", "send"] {
        let answer = perf(op, &[]);
        assert_eq!(
            rows(&answer).len(),
            4,
            "two sizes, bandwidth and latency: {answer}"
        );
        assert_eq!(verified(&answer), 2, "what arrived is what was sent: {answer}");
    }
    assert_eq!(rows(&perf("atomic", &[])).len(), 2);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_runs_queue_pairs_both_ways() {
    let _alone = rxe0!(Stock, "perf_runs_queue_pairs_both_ways");
    for op in ["write", "read", "send"] {
        let how =
            "--nic rxe0 --sizes 8,64KiB --iterations 40 --qps 3 --mtu 512 --post-list 4 --bidirectional";
        let words: Vec<&str> = ["perf", op].into_iter().chain(how.split(' ')).collect();
        let answer = json(&[&words[..], &["--measure", "bandwidth"]].concat());
        assert_eq!(
            (&answer["queue_pairs"], &answer["path_mtu_bytes"]),
            (&3.into(), &512.into())
        );
        assert_eq!(answer["bidirectional"], true);
        assert_eq!(verified(&answer), 2, "{answer}");
        for row in rows(&answer) {
            assert_eq!(row["n"], 2 * 40, "both directions: {row}");
        }
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_reaches_device_memory_by_its_dmabuf() {
    let _alone = rxe0!(Patched, "perf_reaches_device_memory_by_its_dmabuf");
    for op in ["write", "read"] {
        let answer = perf(op, &["--memory", "device", "--dmabuf", "require"]);
        for side in ["local", "remote"] {
            assert_eq!(answer[side]["path"], "uverbs ioctl REG_DMABUF_MR", "{answer}");
            assert_eq!(answer[side]["device_backend"], "mock");
        }
        assert_eq!(verified(&answer), 2, "{answer}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_stages_on_stock_rxe() {
    let _alone = rxe0!(Stock, "perf_stages_on_stock_rxe");
    for op in ["write", "read"] {
        let answer = perf(op, &["--memory", "device"]);
        for side in ["local", "remote"] {
            assert_eq!(answer[side]["path"], "staged", "{answer}");
            assert_has(answer[side]["why"].as_str().expect("a reason"), &["EOPNOTSUPP"]);
        }
        assert!(verified(&answer) > 0, "{answer}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_requiring_dmabuf_fails_on_stock_rxe() {
    let _alone = rxe0!(Stock, "perf_requiring_dmabuf_fails_on_stock_rxe");
    let (code, stdout, stderr) = gaudi(&[
        "perf", "write", "--nic", "rxe0", "--memory", "device", "--dmabuf", "require",
    ]);
    assert!(code != Some(0) && stdout.is_empty(), "{stdout}");
    assert_has(&stderr, &["EOPNOTSUPP"]);
}

/// A process that is ended with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn perf_serves_one_who_connects_over_tcp() {
    let _alone = rxe0!(Stock, "perf_serves_one_who_connects_over_tcp");
    let _ = gaudi_lab::run(&["ip", "link", "set", "lo", "up"]);
    let mut server = Running(
        Command::new("gaudi")
            .args(["perf", "write", "--nic", "rxe0", "--listen", "127.0.0.1:18515"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("gaudi runs"),
    );
    let begin = std::time::Instant::now();
    // It listens when the port is in the kernel's table: 18515 is 0x4853, and 0A is LISTEN.
    let listens = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        table.lines().any(|line| line.contains(":4853 00000000:0000 0A"))
    };
    while !listens() {
        assert!(begin.elapsed() < common::LONG, "it listens");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let answer = perf("write", &["--connect", "127.0.0.1:18515"]);
    assert_eq!(verified(&answer), 2, "{answer}");
    let status = server.0.wait().expect("it ends");
    let mut stderr = String::new();
    let mut pipe = server.0.stderr.take().expect("a pipe");
    pipe.read_to_string(&mut stderr).expect("text");
    assert!(status.success(), "{stderr}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn missing_nic_error_lists_present_ones() {
    let _alone = rxe0!(Stock, "missing_nic_error_lists_present_ones");
    let (code, _, stderr) = gaudi(&["perf", "write", "--nic", "rxe7"]);
    assert_ne!(code, Some(0));
    assert_has(&stderr, &["rxe7", "rxe0"]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn demo_runs_on_mocks_by_dmabuf() {
    let _alone = rxe0!(Patched, "demo_runs_on_mocks_by_dmabuf");
    let answer = json(&["demo", "--nic", "rxe0"]);
    assert_eq!(answer["verified"], true, "{answer}");
    for (node, way) in [("node_a", "nic_sent_bytes"), ("node_b", "nic_received_bytes")] {
        let node = &answer[node];
        assert_eq!(
            (&node["backend"], &node["software_nic"]),
            (&"mock".into(), &true.into())
        );
        assert_eq!(node[way], 32 << 20, "{node}");
        assert_eq!(node["cpu_copied_bytes"], 32 << 20, "at the ends alone: {node}");
        assert_has(node["nic"].as_str().expect("a name"), &["software on eth0"]);
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn demo_fails_on_stock_rxe_with_reason() {
    let _alone = rxe0!(Stock, "demo_fails_on_stock_rxe_with_reason");
    let (code, stdout, stderr) = gaudi(&["demo", "--nic", "rxe0"]);
    assert!(code != Some(0) && stdout.is_empty(), "{stdout}");
    assert_has(&stderr, &["EOPNOTSUPP"]);
}
