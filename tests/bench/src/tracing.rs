//! What tracing costs a program: this project's tiers beside strace, all records on disk.
//!
//! The traced program is `gaudi-bench-calls` beside this one, because the ioctls of this one answer
//! themselves. It makes the given number of calls and prints the nanoseconds that each took.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use gaudi_capture::gcap::{Compression, Writer};
use gaudi_supervisor::Supervisor;
use gaudi_tracer::{Backend, DeviceMatch, Item, Options, Tracer};

use crate::harness::Made;

/// The name of the rows for `--only`.
pub const NAME: &str = "trace";
/// The device: /dev/null.
const DEVICE: &str = "/dev/null";
const WATCHED: DeviceMatch = DeviceMatch {
    major: 1,
    minor: Some(3),
};
/// What the traced program calls.
const IOCTLS: &str = "ioctls";
const GETPPIDS: &str = "getppids";
/// A query of a device that a mock answers: from within the program, and from outside.
const EMBEDDED: &str = "embedded";
const DRIVER: &str = "driver";
/// The smallest ratios to strace that pass: tier A and B per ioctl, tier B per other call.
const GOALS: [(&str, f64); 4] = [
    ("A", 80.0),
    ("B", 20.0),
    ("B, other calls", 100.0),
    // strace can only inject an errno, and stops once for it.
    ("gaudi run", 2.5),
];

fn program(subject: &str, times: u32) -> Made<Command> {
    let mut command = Command::new(std::env::current_exe()?.with_file_name("gaudi-bench-calls"));
    command.args([subject, &times.to_string()]);
    command.stdout(Stdio::piped());
    Ok(command)
}

fn printed(mut output: impl std::io::Read) -> Made<f64> {
    let mut text = String::new();
    output.read_to_string(&mut text)?;
    Ok(text.trim().parse()?)
}

/// Runs the program under a tier, with the records in a file. Returns its nanoseconds a call.
fn traced(backend: Backend, subject: &str, times: u32, folder: &Path) -> Made<f64> {
    let options = Options {
        backend,
        devices: vec![WATCHED],
        ..Options::default()
    };
    let file = File::create(folder.join("run.gcap"))?;
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 18, file), &[], Compression::None)?;
    let mut tracer = Tracer::spawn(program(subject, times)?, &options)?;
    let pipe = tracer.child().and_then(|child| child.stdout.take());
    let pipe = pipe.ok_or("the program has no output")?;
    let reader = thread::spawn(|| printed(pipe).map_err(|error| error.to_string()));
    let mut failed = None;
    let summary = tracer.run_items(|item| {
        let written = match item {
            Item::Event(event) => writer.write(&event),
            Item::Encoded(event) => writer.write_encoded(&event),
            Item::Idle => writer.flush(),
        };
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    let ns = reader.join().map_err(|_| "the reader panicked")??;
    if let Some(error) = failed {
        return Err(error.into());
    }
    writer.finish()?.flush()?;
    let is_recorded = [IOCTLS, EMBEDDED].contains(&subject);
    let expected = if is_recorded { u64::from(times) } else { 0 };
    if (summary.ioctls, summary.lost.total()) != (expected, 0) {
        let found = format!(
            "{} of {expected} ioctls, {} lost",
            summary.ioctls,
            summary.lost.total()
        );
        return Err(format!("tier {}: {found}: no valid figure", summary.tier).into());
    }
    Ok(ns)
}

/// Runs the program with a mock that this process answers, as `gaudi run` does.
fn supervised(times: u32) -> Made<f64> {
    let mut supervisor = Supervisor::spawn(program(DRIVER, times)?, vec!["mock:gaudi2".parse()?])?;
    let pipe = supervisor
        .child()
        .stdout
        .take()
        .ok_or("the program has no output")?;
    let ns = printed(pipe);
    supervisor.wait()?;
    ns
}

/// Runs the program below `wrapper`.
fn wrapped(wrapper: &[&str], subject: &str, times: u32, folder: &Path) -> Made<f64> {
    let own = program(subject, times)?;
    let mut command = match wrapper.split_first() {
        None => own,
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg("-o").arg(folder.join("strace.out"));
            command.arg(own.get_program()).args(own.get_args());
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            command
        }
    };
    let output = command.output()?;
    printed(output.stdout.as_slice())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A contender: its name, and a run with a number of calls.
struct Contender<'a> {
    name: &'static str,
    run: Box<dyn Fn(u32) -> Made<f64> + 'a>,
    /// Calls of a run.
    times: u32,
    found: Vec<f64>,
    /// Why it cannot run.
    absent: Option<String>,
}

