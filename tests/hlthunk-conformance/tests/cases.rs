//! Runs each case as a separate test: on the mock, or on the driver in a guest of the lab.
//!
//! Output and arguments are those of libtest: filters, `--exact`, `--skip`, `--list`.
//! `GAUDI_DEVICE` selects another mock, `GAUDI_HLTHUNK_LIBRARY` another library.

#![expect(unsafe_code, reason = "sets the environment variable that selects the device")]

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use gaudi_harness::{Arguments, Session, Watch};
use gaudi_hlthunk_conformance::bench::DEVICE;
use gaudi_hlthunk_conformance::{Bench, Library, Outcome, cases, run, serve_child};

/// A mock with real time, as a program gets it through the variable.
const MOCK: &str = "mock:gaudi2?name=hlthunk";
/// The deadline of a case: ten times what the slowest takes on two cores, and that of the case
/// that resets the card for each function.
const CASE_LIMIT: Duration = Duration::from_secs(600);
const EVERY_CALL: (&str, Duration) = (
    "process.kill-inside-every-call-leaves-nothing",
    Duration::from_secs(1700),
);

/// Selects the mock, unless this is a guest with the driver.
fn select() {
    let in_guest = env::var_os("GAUDI_LAB_MACHINE").is_some_and(|machine| !machine.is_empty());
    if !in_guest && env::var_os(DEVICE).is_none() {
        // SAFETY: this process has one thread.
        unsafe { env::set_var(DEVICE, MOCK) };
    }
}

/// Loads the driver in a guest.
fn load_driver() {
    if env::var_os(DEVICE).is_some() {
        return;
    }
    let loaded = std::process::Command::new("lab-card")
        .arg("timeout_locked=5")
        .status();
    assert!(
        loaded.is_ok_and(|status| status.success()),
        "the driver is loaded"
    );
}

fn main() -> ExitCode {
    select();
    serve_child();
    let tests = cases::all().map(|case| (case.id.to_owned(), case));
    let note = "(cargo test -p gaudi-hlthunk-conformance)";
    let Some((mut session, tests)) = Session::begin(&Arguments::read(), tests, note) else {
        return ExitCode::SUCCESS;
    };
    load_driver();
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => {
            session.fail("library", &error);
            return session.finish(note);
        }
    };
    let mut bench = Bench::new(library);
    let watch = Watch::in_guest();
    for (name, case) in tests {
        let limit = if name == EVERY_CALL.0 {
            EVERY_CALL.1
        } else {
            CASE_LIMIT
        };
        watch.begin(&name, limit);
        let (outcome, took) = run(&mut bench, case);
        match outcome {
            Outcome::Failed(failure) => {
                session.fail(&name, &format!("{failure}\ndecided at {}", case.source));
            }
            outcome => session.record(&name, &outcome, took),
        }
    }
    watch.end();
    session.finish(note)
}
