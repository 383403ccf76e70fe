//! Sequences of operations of `gaudi_device` under plans of faults, with every invariant.

use std::cell::RefCell;

use gaudi_faults::{Case, DEVICE, Kind, Op, Where, World};
use gaudi_seam::fault::Plan;

/// The longest sequence.
const MOST: usize = 60;

/// Each kind of operation that the generator of `gaudi faults` uses, in the order of its cases.
fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (_, op) in (0..100).flat_map(|number| Case::generate(0, number).ops) {
        if !kinds.contains(&op.kind) {
            kinds.push(op.kind);
        }
    }
    kinds
}

/// The input is the number of rules, 2 bytes for each that choose among generated rules, and 7
/// bytes for each operation: its kind and its three numbers.
pub(crate) fn operations(bytes: &[u8]) {
    thread_local! {
        static WORLD: RefCell<(World, Vec<Kind>)> = RefCell::new((
            World::new(&DEVICE.parse().expect("a spec")).expect("a mock"),
            kinds(),
        ));
    }
    let Some((&count, bytes)) = bytes.split_first() else {
        return;
    };
    let (rules, ops) = bytes.split_at((usize::from(count % 4) * 2).min(bytes.len()));
    let rules = rules.chunks_exact(2).filter_map(|word| {
        let number = u64::from(u16::from_le_bytes([word[0], word[1]]));
        Case::generate(1, number).plan.rules.first().copied()
    });
    let plan = Plan {
        rules: rules.collect(),
    };
    WORLD.with_borrow_mut(|(world, kinds)| {
        let op = |bytes: &[u8]| {
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            Op {
                kind: kinds[usize::from(bytes[0]) % kinds.len()],
                a: word(1),
                b: word(3),
                c: word(5),
            }
        };
        let case = Case {
            seed: 0,
            number: u64::from(count >> 7),
            place: Where::Memory,
            plan,
            ops: ops.chunks_exact(7).take(MOST).map(op).enumerate().collect(),
        };
        let outcome = case.run(world).expect("a world runs a case");
        assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
    });
}
