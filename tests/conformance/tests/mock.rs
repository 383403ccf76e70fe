//! Runs every case on the mock as a separate test: `cargo test -p gaudi-conformance`.
//!
//! Seven runs: the default order of execution; the stepped order under a printed seed
//! (`GAUDI_TEST_SEED` replays it); cases that depend on time on the machine's clock; the kernel
//! backend over the mock, by the bytes of every ioctl; a mock with private memory that restarts
//! before each case; a run that is recorded; and its replay.
//!
//! The output and the arguments are those of libtest: filters, `--exact`, `--skip`, `--list`.

use std::process::ExitCode;
use std::time::Duration;

use gaudi_conformance::cases::all;
use gaudi_conformance::{Case, Outcome, Row, Tag, run, run_over_bytes, run_restarted};
use gaudi_harness::{Arguments, Session};

/// The run on the kernel backend.
const BYTES: &str = "bytes";
/// The run on a mock that restarts.
const RESTARTED: &str = "restarted";

struct Run {
    name: &'static str,
    device: String,
    takes: fn(&Case) -> bool,
}

/// The cases that a replay cannot answer as the mock did.
const NOT_REPLAYED: [&str; 3] = [
    // An export of a replay reads as zeros.
    "export.shows-device-memory",
    // Two threads race: the number of their waits differs between two runs.
    "wait.from-another-thread",
    "wait.interrupt.from-another-thread",
];

fn is_replayed(case: &Case) -> bool {
    !NOT_REPLAYED.contains(&case.id)
}

/// Whether a case needs memory that other processes can map: exports, and blocks of registers.
fn needs_file(case: &Case) -> bool {
    const OTHERS: [&str; 4] = [
        "open.reset-waits-for-an-export",
        "open.while-export-holds-device",
        "open.while-duplicate-of-export-lives",
        "block.mmap.memory",
    ];
    case.id.starts_with("export.") || OTHERS.contains(&case.id)
}

fn main() -> ExitCode {
    let seed = gaudi_random::seed();
    let runs = [
        Run {
            name: "running",
            device: "mock:gaudi2?clock=virtual&name=running".to_owned(),
            takes: |_| true,
        },
        Run {
            name: "stepped",
            device: format!("mock:gaudi2?clock=virtual&order=stepped&seed={seed}&name=stepped"),
            takes: |_| true,
        },
        Run {
            name: "monotonic",
            device: "mock:gaudi2?clock=monotonic&name=monotonic".to_owned(),
            takes: |case| case.has(Tag::Clock),
        },
        Run {
            name: BYTES,
            device: "mock:gaudi2?clock=virtual&name=bytes".to_owned(),
            takes: |_| true,
        },
        Run {
            name: RESTARTED,
            device: "mock:gaudi2?clock=virtual&name=restarted".to_owned(),
            takes: |case| !needs_file(case),
        },
    ];
    let folder = tempfile::tempdir().expect("a folder for the recording");
    let file = folder.path().join("cases.gcap");
    let file = file.display();
    let runs = runs.into_iter().chain([
        Run {
            name: "recorded",
            device: format!("mock:gaudi2?clock=virtual&name=recorded+record={file},data"),
            takes: is_replayed,
        },
        Run {
            name: "replayed",
            device: format!("replay:{file}"),
            takes: is_replayed,
        },
    ]);
    let runs: Vec<Run> = runs.collect();
    let tests = runs.iter().flat_map(|run| {
        let taken = all().filter(|case| (run.takes)(case));
        taken.map(move |case| (format!("{}::{}", run.name, case.id), (run.name, case)))
    });
    let note = format!(
        "seed={seed} rev={} (GAUDI_TEST_SEED={seed} cargo test -p gaudi-conformance)",
        env!("CARGO_PKG_VERSION")
    );
    let Some((mut session, tests)) = Session::begin(&Arguments::read(), tests, &note) else {
        return ExitCode::SUCCESS;
    };
    for each in &runs {
        let mine = tests.iter().filter(|(_, (name, _))| *name == each.name);
        let cases: Vec<&'static Case> = mine.map(|(_, (_, case))| *case).collect();
        let print = |row: &Row| {
            let name = format!("{}::{}", each.name, row.id);
            match &row.outcome {
                Outcome::Failed(failure) => {
                    session.fail(
                        &name,
                        &format!("{failure}\ndecided at {} of the driver", row.source),
                    );
                }
                outcome => session.record(&name, outcome, Duration::ZERO),
            }
        };
        let opened = match each.device.parse() {
            Ok(spec) if each.name == BYTES => run_over_bytes(&spec, cases, print).map(drop),
            Ok(spec) if each.name == RESTARTED => run_restarted(&spec, cases, print).map(drop),
            Ok(spec) => run(&spec, cases, print).map(drop),
            Err(error) => panic!("{}: {error}", each.device),
        };
        if let Err(error) = opened {
            session.fail(each.name, &format!("{} does not open: {error}", each.device));
        }
    }
    session.finish(&note)
}