impl Contender<'_> {
    fn measure(&mut self) {
        if self.absent.is_none() {
            match (self.run)(self.times) {
                Ok(ns) => self.found.push(ns),
                Err(error) => self.absent = Some(error.to_string()),
            }
        }
    }

    /// Returns what it adds to a call.
    fn added(&self, base: f64) -> Option<f64> {
        let has = self.absent.is_none() && !self.found.is_empty();
        has.then(|| (median(&self.found) - base).max(0.1))
    }
}

fn machine() -> String {
    // Shown beside the figures; empty without /proc.
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name\t: "));
    let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let kernel = version.split(' ').nth(2).unwrap_or_default();
    format!("{}, Linux {kernel}", model.unwrap_or("unknown processor"))
}

/// Measures and prints the rows. Returns the numbers of goals, and of goals that were missed.
///
/// # Errors
/// The program cannot run.
pub fn report(quick: bool) -> Made<(usize, usize)> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let (rounds, many, few) = if quick {
        (1, 20_000, 1000)
    } else {
        (5, 1_000_000, 20_000)
    };
    let seccomp = ["strace", "-f", "--seccomp-bpf", "-e", "trace=ioctl"];
    let pinned = [
        "taskset",
        "-c",
        "0",
        "strace",
        "-f",
        "--seccomp-bpf",
        "-e",
        "trace=ioctl",
    ];
    let plain = ["strace", "-f", "-e", "trace=ioctl"];
    let strace = Command::new("strace").arg("-V").output();
    let absent = strace.err().map(|error| format!("peer absent: strace: {error}"));
    let tier = |name, backend, subject: &'static str, times| Contender {
        name,
        run: Box::new(move |times| traced(backend, subject, times, folder)),
        times,
        found: Vec::new(),
        absent: None,
    };
    let peer = |name, wrapper: Vec<&'static str>, subject: &'static str, times| Contender {
        name,
        run: Box::new(move |times| wrapped(&wrapper, subject, times, folder)),
        times,
        found: Vec::new(),
        absent: absent.clone().filter(|_| !name.starts_with("untraced")),
    };
    let mut ioctls = [
        peer("untraced", Vec::new(), IOCTLS, many),
        tier("A", Backend::Preload, IOCTLS, many),
        tier("B", Backend::Bpf, IOCTLS, many),
        tier("C", Backend::Ptrace, IOCTLS, few),
        peer("strace --seccomp-bpf", seccomp.to_vec(), IOCTLS, few),
        peer("the same on one processor", pinned.to_vec(), IOCTLS, few),
    ];
    let mut others = [
        peer("untraced", Vec::new(), GETPPIDS, many),
        tier("B, other calls", Backend::Bpf, GETPPIDS, many),
        peer("strace, other calls", plain.to_vec(), GETPPIDS, few),
    ];
    let mut embedded = [
        peer("untraced, a mock's INFO", Vec::new(), EMBEDDED, many / 5),
        tier("the library, to A's rings", Backend::Preload, EMBEDDED, many / 5),
    ];
    let mut run = [
        peer("untraced", Vec::new(), IOCTLS, many),
        Contender {
            name: "gaudi run",
            run: Box::new(supervised),
            times: few,
            found: Vec::new(),
            absent: None,
        },
        peer("strace --seccomp-bpf", seccomp.to_vec(), IOCTLS, few),
        peer("the same on one processor", pinned.to_vec(), IOCTLS, few),
    ];
    for _ in 0..rounds {
        let all = ioctls.iter_mut().chain(&mut others);
        for contender in all.chain(&mut embedded).chain(&mut run) {
            contender.measure();
        }
    }
    println!("tracing: {}", machine());
    println!("watched: {DEVICE}, {many} calls of `gaudi-bench-calls ioctls`, {few} under ptrace(2)");
    let mut missed = 0;
    let mut goals = 0;
    for group in [&ioctls[..], &others, &embedded, &run] {
        let base = median(&group[0].found);
        let peers = group
            .iter()
            .filter(|row| row.name.contains("strace") || row.name.contains("same"));
        let best = peers.filter_map(|row| row.added(base)).reduce(f64::min);
        println!("  {:26} {base:9.0} ns a call", group[0].name);
        for row in &group[1..] {
            let Some(added) = row.added(base) else {
                let why = row.absent.as_deref().unwrap_or("no figure");
                println!("  {:26} {why}", row.name);
                continue;
            };
            let goal = GOALS.iter().find(|goal| goal.0 == row.name).map(|goal| goal.1);
            let verdict = match (goal, best) {
                (Some(goal), Some(best)) => {
                    goals += 1;
                    let is_met = best / added >= goal;
                    missed += usize::from(!is_met);
                    let word = if is_met { "met" } else { "MISSED" };
                    format!("{:7.1} x cheaper, goal {goal} x {word}", best / added)
                }
                (Some(_), None) => "peer absent".to_owned(),
                _ => String::new(),
            };
            println!("  {:26} {added:9.0} ns added {verdict}", row.name);
        }
    }
    Ok((goals, missed))
}
