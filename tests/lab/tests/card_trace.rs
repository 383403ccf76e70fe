//! Programs on the real driver of a modelled Gaudi2, traced by eBPF and by ptrace(2); and a session
//! that must match its recording in the repository.
//!
//! One test at a time, in the order of their names.

mod cases;
mod first_card;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use gaudi_lab::{card, kernel, run, say, skips_twice, skips_unnamed};
use gaudi_seam::DeviceSpec;
use nix::sys::signal::{SigSet, Signal};

use first_card::{open, spec, wait_until_free};

/// The session's recordings: the kernel, and the capture as text.
const RECORDINGS: [((u32, u32), &str); 2] = [
    (
        (6, 12),
        include_str!("../../conformance/fixtures/driver-6.12.txt"),
    ),
    ((7, 3), include_str!("../../conformance/fixtures/driver-7.3.txt")),
];

/// Loads the driver with its own timeout of 30 s: cases that fill queues take seconds below a
/// tracer.
fn load_with_own_timeout() {
    drop(open());
    wait_until_free(&spec());
    card::unload();
    card::load(&[]);
    wait_until_free(&spec());
}

/// Runs a program below a tracing method. It succeeds; the tracer counts at least so many ioctls,
/// and so many lost events in a thousand at most.
fn passes_below(backend: &str, program: &[&str], least: u64, most_lost: u64) {
    let start = Instant::now();
    let mut command = Command::new("gaudi");
    command.args(["record", "--backend", backend]);
    command.args(["--output", "/tmp/check.gcap", "--"]).args(program);
    // The harness's line of this test is not to be continued by the program's.
    let output = "/tmp/check.txt";
    command.stdout(File::create(output).expect("a file"));
    let mut command = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut notes = String::new();
    // Said as they come: the lab ends a guest that is silent for minutes.
    for line in BufReader::new(command.stderr.take().expect("a pipe")).lines() {
        let line = line.expect("a line");
        say(&line);
        notes += &format!("{line}\n");
    }
    let status = command.wait().expect("it ends");
    say(&format!(
        "below {backend}: {:.0} s",
        start.elapsed().as_secs_f64()
    ));
    let text = std::fs::read_to_string(output).expect("UTF-8");
    assert!(status.success(), "{status}: {text}{notes}");
    let number = |word: &str| -> u64 {
        let before = notes.split(word).next().and_then(|text| text.rsplit(' ').next());
        let number = before.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("a number before {word:?}: {notes}"))
    };
    let (ioctls, lost) = (number(" ioctls;"), number(" lost"));
    assert!(ioctls >= least && lost <= ioctls * most_lost / 1000, "{notes}");
    wait_until_free(&spec());
}

/// Lost events in a thousand. The kernel counts skipped programs for all processes, so the count is
/// far above the loss on a busy machine; what is lost is missing from the ioctls.
const MOST_LOST_BY_EBPF: u64 = 50;

/// The cases that neither reset nor reopen, and the mock's answers to them.
const CHECK: [&str; 6] = ["gaudi", "check", "--device", "kernel:0", "--timeout", "1500"];
/// The ioctls of [`CHECK`] are 11 975, and some more where a wait is repeated.
const LEAST_OF_CHECK: u64 = 11_940;
/// The ioctls of all cases are at least 7143.
const LEAST_OF_ALL: u64 = 7_120;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cases_pass_below_ebpf() {
    if !skips_twice("cases_pass_below_ebpf") {
        load_with_own_timeout();
        passes_below("bpf", &CHECK, LEAST_OF_CHECK, MOST_LOST_BY_EBPF);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cases_pass_below_ptrace() {
    if !skips_twice("cases_pass_below_ptrace") {
        load_with_own_timeout();
        passes_below("ptrace", &CHECK, LEAST_OF_CHECK, 0);
    }
}

/// Every case, those that reset or reopen the card too, in this program.
fn all_pass_below(backend: &str, most_lost: u64) {
    let this = std::env::current_exe().expect("a path");
    let this = this.to_str().expect("UTF-8");
    let program = [this, "--ignored", "--exact", "--nocapture", "traced_cases"];
    load_with_own_timeout();
    passes_below(backend, &program, LEAST_OF_ALL, most_lost);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn all_cases_pass_below_ebpf() {
    if !skips_unnamed("all_cases_pass_below_ebpf") {
        all_pass_below("bpf", MOST_LOST_BY_EBPF);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn all_cases_pass_below_ptrace() {
    if !skips_unnamed("all_cases_pass_below_ptrace") {
        all_pass_below("ptrace", 0);
    }
}

/// What [`all_pass_below`] traces.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn traced_cases() {
    if skips_unnamed("traced_cases") {
        return;
    }
    // A traced thread is woken by signals that it ignores (kernel/signal.c:sig_ignored), unless it
    // blocks them. The driver kills a case's opener in the middle of a wait, which would then fail
    // with EINTR.
    let children = SigSet::from(Signal::SIGCHLD);
    children.thread_block().expect("a signal is blocked");
    cases::conformance("all", |_| true);
}

/// The driver answers as in the recording: addresses and handles up to renaming, queries by their
/// success. The fresh recording replays to the same answers.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn session_matches_its_recording() {
    drop(open());
    wait_until_free(&spec());
    let (golden, fresh) = ("/tmp/golden.txt", "/tmp/session.gcap");
    let session = |spec: String| {
        let spec: DeviceSpec = spec.parse().expect("a spec");
        let io = gaudi_hal::open(&spec).expect("the device opens");
        gaudi_conformance::session(&io).expect("the session runs")
    };
    let recorded = session(format!("kernel:0+record={fresh},data"));
    assert_eq!(session(format!("replay:{fresh}")), recorded);
    let text = RECORDINGS.into_iter().find(|(of, _)| *of == kernel());
    let (_, text) = text.unwrap_or_else(|| panic!("no recording of Linux {:?}", kernel()));
    std::fs::write(golden, text).expect("it is written");
    let compared = run(&["gaudi", "diff", golden, fresh]);
    let difference = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert!(compared.status.success(), "{difference}");
    wait_until_free(&spec());
}
