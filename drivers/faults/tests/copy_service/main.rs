//! The tutorial's example: a service with a bug, its property test, and the fixed service.

mod store;

use std::collections::BTreeMap;
use std::time::Instant;

use gaudi_device::{Device, Result};
use gaudi_faults::{DEVICE, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use store::{LARGEST, Replace, Store};

/// A call of the service.
#[derive(Debug, Clone)]
enum Call {
    Put(u8, u8, usize),
    Get(u8),
    Remove(u8),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        3 => (0_u8..2, any::<u8>(), 1..=LARGEST)
            .prop_map(|(name, byte, len)| Call::Put(name, byte, len)),
        2 => (0_u8..2).prop_map(Call::Get),
        1 => (0_u8..2).prop_map(Call::Remove),
    ]
}

/// Calls the service, and compares each answer with a map in host memory.
fn serve(device: &Device, calls: &[Call], replace: Replace) -> Result<()> {
    let mut store = Store::new(device, replace)?;
    let mut expected = BTreeMap::new();
    for call in calls {
        match *call {
            Call::Put(name, byte, len) => {
                let value = vec![byte; len];
                if store.put(name, &value).is_ok() {
                    expected.insert(name, value);
                }
            }
            Call::Get(name) => {
                if let Ok(value) = store.get(name) {
                    assert_eq!(value.as_ref(), expected.get(&name), "the value of {name}");
                }
            }
            Call::Remove(name) => {
                store.remove(name);
                expected.remove(&name);
            }
        }
    }
    Ok(())
}

fn world() -> World {
    World::new(&DEVICE.parse().expect("a spec")).expect("made")
}

fn config(cases: u32) -> Config {
    Config {
        cases,
        max_shrink_iters: 1000,
        failure_persistence: None,
        ..Config::default()
    }
}

#[test]
fn bug_is_found_and_shrunk() {
    let begin = Instant::now();
    let calls = prop::collection::vec(call(), 1..10);
    // How small a failure becomes depends on the seed. This one is that of the tutorial.
    let config = Config {
        rng_seed: RngSeed::Fixed(1),
        ..config(20_000)
    };
    let failure = gaudi_faults::find(world(), config, calls, |device, calls| {
        serve(device, calls, Replace::InPlace)
    });
    let failure = failure.expect("the bug is found");
    println!("found in {:?}\n{failure}", begin.elapsed());
    let calls = failure.input.expect("calls");
    assert!(calls.len() <= 3, "{calls:?}");
    assert_eq!(failure.plan.rules.len(), 1, "{}", failure.plan);
}

#[test]
fn fixed_service_holds() {
    let calls = prop::collection::vec(call(), 1..20);
    gaudi_faults::check_in(world(), config(500), calls, |device, calls| {
        serve(device, calls, Replace::Anew)
    });
}
