//! Every case on the mock, as a test of its own: `cargo test -p gaudi-copy-conformance`. Output and
//! arguments are libtest's.

use std::process::ExitCode;

use gaudi_copy::DeviceSpec;
use gaudi_copy_conformance::{Fixture, Outcome, cases, run_case};
use gaudi_harness::{Arguments, Session};

fn spec(name: &str, index: u32) -> DeviceSpec {
    let text = format!("mock:gaudi2?name={name}&index={index}");
    text.parse().expect("a spec")
}

fn main() -> ExitCode {
    let tests = cases::all().map(|case| (case.id.to_owned(), case));
    let note = "every case has two mocks of its own";
    let Some((mut session, tests)) = Session::begin(&Arguments::read(), tests, note) else {
        return ExitCode::SUCCESS;
    };
    for (name, case) in tests {
        let fixture = Fixture {
            spec: spec("copy", 0),
            second: Some(spec("copy", 1)),
            cpu_export: true,
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
        session.record(&name, &outcome, took);
    }
    session.finish(note)
}
