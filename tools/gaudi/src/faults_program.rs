//! `gaudi faults run --seeds A..B -- CMD`: a program on a mock under one random plan for each seed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gaudi::faults::{Case, EXIT_REPORT_VARIABLE, ExitReport, OpenMock};
use gaudi::{DeviceSpec, Error, ErrorKind, LayerSpec};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg, raise};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::exit;
use crate::output::Output;
use crate::report::{Column, columns, object, records};
use crate::trace::Watch;

/// The time between two checks of a program.
const PAUSE: Duration = Duration::from_millis(5);

/// How a program ended under a plan.
struct Ended {
    seed: u64,
    plan: String,
    how: How,
    took: Duration,
    /// What the processes of the program had not released at their exit; none if no process
    /// reported it: it opened no mock, or was killed.
    left: Vec<ExitReport>,
}

enum How {
    Exited(i32),
    Killed(i32),
    Hung,
}

impl Ended {
    /// Whether the program crashed, did not end, or released less than it should.
    fn is_bad(&self) -> bool {
        !matches!(self.how, How::Exited(_)) || self.leaks().is_some()
    }

    /// What the program leaked, in words.
    fn leaks(&self) -> Option<String> {
        let sum = |count: fn(&ExitReport) -> u64| self.left.iter().map(count).sum::<u64>();
        let open = |count: fn(&OpenMock) -> u64| {
            let mocks = self.left.iter().flat_map(|report| &report.open);
            mocks.map(count).sum::<u64>()
        };
        let parts = [
            (sum(|report| report.open.len() as u64), "open devices"),
            (open(|mock| mock.dram_bytes), "bytes of device memory"),
            (open(|mock| mock.mappings as u64), "device mappings"),
            (open(|mock| mock.command_buffers as u64), "command buffers"),
            (open(|mock| mock.in_flight as u64), "submissions in flight"),
            (open(|mock| mock.exported.into()), "exports"),
            (sum(|report| report.descriptors as u64), "descriptors"),
            (sum(|report| report.mapped as u64), "mappings"),
        ];
        let left = parts.iter().filter(|(count, _)| *count > 0);
        let words: Vec<_> = left.map(|(count, what)| format!("{count} {what}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn text(&self) -> String {
        match self.how {
            How::Exited(code) => format!("exit {code}"),
            How::Killed(number) => match Signal::try_from(number) {
                Ok(signal) => format!("{signal}"),
                Err(_) => format!("signal {number}"),
            },
            How::Hung => "no end in time".to_owned(),
        }
    }
}

const COLUMNS: &[Column<Ended>] = &columns! { Ended:
    number "seed" "seed" |ended| ended.seed;
    text "ended" "ended" |ended| ended.text();
    text "is_bad" "" |ended| ended.is_bad();
    text "leaks" "leaks" |ended| ended.leaks();
    text "seconds" "" |ended| ended.took.as_secs_f64();
    text "plan" "plan" |ended| ended.plan;
};

/// Parses `A..B`: the seeds from A to the one before B.
pub(crate) fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parse = |text: &str| text.parse::<u64>().ok();
    let ends = text.split_once("..").and_then(|(a, b)| parse(a).zip(parse(b)));
    match ends {
        Some((first, end)) if first < end => Ok(first..end),
        _ => Err("wanted A..B, with A below B".to_owned()),
    }
}

pub(crate) fn run(
    words: &[OsString],
    seeds: Range<u64>,
    timeout: Duration,
    output: &mut Output,
) -> Result<u8> {
    let mut all = Vec::new();
    let watch = Watch::begin(None)?;
    for seed in seeds {
        all.push(run_one(words, seed, timeout, &watch)?);
        if watch.is_interrupted() {
            drop(watch);
            raise(Signal::SIGINT)?;
            bail!("interrupted");
        }
    }
    drop(watch);
    let bad = all.iter().filter(|ended| ended.is_bad()).count();
    let reported = all.iter().filter(|ended| !ended.left.is_empty()).count();
    if output.is_json() {
        let document = object! {
            backend: "mock",
            bad: bad,
            reported: reported,
            runs: records(COLUMNS, &all),
        };
        output.document("gaudi.faults.program", &document)?;
    } else {
        output.rows(COLUMNS, &all)?;
        output.line(format!(
            "{bad} of {} runs on a mock crashed, did not end or leaked; {reported} reported their leaks",
            all.len()
        ))?;
    }
    if bad == 0 && reported == 0 {
        return exit::judged(false, Ok(()), || {
            Error::new(ErrorKind::InvalidInput, "faults")
                .because("no run opened the mock of GAUDI_DEVICE and reported its leaks: nothing was tested")
                .helped_by("open the device of the environment, and end by exit(3) or a return from main")
        });
    }
    exit::judged(bad == 0, Ok(()), || {
        Error::new(ErrorKind::Corrupt, "faults")
            .because(format!("{bad} runs crashed, did not end or leaked"))
            .helped_by("repeat one: gaudi faults run --seeds SEED..SEED+1 -- CMD")
    })
}

fn run_one(words: &[OsString], seed: u64, timeout: Duration, watch: &Watch) -> Result<Ended> {
    let plan = Case::generate(seed, 0).plan.to_string();
    let mut report = File::from(memfd_create(c"exit reports", MFdFlags::MFD_CLOEXEC)?);
    // The processes of the program open the same file while this one has it open.
    let path = format!("/proc/{}/fd/{}", std::process::id(), report.as_raw_fd());
    let (program, arguments) = words.split_first().context("no program is named")?;
    let begin = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .env("GAUDI_DEVICE", device(seed, &plan)?.to_string())
        .env_remove("GAUDI_FAULT")
        .env(EXIT_REPORT_VARIABLE, path)
        .stdin(Stdio::null())
        // The result is this program's alone.
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", Path::new(program).display()))?;
    let how = match wait(&mut child, begin + timeout, watch)? {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => How::Exited(code),
            (None, signal) => How::Killed(signal.unwrap_or(0)),
        },
        None => How::Hung,
    };
    Ok(Ended {
        seed,
        plan,
        how,
        took: begin.elapsed(),
        left: reports(&mut report)?,
    })
}

