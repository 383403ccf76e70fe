//! [`check`]: a property test of code under faults.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use gaudi_device::{Device, Error, Result};
use gaudi_seam::fault::{Plan, Rule, Schedule};
use proptest::strategy::{Just, Strategy};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::strategies;
use crate::world::{DEVICE, World};

/// The most rules of a plan.
const MOST_RULES: usize = 3;

/// Runs `code` on a device in memory for many inputs and plans of faults, and checks the
/// [invariants](crate::Invariant) after each run.
///
/// `code` returns `Ok`, or an error that a fault caused; it panics if a property of its own does
/// not hold. It runs in this thread, on a device that restarts before each run: the same input,
/// plan and seed give the same run. Threads that it starts work, and are not deterministic.
///
/// # Panics
/// If a run breaks an invariant. The message has the smallest input and plan that proptest finds,
/// the seed, and the command that repeats them. proptest's environment applies: `PROPTEST_CASES`,
/// `PROPTEST_RNG_SEED`, and the file of regressions beside the test.
///
/// ```
/// use gaudi_faults::check;
///
/// check(1_u64..5000, |device, &len| {
///     let buffer = device.alloc(len)?;
///     device.write(&buffer, 0, &vec![7; len as usize])?;
///     let mut seen = vec![0; len as usize];
///     device.read(&buffer, 0, &mut seen)?;
///     assert!(seen.iter().all(|&byte| byte == 7));
///     Ok(())
/// });
/// ```
#[track_caller]
pub fn check<I: Strategy>(input: I, code: impl Fn(&Device, &I::Value) -> Result<()>)
where
    I::Value: fmt::Debug,
{
    let spec = DEVICE.parse().unwrap_or_else(|error| unreachable!("{error}"));
    let world = World::new(&spec).unwrap_or_else(|error| panic!("no device for fault runs: {error}"));
    check_in(world, config(), input, code);
}

/// The configuration of a check: proptest's file of regressions lies beside the caller's source.
#[track_caller]
pub(crate) fn config() -> Config {
    Config {
        source_file: Some(std::panic::Location::caller().file()),
        ..Config::default()
    }
}

/// As [`check`], in a world with options, layers or switched-off invariants, and with a
/// configuration of proptest.
///
/// # Panics
/// As [`check`].
pub fn check_in<I: Strategy>(
    world: World,
    config: Config,
    input: I,
    code: impl Fn(&Device, &I::Value) -> Result<()>,
) where
    I::Value: fmt::Debug,
{
    if let Some(failure) = find(world, config, input, code) {
        panic!("{failure}");
    }
}

/// The smallest run that breaks an invariant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Failure<T> {
    /// What was broken, one sentence a line; or why no run was possible.
    pub why: String,
    /// The seed of the inputs and plans.
    pub seed: u64,
    /// The plan.
    pub plan: Plan,
    /// The input; `None` if no run was possible.
    pub input: Option<T>,
}

impl<T: fmt::Debug> Failure<T> {
    /// The length of its text, in which each rule counts as 1000 further characters.
    fn size(&self) -> usize {
        self.plan.rules.len() * 1000 + format!("{} {:?}", self.plan, self.input).len()
    }
}

impl<T: fmt::Debug> fmt::Display for Failure<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            why,
            seed,
            plan,
            input,
        } = self;
        let Some(input) = input else {
            return write!(f, "the fault runs were aborted: {why}");
        };
        write!(f, "{why}\n  seed: {seed}\n  plan: {plan}\n  input: {input:?}\n")?;
        again(*seed, f)
    }
}

/// Writes the command that repeats a failure.
pub(crate) fn again(seed: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "  again: PROPTEST_RNG_SEED={seed} cargo test")?;
    // The test harness names the thread after the test.
    match std::thread::current().name() {
        Some(test) if test != "main" => write!(f, " {test} -- --exact"),
        _ => Ok(()),
    }
}

