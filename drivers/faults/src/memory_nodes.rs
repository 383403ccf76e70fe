//! [`MemoryNodes`]: nodes in memory, one closure for all of them, under plans of faults.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gaudi_seam::Result;
use gaudi_seam::fault::Plan;
use gaudi_softnic::{Fabric, NicFaults, SoftNic, SoftNicConfig};
use gaudi_sys::clock::VirtualClock;
use gaudi_verbs::Context;

use crate::invariant::{Invariant, Violation};
use crate::nodes::{self, Node, NodesOutcome, Topology, card_spec, end_cards, nest};
use crate::world::{Canaries, Quiet, Run, World};

/// Where the clock of a run starts, as that of a mock.
const START_NS: u64 = 1_000_000_000;

/// Nodes in memory, each with mocks as cards and NICs of a [`Fabric`].
///
/// One closure runs the code of all nodes, in one thread and in virtual time. Its polls of
/// completion queues move the frames, in an order that the seed chooses, so that two runs of one
/// input, plan and seed are the same. The cards have no descriptors: their memory cannot be
/// registered with a NIC, and [`Node::take_stream`] panics. Code that blocks on descriptors, and
/// code that exports device memory, runs on [`Nodes`](crate::Nodes).
pub struct MemoryNodes {
    topology: Topology,
    clock: VirtualClock,
    /// The cards, node by node.
    worlds: Vec<World>,
    off: Vec<Invariant>,
}

impl MemoryNodes {
    /// Makes the cards. Each run makes the NICs.
    ///
    /// # Errors
    /// `OutOfMemory`: the host has no memory for the cards.
    pub fn new(topology: Topology) -> Result<Self> {
        let clock = VirtualClock::at(START_NS);
        let cards = topology.nodes * topology.cards;
        let make =
            |card: usize| World::on_clock(&card_spec(card), &clock).map(|world| world.inside(card > 0));
        Ok(Self {
            topology,
            worlds: (0..cards).map(make).collect::<Result<_>>()?,
            clock,
            off: Vec::new(),
        })
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// Switches an invariant off.
    #[must_use]
    pub fn without(mut self, invariant: Invariant) -> Self {
        self.off.push(invariant);
        self
    }

    /// Runs the code of all nodes under a plan for each, and checks the invariants. `seed` orders
    /// the frames.
    ///
    /// The rules of NIC events are those of each NIC of the node, the others those of each card. A
    /// node without a plan has no faults. [`NodesOutcome::errors`] has one error, that of the code.
    ///
    /// # Errors
    /// Those of making the nodes.
    pub fn run(
        &mut self,
        plans: &[Plan],
        seed: u64,
        code: impl FnOnce(&mut [Node<'_>]) -> Result<()>,
    ) -> Result<NodesOutcome> {
        let Self {
            topology,
            clock,
            worlds,
            off,
        } = self;
        clock.restart(START_NS);
        let mut outcome = NodesOutcome::default();
        let mut cards = Vec::new();
        let mut code = Some(code);
        nest(worlds, seed, &[], &mut cards, &mut |runs| {
            // It is called once.
            let Some(code) = code.take() else { return Ok(()) };
            // Without cards, nothing else makes the thread use the clock.
            let _entered = clock.enter();
            let fabric = Fabric::with_clock(seed, clock.clone());
            run_code(*topology, plans, &fabric, runs, code, &mut outcome)
        })?;
        cards.reverse();
        for (card, result) in cards.iter().enumerate() {
            let node = card / topology.cards;
            let of_card = result.violations.iter().map(|violation| Violation {
                what: format!("node {node}: {}", violation.what),
                ..violation.clone()
            });
            outcome.violations.extend(of_card);
            outcome.add_unfired(result);
        }
        outcome.cards = cards;
        outcome
            .violations
            .retain(|violation| !off.contains(&violation.invariant));
        Ok(outcome)
    }
}

/// Runs the code on the NICs of a fabric and on open cards.
fn run_code(
    topology: Topology,
    plans: &[Plan],
    fabric: &Fabric,
    runs: &[&Run<'_>],
    code: impl FnOnce(&mut [Node<'_>]) -> Result<()>,
    outcome: &mut NodesOutcome,
) -> Result<()> {
    let none = Plan::default();
    let plan_of = |node: usize| plans.get(node).unwrap_or(&none);
    let nics = make_nics(topology, fabric, &plan_of)?;
    let faults: Vec<NicFaults> = nics.iter().flatten().map(|nic| nic.faults()).collect();
    let make = |(number, nics): (usize, Vec<Arc<SoftNic>>)| {
        let cards = number * topology.cards..(number + 1) * topology.cards;
        let nics = nics.into_iter().map(|nic| Context::open(nic));
        Ok(Node {
            number,
            devices: runs[cards].iter().map(|run| run.device).collect(),
            nics: nics.collect::<Result<_>>()?,
            streams: Vec::new(),
        })
    };
    let mut nodes = nics
        .into_iter()
        .enumerate()
        .map(make)
        .collect::<Result<Vec<_>>>()?;
    let canaries = runs.iter().map(|run| Canaries::new(run.device));
    let canaries = canaries.collect::<Result<Vec<_>>>()?;
    for (card, run) in runs.iter().enumerate() {
        run.arm(plan_of(card / topology.cards));
    }
    fabric.record();
    let quiet = Quiet::begin();
    let answer = catch_unwind(AssertUnwindSafe(|| code(&mut nodes)));
    drop(quiet);
    outcome.steps = fabric.take_record();
    for node in &mut nodes {
        let number = node.number;
        let mut violations = Vec::new();
        nodes::close_nics(node, &mut violations);
        outcome
            .violations
            .extend(violations.into_iter().map(|violation| Violation {
                what: format!("node {number}: {}", violation.what),
                ..violation
            }));
    }
    let error = nodes::error_of(answer, &mut outcome.violations);
    outcome.count_nics(&faults);
    let has_card_fault = end_cards(runs, canaries);
    let has_fault = has_card_fault || !outcome.nic_fired.is_empty();
    outcome
        .violations
        .extend(nodes::judge(error.as_ref(), has_fault, has_card_fault));
    outcome.errors.push(error);
    Ok(())
}

/// Makes the NICs of each node. A cable joins those with the same number of each two nodes.
fn make_nics<'a>(
    topology: Topology,
    fabric: &Fabric,
    plan_of: &dyn Fn(usize) -> &'a Plan,
) -> Result<Vec<Vec<Arc<SoftNic>>>> {
    let make = |node: usize| {
        let config = SoftNicConfig {
            faults: plan_of(node).clone(),
            ..SoftNicConfig::default()
        };
        let nics = (0..topology.nics).map(|nic| fabric.nic(&format!("nic{nic}"), config.clone()));
        nics.collect::<Result<Vec<_>>>()
    };
    let nics = (0..topology.nodes).map(make).collect::<Result<Vec<_>>>()?;
    for (node, own) in nics.iter().enumerate() {
        for other in &nics[node + 1..] {
            for (a, b) in own.iter().zip(other) {
                fabric.join(a, b)?;
            }
        }
    }
    Ok(nics)
}
