//! What a failure of a property test reports, and how it is repeated.

use std::time::Duration;

use gaudi_device::{Device, Options, Result};
use gaudi_faults::{DEVICE, Invariant, World};
use gaudi_seam::fault::Plan;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

fn world() -> World {
    World::new(&DEVICE.parse().expect("a spec")).expect("made")
}

fn config(seed: u64) -> Config {
    Config {
        cases: 2000,
        max_shrink_iters: 500,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    }
}

/// Treats every failure of a wait as a defect.
fn impatient(device: &Device, &len: &u64) -> Result<()> {
    let buffer = device.alloc(len)?;
    let filled = device.fill(&buffer, 1)?;
    assert!(filled.wait(Duration::from_secs(60)).is_ok(), "the fill failed");
    Ok(())
}

#[test]
fn failure_names_seed_plan_and_command() {
    let failure = gaudi_faults::find(world(), config(7), 1_u64..5000, impatient).expect("found");
    let text = failure.to_string();
    println!("{text}");
    assert_eq!((failure.seed, failure.input), (7, Some(1)));
    assert!(text.contains("  seed: 7\n"), "{text}");
    let plan = format!("  plan: {}\n", failure.plan);
    assert!(text.contains(&plan), "{text}");
    let again = "again: PROPTEST_RNG_SEED=7 cargo test failure_names_seed_plan_and_command -- --exact";
    assert!(text.contains(again), "{text}");
}

#[test]
fn same_seed_finds_the_same_failure() {
    let find = || gaudi_faults::find(world(), config(11), 1_u64..5000, impatient).expect("found");
    assert_eq!(find().to_string(), find().to_string());
}

/// A file of regressions brings the failure back at once, whatever the seed.
#[test]
fn regression_file_repeats_the_failure() {
    let path = std::env::temp_dir().join(format!("gaudi-faults-{}.txt", std::process::id()));
    let text: &'static str = Box::leak(path.display().to_string().into_boxed_str());
    let with_file = |seed, cases| Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(text))),
        ..config(seed)
    };
    let first = gaudi_faults::find(world(), with_file(7, 2000), 1_u64..5000, impatient);
    assert!(first.is_some() && path.exists(), "the failure is written");
    // Without new cases, only those of the file run.
    let again = gaudi_faults::find(world(), with_file(8, 0), 1_u64..5000, impatient);
    std::fs::remove_file(&path).expect("the file is removed");
    assert!(
        again.is_some_and(|failure| failure.input.is_some()),
        "the file's case runs first"
    );
}

/// An object that is leaked keeps the compute node open for the rest of the process.
#[test]
fn leaked_object_is_reported_and_shrunk() {
    let leaks = |device: &Device, &len: &u64| {
        let buffer = device.alloc(len)?;
        let has_failed = device.fill(&buffer, 1)?.wait(Duration::from_secs(60)).is_err();
        if has_failed {
            std::mem::forget(buffer);
        }
        Ok(())
    };
    let failure = gaudi_faults::find(world(), config(7), 1_u64..5000, leaks).expect("found");
    println!("{failure}");
    assert!(failure.why.starts_with("leaks: "), "{failure}");
    assert_eq!(failure.input, Some(1), "{failure}");
    let rules = &failure.plan.rules;
    assert_eq!(rules.len(), 1, "{failure}");
    let plan = failure.plan.to_string();
    assert!(
        ["wait_cs:", "submit:", "chip."]
            .iter()
            .any(|of| plan.starts_with(of)),
        "{plan}"
    );
}

#[test]
fn world_runs_again_after_a_leak() {
    let mut world = world();
    let plan = Plan::default();
    let mut run = |is_leaked: bool| {
        let outcome = world.run(&plan, 0, |device| {
            let buffer = device.alloc(64)?;
            if is_leaked {
                std::mem::forget(buffer);
            }
            Ok(())
        });
        let broken = outcome.expect("the device opens").violations;
        broken.iter().map(|one| one.invariant).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert!(run(true).contains(&Invariant::Leaks));
        assert_eq!(run(false), []);
    }
}

/// proptest would shrink the input of a failure.
#[test]
fn impossible_run_aborts_the_check() {
    let mut options = Options::default();
    options.packet_bytes = 0;
    let world = world().with_options(options);
    let failure = gaudi_faults::find(world, config(7), 1_u64..5000, |_, _| Ok(())).expect("aborted");
    assert_eq!(failure.input, None, "{failure}");
    assert!(
        failure.to_string().starts_with("the fault runs were aborted: "),
        "{failure}"
    );
}
