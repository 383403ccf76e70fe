//! What a run reports of its rules.

use std::time::Duration;

use gaudi_faults::{DEVICE, World};
use gaudi_seam::fault::Plan;

const LONG: Duration = Duration::from_secs(60);

fn world() -> World {
    World::new(&DEVICE.parse().expect("a spec")).expect("made")
}

fn plan(text: &str) -> Plan {
    text.parse().expect("a plan")
}

#[test]
fn run_returns_rules_that_never_fired() {
    let plan = plan("submit:when=900:error=EIO;submit:when=1:delay=1ms");
    let outcome = world().run(&plan, 0, |device| {
        let buffer = device.alloc(4096)?;
        device.fill(&buffer, 1)?.wait(LONG)
    });
    let outcome = outcome.expect("the device opens");
    assert_eq!(outcome.violations, []);
    assert_eq!(outcome.unfired, plan.rules[..1]);
}

#[test]
fn chip_fault_excuses_the_error_of_code() {
    let plan = plan("chip.dma:when=1:ecc=fatal");
    let outcome = world().run(&plan, 0, |device| {
        let buffer = device.alloc(4096)?;
        device.fill(&buffer, 1)?.wait(LONG)?;
        panic!("the driver did not reset the chip");
    });
    let outcome = outcome.expect("the device opens");
    assert_eq!(outcome.violations, []);
    assert_eq!(outcome.unfired, []);
    assert!(outcome.has_fault());
}

/// The log of faults has the newest 4096 only.
#[test]
fn every_delay_extends_the_budget() {
    let mut world = world().with_budget(LONG);
    let outcome = world.run(&plan("submit:delay=1s"), 0, |device| {
        let buffer = device.alloc(64)?;
        for _ in 0..4500 {
            device.fill(&buffer, 1)?.wait(LONG)?;
        }
        Ok(())
    });
    let outcome = outcome.expect("the device opens");
    assert_eq!(outcome.violations, []);
    assert!(outcome.took >= Duration::from_secs(4500), "{:?}", outcome.took);
}
