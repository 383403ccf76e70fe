//! [`Nodes::check`] and [`MemoryNodes::check`]: a property test of code on several nodes under
//! faults.

use std::cell::{Cell, RefCell};
use std::fmt;

use gaudi_device::Result;
use gaudi_seam::fault::Plan;
use proptest::arbitrary::any;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::check::{self, Abort, again};
use crate::invariant::Invariant;
use crate::memory_nodes::MemoryNodes;
use crate::nodes::{Code, Node, Nodes, NodesOutcome};
use crate::strategies;

/// The most rules of a node's plan.
const MOST_RULES: usize = 2;
/// Runs of a smaller input and plans: two runs may order the steps of the nodes differently.
const REPEATS: usize = 3;
/// The most smaller inputs and plans that are tried.
const MOST_SHRINKS: u32 = 300;

/// The smallest run of nodes that breaks an invariant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodesFailure<T> {
    /// What was broken, one sentence a line; or why no run was possible.
    pub why: String,
    /// The seed of the inputs and plans.
    pub seed: u64,
    /// The plan of each node.
    pub plans: Vec<Plan>,
    /// The input; `None` if no run was possible.
    pub input: Option<T>,
}

impl<T: fmt::Debug> fmt::Display for NodesFailure<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            why,
            seed,
            plans,
            input,
        } = self;
        let Some(input) = input else {
            return write!(f, "the fault runs were aborted: {why}");
        };
        write!(f, "{why}\n  seed: {seed}")?;
        for (node, plan) in plans.iter().enumerate() {
            write!(f, "\n  plan of node {node}: {plan}")?;
        }
        write!(f, "\n  input: {input:?}\n")?;
        again(*seed, f)
    }
}

impl Nodes {
    /// Runs `code` on every node for many inputs and plans of faults, and checks the
    /// [invariants](Invariant) after each run. [`Node::number`] tells the nodes apart.
    ///
    /// Input and plans shrink together. A smaller run counts only if it breaks the same invariant
    /// as the first one, in one of three runs: the nodes are threads.
    ///
    /// # Panics
    /// If a run breaks an invariant. The message has the smallest input and plans that proptest
    /// finds, the seed, and the command that repeats them.
    #[track_caller]
    pub fn check<I: Strategy>(&self, input: I, code: impl Fn(&mut Node<'_>, &I::Value) -> Result<()> + Sync)
    where
        I::Value: fmt::Debug + Sync,
    {
        if let Some(failure) = self.find(check::config(), input, code) {
            panic!("{failure}");
        }
    }

    /// As [`check`](Self::check) with a configuration of proptest, and returns the smallest failure
    /// instead of a panic.
    pub fn find<I: Strategy>(
        &self,
        config: Config,
        input: I,
        code: impl Fn(&mut Node<'_>, &I::Value) -> Result<()> + Sync,
    ) -> Option<NodesFailure<I::Value>>
    where
        I::Value: fmt::Debug + Sync,
    {
        let nodes = self.topology().nodes;
        search(config, nodes, REPEATS, input, |plans, input| {
            let node = |_| -> Code<'_> { Box::new(|node: &mut Node<'_>| code(node, input)) };
            self.run(plans, 0, (0..nodes).map(node).collect())
        })
    }
}

impl MemoryNodes {
    /// Runs `code` on all nodes for many inputs and plans of faults, and checks the
    /// [invariants](Invariant) after each run. Input, plans and the seed of the order shrink
    /// together, and one run decides whether a smaller one fails.
    ///
    /// # Panics
    /// As [`Nodes::check`].
    #[track_caller]
    pub fn check<I: Strategy>(&mut self, input: I, code: impl Fn(&mut [Node<'_>], &I::Value) -> Result<()>)
    where
        I::Value: fmt::Debug,
    {
        if let Some(failure) = self.find(check::config(), input, code) {
            panic!("{failure}");
        }
    }

    /// As [`check`](Self::check) with a configuration of proptest, and returns the smallest failure
    /// instead of a panic. Its input has the seed of the order first.
    pub fn find<I: Strategy>(
        &mut self,
        config: Config,
        input: I,
        code: impl Fn(&mut [Node<'_>], &I::Value) -> Result<()>,
    ) -> Option<NodesFailure<(u64, I::Value)>>
    where
        I::Value: fmt::Debug,
    {
        let nodes = self.topology().nodes;
        let this = RefCell::new(self);
        search(
            config,
            nodes,
            1,
            (any::<u64>(), input),
            |plans, (order, input)| this.borrow_mut().run(plans, *order, |nodes| code(nodes, input)),
        )
    }
}

/// Looks for an input and plans that break an invariant. `repeats` runs decide whether a smaller
/// one does.
fn search<I: Strategy>(
    config: Config,
    nodes: usize,
    repeats: usize,
    input: I,
    run: impl Fn(&[Plan], &I::Value) -> Result<NodesOutcome>,
) -> Option<NodesFailure<I::Value>>
where
    I::Value: fmt::Debug,
{
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => gaudi_sys::clock::monotonic_raw_ns(),
    };
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: config.max_shrink_iters.min(MOST_SHRINKS),
        ..config
    });
    let plans = strategies::node_plans(nodes, MOST_RULES);
    // The invariant that the first failure broke.
    let wanted: Cell<Option<Invariant>> = Cell::new(None);
    let abort = Abort::default();
    let ran = runner.run(&(plans, input), |(plans, input)| {
        let runs = if wanted.get().is_some() { repeats } else { 1 };
        for _ in 0..runs {
            let Some(outcome) = abort.run(|| run(&plans, &input)) else {
                return Ok(());
            };
            let Some(first) = outcome.violations.first() else {
                continue;
            };
            if wanted.get().is_none_or(|wanted| wanted == first.invariant) {
                wanted.set(Some(first.invariant));
                let lines: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
                return Err(TestCaseError::fail(lines.join("\n")));
            }
        }
        Ok(())
    });
    let aborted = |why| NodesFailure {
        why,
        seed,
        plans: Vec::new(),
        input: None,
    };
    match ran {
        Ok(()) => abort.why().map(aborted),
        Err(TestError::Abort(why)) => Some(aborted(why.to_string())),
        Err(TestError::Fail(why, (plans, input))) => Some(NodesFailure {
            why: why.to_string(),
            seed,
            plans,
            input: Some(input),
        }),
    }
}
