//! Every case on the software NIC, as a test of its own: `cargo test -p gaudi-verbs-conformance`. Three runs: the NIC as it is, with
//! a cable that loses, damages, doubles and reorders frames by a seed that is printed, and with writes that become visible late.
//!
//! It prints what libtest prints and takes filters, `--exact`, `--skip` and `--list`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_dmabuf::DmaBuf;
use gaudi_softnic::{FaultRule, SoftNic, SoftNicConfig};
use gaudi_sys::{Memfd, RawMapping, standin};
use gaudi_verbs::Context;
use gaudi_verbs_conformance::{Case, Dialect, DmaBufMemory, Feature, Fixture, Outcome, cases, run_case};

fn memory(len: u64) -> gaudi_seam::Result<DmaBufMemory> {
    let memfd = Memfd::sparse(standin::MEMFD_NAME, len).expect("a memfd");
    let fd = standin::export(&memfd, standin::Window { offset: 0, len }).expect("a stand-in");
    Ok(DmaBufMemory {
        window: DmaBuf::from_fd(fd)?.whole()?,
        view: RawMapping::of_fd(&memfd, 0, len as usize).expect("a mapping"),
    })
}

/// Two fresh NICs: a case of one run is not to suffer from another's.
fn fixture(name: &str, config: SoftNicConfig) -> Fixture {
    let (a, b) = SoftNic::pair(config).expect("two NICs");
    let context = |nic: Arc<SoftNic>| Context::open(nic).expect("a context");
    Fixture::new(name, context(a), context(b), Dialect::Iba).with_dmabuf(memory)
}

struct Run {
    name: &'static str,
    config: SoftNicConfig,
    lacks: &'static [(Feature, &'static str)],
    takes: fn(&Case) -> bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let mut filters = Vec::new();
    let mut skips = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--skip" => skips.extend(words.next()),
            "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => _ = words.next(),
            flag if flag.starts_with('-') => {}
            _ => filters.push(word),
        }
    }
    let seed = gaudi_random::seed();
    let base = SoftNicConfig::default();
    let runs = [
        Run {
            name: "plain",
            config: base,
            lacks: &[],
            takes: |_| true,
        },
        Run {
            name: "storm",
            config: SoftNicConfig {
                fault: Some(FaultRule::Storm { seed, permille: 50 }),
                ..base
            },
            lacks: &[(Feature::Datagrams, "what is lost of datagrams stays lost")],
            // A peer that is to be given up in time is one that answers nothing, not one whose answers are lost.
            takes: |case| {
                matches!(
                    case.topic,
                    "operations" | "inline" | "atomics" | "shared receives" | "windows"
                )
            },
        },
        Run {
            name: "late",
            config: SoftNicConfig {
                late_writes: Some(seed),
                ..base
            },
            lacks: &[],
            takes: |case| case.needs.iter().all(|need| *need != Feature::DmaBuf),
        },
    ];
    let picked = |name: &str| {
        let matches = |filter: &&String| {
            if has("--exact") {
                name == filter.as_str()
            } else {
                name.contains(filter.as_str())
            }
        };
        !has("--ignored") && (filters.is_empty() || filters.iter().any(matches)) && !skips.iter().any(matches)
    };
    let mut tests = Vec::new();
    for run in &runs {
        for case in cases::all().filter(|case| (run.takes)(case)) {
            let name = format!("{}::{}", run.name, case.name);
            if picked(&name) {
                tests.push((name, run, case));
            }
        }
    }
    if has("--list") {
        for (name, ..) in &tests {
            println!("{name}: test");
        }
        println!("\n{} tests, 0 benchmarks", tests.len());
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", tests.len());
    println!("seed={seed} ({}={seed} replays it)", gaudi_random::SEED_VARIABLE);
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    let start = Instant::now();
    for (name, run, case) in tests {
        let mut fixture = fixture(run.name, run.config);
        for (feature, why) in run.lacks {
            fixture = fixture.lacking(*feature, *why);
        }
        let since = Instant::now();
        let row = run_case(case, &fixture);
        let slow = since.elapsed();
        match row.outcome {
            Outcome::Passed => {
                passed += 1;
                let note = if slow > Duration::from_secs(2) {
                    format!(" ({slow:.1?})")
                } else {
                    String::new()
                };
                println!("test {name} ... ok{note}");
            }
            Outcome::Unsupported(why) => {
                ignored += 1;
                println!("test {name} ... ignored, {why}");
            }
            Outcome::Failed(how) => {
                println!("test {name} ... FAILED");
                failures.push((name, how));
            }
        }
    }
    for (name, how) in &failures {
        println!("\n---- {name} ----\n{how}");
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        failures.len(),
        start.elapsed().as_secs_f64()
    );
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
