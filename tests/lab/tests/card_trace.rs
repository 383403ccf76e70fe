//! Programs on the real driver of a modelled Gaudi2, traced by eBPF and by ptrace(2); and a session
//! that must match its recording in the repository.
//!
//! One test at a time, in the order of their names.

mod first_card;

use gaudi_lab::{card, kernel, run, say, skip};
use gaudi_seam::DeviceSpec;

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

/// Runs the cases that neither reset nor reopen below a tracing method, and starts none after
/// `seconds`: they pass with at least `least` ioctls, and at most `max_lost` events in a thousand
/// are lost and counted.
fn check_below(backend: &str, seconds: u32, least: u64, max_lost: u64) {
    let seconds = seconds.to_string();
    let report = run(&[
        "gaudi",
        "record",
        "--backend",
        backend,
        "--output",
        "/tmp/check.gcap",
        "--",
        "gaudi",
        "check",
        "--device",
        "kernel:0",
        "--timeout",
        &seconds,
    ]);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let notes = String::from_utf8_lossy(&report.stderr).into_owned();
    // Without the cases that the time did not reach: the counts are in the last lines.
    let counts = text.lines().count().saturating_sub(3);
    text.lines().skip(counts).chain(notes.lines()).for_each(say);
    assert!(report.status.success(), "{text}{notes}");
    let number = |word: &str| -> u64 {
        let before = notes.split(word).next().and_then(|text| text.rsplit(' ').next());
        let number = before.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("a number before {word:?}: {notes}"))
    };
    let (ioctls, lost) = (number(" ioctls;"), number(" lost"));
    assert!(ioctls >= least, "{notes}");
    assert!(lost <= ioctls * max_lost / 1000, "{notes}");
    wait_until_free(&spec());
}

/// The first cases: all of them take minutes, and run by name.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cases_pass_below_both_for_seconds() {
    load_with_own_timeout();
    check_below("bpf", 20, 200, 10);
    check_below("ptrace", 20, 200, 0);
}

/// Whether the test is skipped: its name was not asked for. It takes minutes.
fn is_skipped(test: &str) -> bool {
    let need = format!("minutes, by name: cargo xtask lab test --kernel 7.3 -p gaudi-lab -- {test}");
    !std::env::args().any(|word| word == test) && skip(test, &need)
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cases_pass_below_ebpf() {
    if !is_skipped("cases_pass_below_ebpf") {
        // The count of skipped programs includes other processes, and a slow guest's ring may fill.
        load_with_own_timeout();
        check_below("bpf", 1500, 3000, 5);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cases_pass_below_ptrace() {
    if !is_skipped("cases_pass_below_ptrace") {
        load_with_own_timeout();
        check_below("ptrace", 1500, 3000, 0);
    }
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