/// As [`check_in`], and returns the smallest failure instead of a panic.
pub fn find<I: Strategy>(
    world: World,
    config: Config,
    input: I,
    code: impl Fn(&Device, &I::Value) -> Result<()>,
) -> Option<Failure<I::Value>>
where
    I::Value: fmt::Debug,
{
    let world = RefCell::new(world);
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => gaudi_sys::clock::monotonic_raw_ns(),
    };
    let config = Config {
        rng_seed: RngSeed::Fixed(seed),
        ..config
    };
    let plans = strategies::plans(MOST_RULES);
    let mut smallest = find_one(&world, &config, plans, &input, &code)?;
    if smallest.input.is_none() {
        return Some(smallest);
    }
    // An input without one of its operations often fails only if the fault meets an earlier match.
    // proptest shrinks plan and input in turn and cannot take this step: so each rule, alone and at
    // one early match, gets searches for inputs of its own. Several, since shrinking an input ends
    // in a local minimum.
    let rules = smallest.plan.rules.clone();
    let mut seeds = (1..).map(|more| RngSeed::Fixed(seed.wrapping_add(more)));
    for (rule, nth) in rules.iter().flat_map(|rule| EARLY.map(move |nth| (rule, nth))) {
        let plan = Plan {
            rules: vec![Rule {
                schedule: Schedule::nth(nth),
                ..*rule
            }],
        };
        for rng_seed in seeds.by_ref().take(SEARCHES) {
            let config = Config {
                cases: config.cases.min(MORE_CASES),
                max_shrink_iters: config.max_shrink_iters.min(MORE_CASES),
                rng_seed,
                failure_persistence: None,
                ..config.clone()
            };
            let found = find_one(&world, &config, Just(plan.clone()), &input, &code);
            let is_smaller = |other: &Failure<_>| other.input.is_some() && other.size() < smallest.size();
            if let Some(other) = found.filter(is_smaller) {
                // The seed of the whole search repeats it.
                smallest = Failure { seed, ..other };
            }
        }
    }
    Some(smallest)
}

/// The matches at which a rule of a failure is tried alone.
const EARLY: RangeInclusive<u64> = 1..=3;
/// The most searches for each of them, and the most cases of a search.
const SEARCHES: usize = 4;
const MORE_CASES: u32 = 500;

/// The first error that made a run impossible. Later runs are skipped, so that proptest does not
/// take the error for a failure that it can shrink.
#[derive(Default)]
pub(crate) struct Abort(RefCell<Option<Error>>);

impl Abort {
    /// Runs a case; `None` if the run, or an earlier one, was impossible.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> Result<T>) -> Option<T> {
        if self.0.borrow().is_some() {
            return None;
        }
        run().map_err(|error| *self.0.borrow_mut() = Some(error)).ok()
    }

    /// The error as text.
    pub(crate) fn why(self) -> Option<String> {
        self.0.into_inner().map(|error| error.to_string())
    }
}

fn find_one<I: Strategy>(
    world: &RefCell<World>,
    config: &Config,
    plans: impl Strategy<Value = Plan>,
    input: &I,
    code: &impl Fn(&Device, &I::Value) -> Result<()>,
) -> Option<Failure<I::Value>>
where
    I::Value: fmt::Debug,
{
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => 0,
    };
    let mut runner = TestRunner::new(config.clone());
    let abort = Abort::default();
    let ran = runner.run(&(plans, input), |(plan, input)| {
        let run = || world.borrow_mut().run(&plan, 0, |device| code(device, &input));
        let Some(outcome) = abort.run(run) else {
            return Ok(());
        };
        match &outcome.violations[..] {
            [] => Ok(()),
            violations => {
                let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
                Err(TestCaseError::fail(lines.join("\n")))
            }
        }
    });
    let aborted = |why| Failure {
        why,
        seed,
        plan: Plan::default(),
        input: None,
    };
    match ran {
        Ok(()) => abort.why().map(aborted),
        Err(TestError::Abort(why)) => Some(aborted(why.to_string())),
        Err(TestError::Fail(why, (plan, input))) => Some(Failure {
            why: why.to_string(),
            seed,
            plan,
            input: Some(input),
        }),
    }
}
