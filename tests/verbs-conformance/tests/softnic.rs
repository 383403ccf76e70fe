//! Every case on the software NIC, as a test of its own: `cargo test -p gaudi-verbs-conformance`.
//!
//! Three runs: the plain NIC, one with a cable that loses, corrupts, duplicates and reorders frames
//! by a printed seed, and one with writes that become visible late. Output and arguments are
//! libtest's.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gaudi_dmabuf::DmaBuf;
use gaudi_harness::{Arguments, Session};
use gaudi_softnic::{SoftNic, SoftNicConfig, lossy_network};
use gaudi_sys::{Memfd, RawMapping, standin};
use gaudi_verbs::Context;
use gaudi_verbs_conformance::{Case, Dialect, DmaBufMemory, Feature, Fixture, cases, run_case};

fn memory(len: u64) -> gaudi_seam::Result<DmaBufMemory> {
    let memfd = Memfd::sparse(standin::MEMFD_NAME, len).expect("a memfd");
    let fd = standin::export(&memfd, standin::Window { offset: 0, len }).expect("a stand-in");
    Ok(DmaBufMemory {
        window: DmaBuf::from_fd(fd)?.whole()?,
        view: RawMapping::of_fd(&memfd, 0, len as usize).expect("a mapping"),
    })
}

/// Returns two fresh NICs, so that cases do not disturb each other.
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
    let seed = gaudi_random::seed();
    let base = SoftNicConfig::default();
    let runs = [
        Run {
            name: "plain",
            config: base.clone(),
            lacks: &[],
            takes: |_| true,
        },
        Run {
            name: "storm",
            config: SoftNicConfig {
                faults: lossy_network(1, seed),
                ..base.clone()
            },
            lacks: &[(Feature::Datagrams, "a lost datagram stays lost")],
            // Other topics time out on a peer that answers nothing, which lost answers would
            // disturb.
            takes: |case| {
                matches!(
                    case.group,
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
            takes: |case| !case.has(Feature::DmaBuf),
        },
    ];
    let tests = runs.iter().flat_map(|run| {
        let taken = cases::all().filter(|case| (run.takes)(case));
        taken.map(move |case| (format!("{}::{}", run.name, case.id), (run, case)))
    });
    let note = format!("seed={seed} ({}={seed} replays it)", gaudi_random::SEED_VARIABLE);
    let Some((mut session, tests)) = Session::begin(&Arguments::read(), tests, &note) else {
        return ExitCode::SUCCESS;
    };
    for (name, (run, case)) in tests {
        let mut config = run.config.clone();
        for rule in &mut config.faults.rules {
            // Each case has faults of its own.
            rule.schedule.seed ^= case.id.bytes().fold(0, |hash: u64, byte| {
                hash.wrapping_mul(0x0100_0193) ^ u64::from(byte)
            });
        }
        let mut fixture = fixture(run.name, config);
        for (feature, why) in run.lacks {
            fixture = fixture.lacking(*feature, *why);
        }
        let row = run_case(case, &fixture);
        session.record(&name, &row.outcome, Duration::from_micros(row.took_us as u64));
    }
    session.finish(&note)
}
