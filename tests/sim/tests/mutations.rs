//! Tests the checks: the runner must detect every mutation.
// One test: descriptors and address space are counted for the whole process.

use gaudi_sim::Mutation;
use gaudi_sim::case::Case;
use gaudi_sim::run::Runner;
use gaudi_sim::shrink::shrink;

/// The number of cases within which a defect must be detected.
const MOST: u64 = 1500;

#[test]
fn every_mutation_is_detected_and_reduced() {
    // Some defects make the stack panic, which the runner reports as a violation.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for &mutation in Mutation::ALL {
        let mut runner = Runner::new(Some(mutation)).expect("a runner");
        let caught = (0..MOST).find_map(|at| {
            let case = Case::generate(7, at);
            let violations = runner.run(&case);
            (!violations.is_empty()).then_some((at, case, violations))
        });
        let Some((at, case, violations)) = caught else {
            missed.push(format!("{}: not detected in {MOST} cases", mutation.name()));
            continue;
        };
        println!("{}: case {at}: {}", mutation.name(), violations[0]);
        let Some(small) = shrink(&mut runner, &case) else {
            missed.push(format!("{}: case {at} does not fail again", mutation.name()));
            continue;
        };
        println!("    {} of {} operations left", small.kept.len(), case.ops.len());
        if runner.run(&small.case).is_empty() {
            missed.push(format!("{}: the reduced case does not fail", mutation.name()));
        }
        // The same case passes without the mutation.
        let mut sound = Runner::new(None).expect("a runner");
        let violations = sound.run(&small.case);
        if !violations.is_empty() {
            missed.push(format!(
                "{}: its case fails without the mutation: {violations:?}",
                mutation.name()
            ));
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "{missed:#?}");
}