/// The mock of a seed, with the plan as a layer: every program that opens `GAUDI_DEVICE` has it.
fn device(seed: u64, plan: &str) -> Result<DeviceSpec> {
    let mut spec: DeviceSpec = format!("mock?seed={seed}").parse()?;
    if !plan.is_empty() {
        spec.layers.push(LayerSpec {
            name: "fault".to_owned(),
            argument: Some(plan.to_owned()),
        });
    }
    Ok(spec)
}

/// Reads what processes appended at their exit.
fn reports(file: &mut File) -> Result<Vec<ExitReport>> {
    /// The most bytes that are read: any program can append.
    const MOST: u64 = 1 << 20;
    file.rewind().context("the report of the mocks")?;
    let lines = BufReader::new(file.take(MOST)).split(b'\n').map_while(Result::ok);
    // A line that a killed process wrote in part, or that the program wrote, is no report.
    Ok(lines
        .filter_map(|line| serde_json::from_slice(&line).ok())
        .collect())
}

/// Waits for a program's end, the deadline or a SIGINT. Kills what is left of the program, also the
/// processes that it started.
fn wait(child: &mut Child, deadline: Instant, watch: &Watch) -> Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(i32::try_from(child.id()).context("the program's process")?);
    // Until a process is awaited, the kernel gives its number to no other process or group.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let has_ended = || Ok::<_, nix::Error>(waitid(Id::Pid(pid), flags)? != WaitStatus::StillAlive);
    while !has_ended().context("waiting for the program")? {
        if Instant::now() >= deadline || watch.is_interrupted() {
            end(child, pid)?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
    end(child, pid).map(Some)
}

/// Kills a program's group, and awaits the program.
fn end(child: &mut Child, group: Pid) -> Result<ExitStatus> {
    killpg(group, Signal::SIGKILL).context("cannot kill the processes of the program")?;
    child.wait().context("waiting for the program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(seeds("3..5"), Ok(3..5));
        for wrong in ["3", "5..3", "3..3", "a..b", "..", "3..=5"] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn crash_and_hang_are_told_apart() {
        let watch = Watch::begin(None).expect("SIGINT has a handler");
        let ended = |script: &str, timeout| {
            let words = ["sh", "-c", script].map(OsString::from);
            run_one(&words, 1, timeout, &watch).expect("it starts")
        };
        let long = Duration::from_secs(60);
        assert_eq!(ended("exit 3", long).text(), "exit 3");
        let crashed = ended("kill -SEGV $$", long);
        assert!(
            crashed.is_bad() && crashed.text() == "SIGSEGV",
            "{}",
            crashed.text()
        );
        assert!(ended("test -n \"$GAUDI_FAULT$GAUDI_DEVICE\"", long).text() == "exit 0");
        assert_eq!(
            ended("sleep 600", Duration::from_millis(50)).text(),
            "no end in time"
        );
    }
}
