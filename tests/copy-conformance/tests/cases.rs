//! Every case as a test of its own, on the mock, or on the driver in a guest of the lab that has a
//! card: `cargo test -p gaudi-copy-conformance`. Output and arguments are libtest's.

use std::process::{Command, ExitCode};
use std::time::Duration;

use gaudi_copy::{Config, DeviceSpec, MemoryDomain};
use gaudi_copy_conformance::{Case, Fixture, Need, Outcome, cases, run_case};
use gaudi_harness::{Arguments, Session, Watch};

/// The deadline of a case in a guest: ten times what the slowest takes on two cores.
const LIMIT: Duration = Duration::from_secs(120);
const NOTE: &str = "(cargo test -p gaudi-copy-conformance)";

fn mock(index: u32) -> DeviceSpec {
    let text = format!("mock:gaudi2?name=copy&index={index}");
    text.parse().expect("a spec")
}

/// Runs a case on two mocks of its own.
fn run_on_mock(case: &Case) -> (Outcome, Duration) {
    let fixture = Fixture {
        spec: mock(0),
        second: Some(mock(1)),
        cpu_export: true,
        open: None,
    };
    let (mut outcome, took) = run_case(case, &fixture);
    for spec in [Some(&fixture.spec), fixture.second.as_ref()]
        .into_iter()
        .flatten()
    {
        if let (Outcome::Passed, Some(left)) = (&outcome, gaudi_hal::mock_ledger(spec)) {
            if left != gaudi_hal::Ledger::default() {
                outcome = Outcome::Failed(format!("the mock of {spec} still has {left:?}"));
            }
        }
    }
    (outcome, took)
}

/// The driver's card. It stays open between cases: a close resets it.
struct Driver {
    fixture: Fixture,
}

impl Driver {
    fn load() -> Self {
        let loaded = Command::new("lab-card").status();
        assert!(
            loaded.is_ok_and(|status| status.success()),
            "the driver is loaded"
        );
        let fixture = Fixture {
            spec: "kernel:0".parse().expect("a spec"),
            second: None,
            cpu_export: false,
            open: None,
        };
        Self { fixture }
    }

    fn run(&mut self, case: &Case) -> (Outcome, Duration) {
        if case.has(Need::Closed) {
            self.fixture.open = None;
        } else if self.fixture.open.is_none() {
            let domain = MemoryDomain::with_config(&self.fixture.spec, Config::default());
            match domain.device() {
                Ok(_) => self.fixture.open = Some(domain),
                Err(error) => {
                    let outcome = Outcome::Failed(format!("the card does not open: {error}"));
                    return (outcome, Duration::ZERO);
                }
            }
        }
        run_case(case, &self.fixture)
    }
}

fn main() -> ExitCode {
    let tests = cases::all().map(|case| (case.id.to_owned(), case));
    let Some((mut session, tests)) = Session::begin(&Arguments::read(), tests, NOTE) else {
        return ExitCode::SUCCESS;
    };
    let machine = std::env::var("GAUDI_LAB_MACHINE").unwrap_or_default();
    let mut driver = (!machine.is_empty()).then(Driver::load);
    // Each thread of a watch is one more that a forked child lacks: only the guest has it.
    let watch = Watch::in_guest();
    for (name, case) in tests {
        watch.begin(&name, LIMIT);
        let (outcome, took) = match &mut driver {
            Some(driver) => driver.run(case),
            None => run_on_mock(case),
        };
        session.record(&name, &outcome, took);
    }
    watch.end();
    session.finish(NOTE)
}
