//! The run is judged on the host: two mocks are the same, and one that is broken on purpose is found out and the case made small.

use std::fs;

use gaudi_diff::{Plan, Report, run};
use gaudi_seam::DeviceSpec;

fn differ(first: &str, second: &str, cases: u64, seed: u64) -> Report {
    let specs: [DeviceSpec; 2] = [first, second].map(|spec| spec.parse().expect("a spec"));
    let plan = Plan {
        seed,
        first: 0,
        cases,
        ops: 200,
    };
    let report = run(&plan, [&specs[0], &specs[1]], |_| {}).expect("both open");
    println!("{report}");
    report
}

#[test]
fn two_mocks_are_the_same() {
    let (seed, cases) = (gaudi_random::seed(), gaudi_random::cases(12));
    println!("seed={seed} cases={cases}");
    let report = differ(
        "mock:gaudi2?name=one",
        "mock:gaudi2?name=other",
        u64::from(cases),
        seed,
    );
    assert_eq!(report.differences(), 0, "see above");
    assert!(report.operations() >= u64::from(cases) * 200, "all were asked");
}

#[test]
fn a_broken_one_is_found_out_and_the_case_made_small() {
    // (what one side does wrong, operations that show it at most)
    let broken = [
        ("mem_free:when=4+:error=EIO", 20),
        ("cb_info:when=5+:error=EPERM", 3),
        ("mem_unmap:when=3+:error=EBUSY", 20),
        ("export_dmabuf:when=2+:error=EFAULT", 20),
        ("mem_alloc:when=6+:error=ENOMEM", 20),
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (at, (fault, most)) in broken.into_iter().enumerate() {
        let file = folder.path().join(format!("plan-{at}"));
        fs::write(&file, fault).expect("a plan");
        let second = format!("mock:gaudi2?name=broken-{at}+fault={}", file.display());
        let report = differ(&format!("mock:gaudi2?name=sound-{at}"), &second, 3, 5);
        assert!(report.differences() > 0, "{fault} is found out");
        let smallest = report.smallest().unwrap_or(usize::MAX);
        assert!(smallest <= most, "{fault}: {smallest} operations are left of 200");
    }
}

#[test]
fn what_only_an_answer_shows_is_found_out_too() {
    let report = differ(
        "mock:gaudi2?name=large",
        "mock:gaudi2?name=small&dram=7680MiB",
        3,
        5,
    );
    assert!(
        report.differences() > 0,
        "a card with less memory is another card"
    );
}
