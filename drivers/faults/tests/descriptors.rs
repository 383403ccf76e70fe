//! Cases with real descriptors: exports of device memory.

use std::time::Instant;

use gaudi_faults::{Case, Coverage, DEVICE, Invariant, Stack, World};
use gaudi_seam::Operation;
use gaudi_seam::fault::Plan;

/// The cases of a run.
const CASES: u64 = 3000;

#[test]
fn stack_with_descriptors_breaks_no_invariant() {
    let mut stack = Stack::default();
    let mut coverage = Coverage::default();
    let begin = Instant::now();
    for number in 0..CASES {
        let case = Case::with_descriptors(1, number);
        let outcome = stack.run(&case).expect("the device opens");
        if let Some(violation) = outcome.violations.first() {
            let smallest = stack.reduce(case);
            panic!("seed 1 case {number}: {violation}\n{smallest}");
        }
        coverage.add(&outcome.met);
    }
    let rate = CASES as f64 * 60.0 / begin.elapsed().as_secs_f64();
    let of_exports =
        |pair: &gaudi_faults::Pair| pair.operation == Operation::ExportDmabuf && pair.never.is_none();
    let pairs: Vec<_> = coverage.pairs().into_iter().filter(of_exports).collect();
    let met = pairs
        .iter()
        .filter(|pair| pair.faults.iter().sum::<u64>() > 0)
        .count();
    println!(
        "{CASES} cases with descriptors, {met} of {} pairs of exports met, {rate:.0} a minute",
        pairs.len()
    );
    assert_eq!(met, pairs.len(), "{pairs:#?}");
}

/// The code keeps an export open after it has dropped the buffer.
#[test]
fn open_export_is_reported() {
    let spec = DEVICE.parse().expect("a spec");
    let mut world = World::with_descriptors(&spec).expect("made");
    let mut leaked = None;
    let outcome = world.run(&Plan::default(), 0, |device| {
        let buffer = device.alloc_exclusive(4096)?;
        leaked = Some(buffer.export(..)?);
        Ok(())
    });
    let broken = outcome.expect("the device opens").violations;
    assert!(
        broken
            .iter()
            .any(|violation| violation.invariant == Invariant::Descriptors),
        "{broken:?}"
    );
}
