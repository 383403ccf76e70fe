//! Random call sequences on the mock, in a child process, so that a crash kills only the child.
//!
//! `GAUDI_TEST_CASES` sets the number of calls, `GAUDI_TEST_SEED` replays a run.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use gaudi_hlthunk_conformance::{Library, random};

const CHILD: &str = "GAUDI_HLTHUNK_RANDOM";
/// Number of calls if the variable is not set.
const CALLS: u32 = 2000;

fn child(seed: u64, calls: u64) -> Result<(), String> {
    let mut output = std::io::stdout();
    random::run(Library::load()?, seed, calls, |case| {
        // Write to the descriptor, because libtest captures the output of macros.
        writeln!(output, "sequence {case}").expect("the parent reads");
    })
}

#[test]
fn random_calls_neither_crash_nor_leak() {
    let (seed, calls) = (gaudi_random::seed(), u64::from(gaudi_random::cases(CALLS)));
    if env::var_os(CHILD).is_some() {
        child(seed, calls).expect("no sequence fails");
        return;
    }
    let replay = format!("GAUDI_TEST_SEED={seed} GAUDI_TEST_CASES={calls}");
    println!(
        "seed={seed} rev={} ({replay} replays it)",
        env!("CARGO_PKG_VERSION")
    );
    let own = env::current_exe().expect("this program");
    let mut running = Command::new(own)
        .args(["--exact", "random_calls_neither_crash_nor_leak", "--nocapture"])
        .env(CHILD, "1")
        .env("GAUDI_DEVICE", "mock:gaudi2?name=random")
        .env(gaudi_random::SEED_VARIABLE, seed.to_string())
        .env(gaudi_random::CASES_VARIABLE, calls.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let output = running.stdout.take().expect("a pipe");
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let last = lines.filter(|line| line.starts_with("sequence ")).last();
    let status = running.wait().expect("the child ends");
    assert!(status.success(), "{status} in {last:?}; {replay} replays it");
}
