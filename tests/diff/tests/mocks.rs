//! Tests the comparison with mocks: equal mocks do not differ, and a fault is detected and reduced.

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
fn equal_mocks_do_not_differ() {
    let (seed, cases) = (gaudi_random::seed(), gaudi_random::cases(12));
    println!("seed={seed} cases={cases}");
    let report = differ(
        "mock:gaudi2?name=one",
        "mock:gaudi2?name=other",
        u64::from(cases),
        seed,
    );
    assert_eq!(
        report.differences(),
        0,
        "two equal mocks differ: see the report above"
    );
    assert!(
        report.operations() >= u64::from(cases) * 200,
        "every generated operation was performed"
    );
}

#[test]
fn injected_fault_is_detected_and_reduced() {
    // (fault of one side, maximum number of operations in the reduced case)
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
        assert!(report.differences() > 0, "{fault}: no difference was detected");
        let smallest = report.smallest().unwrap_or(usize::MAX);
        assert!(
            smallest <= most,
            "{fault}: expected at most {most} operations in the reduced case, saw {smallest}"
        );
    }
}

#[test]
fn different_answer_fields_are_detected() {
    let report = differ(
        "mock:gaudi2?name=large",
        "mock:gaudi2?name=small&dram=7680MiB",
        3,
        5,
    );
    assert!(
        report.differences() > 0,
        "different sizes of device memory were not detected"
    );
}
