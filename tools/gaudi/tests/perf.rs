//! `gaudi perf` between two ends that misbehave, die, stop or disagree, and what both print.

mod program;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use program::{gaudi, run, settled, text};
use serde_json::Value;
use snapbox::file;

const FEW: [&str; 6] = ["--iterations", "40", "--warm-up", "5", "--sizes", "8,5000"];
/// Longer than any test takes, so that the other end's death ends it and not the work.
const LONG: [&str; 4] = ["--duration", "600", "--sizes", "8"];
/// A wait that must end by itself fails after this.
const GENEROUS: Duration = Duration::from_secs(100);

/// A listening end and its address.
struct Server {
    child: Child,
    address: String,
    notes: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = gaudi(&[&["perf"], arguments, &["--listen", "127.0.0.1:0"]].concat())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut notes = BufReader::new(child.stderr.take().expect("standard error"));
        let mut line = String::new();
        notes.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("waiting at ").expect("its address");
        Self {
            address: address.to_owned(),
            child,
            notes,
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    /// Waits for its end: exit code, standard output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let code = ended(&mut self.child);
        let (mut out, mut notes) = (String::new(), String::new());
        let stdout = self.child.stdout.as_mut().expect("standard output");
        stdout.read_to_string(&mut out).expect("text");
        self.notes.read_to_string(&mut notes).expect("text");
        (code, out, notes)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The exit code of a process that ends by itself.
fn ended(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + GENEROUS;
    loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            return status.code();
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("it does not end within {GENEROUS:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn client(address: &str, arguments: &[&str]) -> Output {
    run(&[&["perf"], arguments, &["--connect", address]].concat())
}

fn document(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", text(bytes)))
}

#[test]
fn listener_survives_junk_connections() {
    let server = Server::start(&["write"]);
    let junk: [&[u8]; 5] = [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x03\x00\x00\x00\xff\xff\xff",
        b"\x02\x00\x00\x00{}",
        b"\x0d\x00\x00\x00{\"version\":1}",
    ];
    for bytes in junk {
        let mut stream = server.connect();
        stream.write_all(bytes).expect("it is taken");
        // The server refuses some junk before it reads all of it; its reset may arrive first.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(GENEROUS)).expect("a time");
        // Closed by the server, which takes the next one then.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let output = client(&server.address, &[&["write"][..], &FEW].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, _, notes) = server.end();
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(
        notes.matches("refused a connection from 127.0.0.1").count(),
        5,
        "{notes}"
    );
}

#[test]
fn listener_times_out_without_a_client() {
    let server = Server::start(&["write", "--timeout", "0.3"]);
    let (code, _, notes) = server.end();
    assert_eq!(code, Some(6), "{notes}");
    assert!(notes.contains("wait for a connection"), "{notes}");
}

#[test]
fn listener_times_out_while_a_client_trickles() {
    let server = Server::start(&["write", "--timeout", "1"]);
    let mut stream = server.connect();
    let start = Instant::now();
    // A message of 60 000 bytes, one every 50 ms: more than any deadline here.
    let frame = [60_000_u32.to_le_bytes().as_slice(), &[b' '; 4000]].concat();
    let trickle = std::thread::spawn(move || {
        for byte in frame {
            if stream.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (code, _, notes) = server.end();
    assert_eq!(code, Some(6), "{notes}");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?} for 1 s",
        start.elapsed()
    );
    trickle.join().expect("it ends when the connection does");
}

#[test]
fn killed_peer_ends_the_survivor() {
    // Memory is watched in the first, completions in the others.
    for arguments in [
        &["write", "--measure", "latency"][..],
        &["send", "--measure", "latency"],
        &["write", "--measure", "bandwidth"],
        &["send", "--measure", "bandwidth", "--bidirectional"],
    ] {
        for server_dies in [true, false] {
            let mut server = Server::start(arguments);
            let mut client = gaudi(&[&["perf"], arguments, &LONG, &["--connect", &server.address]].concat())
                .stderr(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("the program starts");
            wait_until_busy(&server.child, &client);
            let start = Instant::now();
            let code = if server_dies {
                server.child.kill().expect("it is killed");
                ended(&mut client)
            } else {
                client.kill().expect("it is killed");
                client.wait().expect("it is reaped");
                ended(&mut server.child)
            };
            let _ = client.kill();
            assert_eq!(code, Some(1), "{arguments:?}, server dies: {server_dies}");
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{arguments:?}: {:?}",
                start.elapsed()
            );
        }
    }
}

#[test]
fn stopped_peer_ends_the_survivor() {
    let patient = ["write", "--measure", "latency", "--timeout", "600"];
    let stopped = |server_stops: bool| {
        let mut server = Server::start(&patient);
        let mut client = gaudi(&[&["perf"], &patient[..], &LONG, &["--connect", &server.address]].concat())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        wait_until_busy(&server.child, &client);
        let stopped = if server_stops { &server.child } else { &client };
        let stopped = Pid::from_raw(stopped.id().cast_signed());
        kill(stopped, Signal::SIGSTOP).expect("it stops");
        let code = ended(if server_stops {
            &mut client
        } else {
            &mut server.child
        });
        // SIGKILL ends a stopped process too.
        let _ = client.kill();
        let _ = client.wait();
        code
    };
    std::thread::scope(|scope| {
        let both =
            [true, false].map(|server_stops| (server_stops, scope.spawn(move || stopped(server_stops))));
        for (server_stops, survivor) in both {
            let code = survivor.join().expect("it ends within its deadline");
            // The NIC's retries end first, or the peer's silence does.
            assert!(
                matches!(code, Some(1 | 6)),
                "server stops: {server_stops}: {code:?}"
            );
        }
    });
}

/// Waits until both processes have used so much processor time that they are in a row.
fn wait_until_busy(server: &Child, client: &Child) {
    let ticks = |child: &Child| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        // proc_pid_stat(5): utime and stime are fields 14 and 15, and this begins at field 3.
        let fields: Vec<&str> = after_name.split(' ').collect();
        let field = |at: usize| {
            fields
                .get(at)
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or(0)
        };
        field(11) + field(12)
    };
    let end = Instant::now() + GENEROUS;
    // Half a second each at 100 ticks a second; a process that waits for its peer uses none.
    while ticks(client) < 50 || (ticks(server) < 10) {
        assert!(Instant::now() < end, "they never begin");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn failed_connections_name_their_cause() {
    for (address, code, cause) in [
        ("name.invalid:1", 1, "cannot resolve name.invalid:1"),
        (
            "127.0.0.1:1",
            1,
            "connection refused: nothing listens at 127.0.0.1:1",
        ),
        ("127.0.0.1", 2, "wanted HOST:PORT"),
        ("127.0.0.1:0", 2, "is not a port"),
        ("::1", 2, "wanted HOST:PORT"),
    ] {
        let output = client(address, &["write"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{address}: {error}");
        assert!(error.contains(cause), "{address}: {error}");
    }
}

#[test]
fn both_ends_print_the_result() {
    let server = Server::start(&["write", "--json"]);
    let output = client(&server.address, &[&["write", "--json"][..], &FEW].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, theirs, notes) = server.end();
    assert_eq!(code, Some(0), "{notes}");
    let (ours, theirs) = (document(&output.stdout), document(theirs.as_bytes()));
    assert_eq!(ours["rows"].as_array().map(Vec::len), Some(4), "{ours}");
    assert_eq!(ours["rows"], theirs["rows"], "one measurement");
    assert_eq!(
        (&ours["measured_by"], &theirs["measured_by"]),
        (&"local".into(), &"remote".into())
    );
    assert_eq!(
        (&ours["local"], &ours["remote"]),
        (&theirs["remote"], &theirs["local"])
    );
}

#[test]
fn ends_that_disagree_name_both_values() {
    for (there, here, what) in [
        (
            &["read"][..],
            &["write"][..],
            "the operation: the listening end has read, the connecting end write",
        ),
        (
            &["write", "--memory", "device"],
            &["write"],
            "--memory: the listening end has device, the connecting end host",
        ),
        (
            &["write", "--iterations", "7"],
            &["write", "-D", "1"],
            "--iterations: the listening end has 7, the connecting end none",
        ),
        (
            &["write", "-d", "mock:gaudi2"],
            &["write"],
            "--device: the listening end has one, but the connecting end measures host memory",
        ),
    ] {
        let server = Server::start(there);
        let output = client(&server.address, here);
        let (code, _, notes) = server.end();
        for (code, error) in [(output.status.code(), text(&output.stderr)), (code, notes)] {
            assert_eq!(code, Some(2), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }
}

#[test]
fn unset_listener_options_follow_the_client() {
    let server = Server::start(&["read", "--sizes", "8,5000", "--json"]);
    let device = ["--memory", "device", "--qps", "2", "--json"];
    let output = client(&server.address, &[&["read"][..], &FEW, &device].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, report, notes) = server.end();
    assert_eq!(code, Some(0), "{notes}");
    let report = document(report.as_bytes());
    assert_eq!(
        (&report["local"]["device_backend"], &report["queue_pairs"]),
        (&"mock".into(), &2.into())
    );
}

/// Every option of perftest's that this program has, on every operation that has it.
#[test]
fn options_of_perftest_are_measured() {
    for op in ["write", "read", "send", "atomic"] {
        let options = ["-b", "--qps", "3", "-l", "4", "-m", "1024", "-H", "--json"];
        let output = run(&[&["perf", op][..], &FEW, &options].concat());
        assert!(output.status.success(), "{op}: {}", text(&output.stderr));
        let report = document(&output.stdout);
        assert_eq!(
            (
                &report["queue_pairs"],
                &report["post_list"],
                &report["path_mtu_bytes"]
            ),
            (&3.into(), &4.into(), &1024.into())
        );
        assert_eq!(report["bidirectional"], true);
        for row in report["rows"].as_array().expect("rows") {
            let is_latency = row["measure"] == "latency";
            assert_eq!(row["n"], if is_latency { 40 } else { 80 }, "{op}: {row}");
            assert!(row["verified"] != false, "{op}: {row}");
            assert!(
                row["cpu_percent"].as_f64() > Some(0.0),
                "a loop that spins uses time: {row}"
            );
            assert_eq!(row["median_ns"].is_u64(), is_latency, "{row}");
            if is_latency {
                let buckets = row["histogram"].as_array().expect("asked for");
                let sum: u64 = buckets.iter().filter_map(|bucket| bucket["n"].as_u64()).sum();
                assert_eq!(sum, 40, "{row}");
            } else {
                assert!(row["histogram"].is_null() && row["min_ns"].is_null(), "{row}");
            }
        }
    }
}

#[test]
fn rows_last_as_long_as_the_duration() {
    for op in ["write", "read", "send"] {
        for options in [
            &["--qps", "1"][..],
            &["-b", "--qps", "2", "-t", "8", "-l", "8", "-Q", "3"],
        ] {
            let start = Instant::now();
            let arguments = ["perf", op, "-D", "0.4", "--sizes", "64", "--json"];
            let output = run(&[&arguments[..], options].concat());
            assert!(output.status.success(), "{op}: {}", text(&output.stderr));
            assert!(start.elapsed() >= Duration::from_millis(800), "two rows");
            let report = document(&output.stdout);
            assert_eq!(report["duration_ms"], 400);
            for row in report["rows"].as_array().expect("rows") {
                // A loaded machine does few: what counts is that the row ended by its time.
                assert!(row["n"].as_u64() >= Some(2), "{row}");
                assert!(row["verified"] != false, "{op}: {row}");
            }
        }
    }
}

#[test]
fn staged_rows_reject_foreign_options() {
    let staged = ["perf", "write", "--memory", "device", "--dmabuf", "never"];
    for option in [&["-b"][..], &["--qps", "2"], &["-l", "2"], &["-m", "1024"]] {
        let output = run(&[&staged[..], option].concat());
        assert_eq!(output.status.code(), Some(1), "{option:?}");
        assert!(
            text(&output.stderr).contains("needs regions at both ends"),
            "{option:?}"
        );
    }
}

#[test]
fn mtu_above_port_is_rejected_twice() {
    let output = run(&["perf", "write", "-m", "9000"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn killed_command_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out");
    let mut child = gaudi(&[&["perf", "write", "--measure", "latency"], &LONG[..]].concat())
        .arg("--output")
        .arg(&path)
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let end = Instant::now() + GENEROUS;
    // The file is opened before the peer is started, whose process is this one's child.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    while std::fs::read_to_string(&children).map_or(true, |text| text.trim().is_empty()) {
        assert!(Instant::now() < end, "it never starts its peer");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it is killed");
    child.wait().expect("it is reaped");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn output_fits_the_terminal() {
    for arguments in [
        &[&["perf", "write", "-H", "-b", "--qps", "2"][..], &FEW].concat()[..],
        &[&["perf", "atomic", "--memory", "device"][..], &FEW].concat(),
        &[
            "perf", "read", "--memory", "device", "--dmabuf", "never", "-s", "1m", "-n", "10",
        ],
        &[
            "perf",
            "copy",
            "-d",
            "mock",
            "--sizes",
            "1,64MiB",
            "--iterations",
            "3",
        ],
        &["copy", "-d", "mock", "--size", "512MiB"],
        &["demo"],
    ] {
        for columns in ["80", "100", "160"] {
            let output = gaudi(arguments)
                .env("COLUMNS", columns)
                .output()
                .expect("it starts");
            assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
            let table = text(&output.stdout);
            assert!(table.lines().count() > 3, "{table}");
            for line in table.lines() {
                let width = line.chars().count();
                assert!(
                    width <= columns.parse().expect("a number"),
                    "{arguments:?}: {line}"
                );
            }
        }
    }
}

#[test]
fn perf_write_prints_bandwidth_and_latency() {
    let output = run(&[&["perf", "write"][..], &FEW].concat());
    let figures = regex::Regex::new(r"(\d+ )?\d+ +\d+ +\d+ +yes").expect("a pattern");
    let table = settled(&text(&output.stdout));
    let table = figures
        .replace_all(&table, "[RATE]  [CPU]  [CPU]  yes")
        .into_owned();
    snapbox::Assert::new()
        .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
        .eq(table, file!["golden/perf-write.txt"]);
}

#[test]
fn calibrated_costs_are_what_caps_reports() {
    let sizes = ["--sizes", "4KiB,1MiB", "--iterations", "10"];
    let words = [&["perf", "copy", "-d", "mock:gaudi2", "--calibrate"][..], &sizes].concat();
    let output = run(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = text(&output.stdout);
    let value = |name: &str| {
        let line = printed
            .lines()
            .find_map(|line| line.strip_prefix(&format!("export {name}=")));
        line.unwrap_or_else(|| panic!("a line of {name}: {printed}"))
            .to_owned()
    };
    let (latency, bandwidth) = (value("GAUDI_COPY_LATENCY"), value("GAUDI_COPY_BANDWIDTH"));
    assert_eq!(value("UCX_GAUDI_LATENCY"), format!("{latency}ns"));
    assert_eq!(value("UCX_GAUDI_BW"), format!("{bandwidth}MBs"));
    let mut caps = gaudi(&["caps", "-d", "mock:gaudi2", "--json"]);
    caps.env("GAUDI_COPY_LATENCY", &latency)
        .env("GAUDI_COPY_BANDWIDTH", &bandwidth);
    let caps = caps.output().expect("the program runs");
    let caps: Value = serde_json::from_slice(&caps.stdout).expect("a document");
    let found = caps.to_string();
    assert!(found.contains(&format!("\"latency_ns\":{latency}")), "{found}");
    let rate = format!("\"bandwidth_bytes_per_second\":{bandwidth}000000");
    assert!(found.contains(&rate), "{found}");
    for wrong in [&["--json"][..], &["--sizes", "4KiB"]] {
        let words = [&["perf", "copy", "-d", "mock:gaudi2", "--calibrate"][..], wrong].concat();
        assert_eq!(run(&words).status.code(), Some(2), "{wrong:?}");
    }
}
