//! Cost of tracing for a program, compared with strace. Run on an idle machine:
//!
//! ```text
//! cargo test --release -p gaudi-tracer --test cost -- --ignored --nocapture
//! ```

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use gaudi_tracer::{Backend, DeviceMatch, Options, Tracer};

/// Interleaved repetitions of each row.
const BLOCKS: usize = 5;

/// Returns the time per call in nanoseconds that the program printed.
fn printed(output: impl std::io::Read) -> f64 {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

fn traced(program: &Path, arguments: &[&str], backend: Backend) -> f64 {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    let devices = vec![DeviceMatch {
        major: 1,
        minor: Some(3),
    }];
    let options = Options {
        backend,
        devices,
        ring_bytes: 64 << 20,
        ..Options::default()
    };
    let mut tracer = Tracer::spawn(command, &options).unwrap();
    let pipe = tracer.child().and_then(|child| child.stdout.take()).unwrap();
    let reader = thread::spawn(|| printed(pipe));
    let summary = tracer.run(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(summary.lost.total(), 0, "a result with lost events is invalid");
    reader.join().unwrap()
}

/// Runs the program under `wrapper`, which can be empty; `None` if the wrapper is not installed.
fn wrapped(wrapper: &[&str], program: &Path, arguments: &[&str]) -> Option<f64> {
    let program = program.to_str().unwrap();
    let all: Vec<&str> = wrapper
        .iter()
        .copied()
        .chain([program])
        .chain(arguments.iter().copied())
        .collect();
    let child = Command::new(all[0])
        .args(&all[1..])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.ok()?;
    let nanoseconds = printed(child.stdout.take().unwrap());
    child.wait().unwrap();
    Some(nanoseconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement: needs root and an idle machine"]
fn cost_of_an_ioctl() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("calls");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls.c");
    let built = Command::new("gcc")
        .args(["-O2", "-pthread", source, "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(built.success());
    let strace = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-e",
        "trace=ioctl",
        "-o",
        "/dev/null",
    ];
    let plain = ["strace", "-f", "-e", "trace=ioctl", "-o", "/dev/null"];
    let pinned: Vec<&str> = ["taskset", "-c", "0"].into_iter().chain(strace).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!(
        "/proc/loadavg {load}{}",
        std::fs::read_to_string("/proc/version").unwrap()
    );
    for (what, many, few) in [("loop", "1000000", "10000"), ("mixed", "1000000", "10000")] {
        let mut rows: Vec<(&str, Vec<f64>)> = [
            "eBPF",
            "ptrace",
            "strace --seccomp-bpf",
            "the same, pinned",
            "strace",
        ]
        .map(|name| (name, Vec::new()))
        .into();
        let mut base = Vec::new();
        for _ in 0..BLOCKS {
            base.extend(wrapped(&[], &program, &[what, many]));
            rows[0].1.push(traced(&program, &[what, many], Backend::Bpf));
            rows[1].1.push(traced(&program, &[what, few], Backend::Ptrace));
            rows[2].1.extend(wrapped(&strace, &program, &[what, few]));
            rows[3].1.extend(wrapped(&pinned, &program, &[what, few]));
            rows[4].1.extend(wrapped(&plain, &program, &[what, few]));
        }
        let base = median(base);
        println!("{what}: {base:.0} ns per call untraced; added:");
        for (name, values) in rows {
            match values.iter().copied().reduce(f64::min) {
                Some(best) => println!(
                    "  {name:22} {:8.0} ns (best {:.0})",
                    median(values) - base,
                    best - base
                ),
                None => println!("  {name:22} not installed"),
            }
        }
    }
}
