//! [`Case`]: a sequence and its plan, from a seed and a number.

use std::fmt;

use gaudi_seam::Result;
use gaudi_seam::fault::Plan;
use gaudi_sys::random::SplitMix64;

use crate::domains::DomainRig;
use crate::fabric;
use crate::memory_nodes::MemoryNodes;
use crate::nodes::Topology;
use crate::op::{OP, OPERATIONS, Op};
use crate::peers;
use crate::rig::Rig;
use crate::words::{self, RULE, Vocabulary};
use crate::world::{DEVICE, Outcome, World};

/// About one in so many cases of [`Case::mixed`] needs real descriptors.
const DESCRIPTORS: u64 = 256;
/// One in so many of those exports memory under a rule for the export, so that every such fault
/// happens.
const EXPORTS: u64 = 4;
/// One in so many of them is of a memory domain instead, and one of nodes in memory.
const DOMAINS: u64 = 8;
/// One in so many of them runs on two nodes instead.
const NODES: u64 = 32;
/// The most runs that reduce a failed case.
const MOST_RUNS: usize = 2000;
/// As [`MOST_RUNS`], of a case on two nodes, where a run takes longer.
const MOST_RUNS_OF_NODES: usize = 200;
/// Runs of a case on two nodes until one breaks an invariant: two runs may differ.
const REPEATS: usize = 3;

/// Where a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Where {
    /// On a device in memory.
    Memory,
    /// On a device with real descriptors.
    Descriptors,
    /// On a memory domain and its transport, over a device with real descriptors.
    Domain,
    /// On two nodes with NICs.
    Nodes,
    /// On two or three nodes in memory, with cards and NICs.
    Fabric,
}

impl Where {
    /// Every place.
    pub const ALL: [Self; 5] = [
        Self::Memory,
        Self::Descriptors,
        Self::Domain,
        Self::Nodes,
        Self::Fabric,
    ];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Domain => "domain",
            Self::Nodes => "nodes",
            Self::Fabric => "fabric",
        }
    }

    /// The code under test there.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Memory => "gaudi_device on a mock in memory",
            Self::Descriptors => "gaudi_device and dma-bufs, with real descriptors",
            Self::Domain => "the memory domain and the transport of gaudi_copy",
            Self::Nodes => "gaudi_remote between two nodes with NICs",
            Self::Fabric => "queue pairs of gaudi_verbs between nodes in memory",
        }
    }
}

/// A sequence of operations and a plan of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The seed of the runs.
    pub seed: u64,
    /// The number of the case among those of the seed.
    pub number: u64,
    /// What the case needs.
    pub place: Where,
    /// The plan.
    pub plan: Plan,
    /// The operations, each with its place in the generated sequence.
    pub ops: Vec<(usize, Op)>,
}

impl Case {
    /// Generates case `number` of `seed`: 20 operations, and up to three rules. One case in twenty
    /// has none.
    pub fn generate(seed: u64, number: u64) -> Self {
        Self::generate_of(seed, number, None, Op::of, Vocabulary::IN_MEMORY)
    }

    /// As [`generate`](Self::generate), with operations that need real descriptors. Every fourth
    /// number exports memory under a rule for the export: each verdict that meets it in turn.
    pub fn with_descriptors(seed: u64, number: u64) -> Self {
        let turn = (number % EXPORTS == 0).then_some(number / EXPORTS);
        let of = Vocabulary::WITH_DESCRIPTORS;
        Self {
            place: Where::Descriptors,
            ..Self::generate_of(seed, number, turn, Op::with_descriptors, of)
        }
    }

    /// As [`generate`](Self::generate), with operations of a memory domain and its transport.
    pub fn on_domain(seed: u64, number: u64) -> Self {
        let of = Vocabulary::WITH_DESCRIPTORS;
        let mut case = Self::generate_of(seed, number, None, Op::on_domain, of);
        let mut ops: Vec<Op> = case.ops.iter().map(|&(_, op)| op).collect();
        Op::begin_with_domain(&mut ops);
        case.ops = ops.into_iter().enumerate().collect();
        case.place = Where::Domain;
        case
    }

    /// As [`generate`](Self::generate), on two nodes: transfers between their memory, with up to
    /// three rules for the card or the NIC of one node. One case in eight has none.
    pub fn between_nodes(seed: u64, number: u64) -> Self {
        let mut random = SplitMix64::new(SplitMix64::nth(seed, number.wrapping_add(1)));
        let rules = random.below(8).min(3);
        let mut rule = || {
            let words = words(&mut random);
            match words[1] % 2 {
                0 => words::rule(words, Vocabulary::WITH_DESCRIPTORS),
                _ => words::nic_rule(words),
            }
        };
        let rules = (0..rules).map(|_| rule()).collect();
        let ops = (0..OPERATIONS).map(|_| Op::between_nodes(words(&mut random)));
        Self {
            seed,
            number,
            place: Where::Nodes,
            plan: Plan { rules },
            ops: ops.enumerate().collect(),
        }
    }

    /// As [`generate`](Self::generate), on two or three nodes in memory: requests of their queue
    /// pairs, with up to three rules. One case in eight has none. In every fourth group of four
    /// cases, each node has the plan; in the others, one node has it.
    pub fn on_fabric(seed: u64, number: u64) -> Self {
        let mut random = SplitMix64::new(SplitMix64::nth(seed, number.wrapping_add(1)));
        let rules = random.below(8).min(3);
        let mut rule = || {
            let words = words(&mut random);
            // A fault of a card mostly ends the code before its NIC works.
            match words[1] % 9 {
                0 => words::rule(words, Vocabulary::IN_MEMORY),
                _ => words::nic_rule(words),
            }
        };
        let rules = (0..rules).map(|_| rule()).collect();
        let ops = (0..OPERATIONS).map(|_| Op::on_fabric(words(&mut random)));
        Self {
            seed,
            number,
            place: Where::Fabric,
            plan: Plan { rules },
            ops: ops.enumerate().collect(),
        }
    }

    /// Whether the plan is that of every node.
    fn is_of_every_node(&self) -> bool {
        self.place == Where::Fabric && self.number / 4 % 4 == 0
    }

    /// The plan of each node.
    pub(crate) fn plans(&self, nodes: usize) -> Vec<Plan> {
        let has_it = |node| self.is_of_every_node() || node == self.faulty_node();
        let plan = |node| has_it(node).then(|| self.plan.clone());
        (0..nodes).map(|node| plan(node).unwrap_or_default()).collect()
    }

    /// The node that has the plan, if one node of several has it.
    pub fn faulty_node(&self) -> usize {
        (self.number % 2) as usize
    }

    /// Case `number` of those that `gaudi faults` runs: about one in 256 is a case
    /// [`with_descriptors`](Self::with_descriptors), of which every eighth is
    /// [`on_domain`](Self::on_domain) and every eighth [`on_fabric`](Self::on_fabric) instead, and
    /// one in 8192 is [`between_nodes`](Self::between_nodes); the others are in memory.
    pub fn mixed(seed: u64, number: u64) -> Self {
        // Not every 256th: the number also chooses the order of the chip's work.
        let random = SplitMix64::nth(!seed, number);
        match (random % DESCRIPTORS, random % (DESCRIPTORS * NODES)) {
            (_, 0) => Self::between_nodes(seed, number),
            (0, of) if of / DESCRIPTORS % DOMAINS == 1 => Self::on_domain(seed, number),
            (0, of) if of / DESCRIPTORS % DOMAINS == 2 => Self::on_fabric(seed, number),
            (0, _) => Self::with_descriptors(seed, number),
            _ => Self::generate(seed, number),
        }
    }

    fn generate_of(
        seed: u64,
        number: u64,
        turn: Option<u64>,
        op: fn([u16; OP]) -> Op,
        of: Vocabulary,
    ) -> Self {
        let mut random = SplitMix64::new(SplitMix64::nth(seed, number.wrapping_add(1)));
        let rules = match random.below(20) {
            0 => 0,
            1..=9 => 1,
            10..=15 => 2,
            _ => 3,
        };
        let mut rules: Vec<[u16; RULE]> = (0..rules).map(|_| words(&mut random)).collect();
        if let Some(first) = rules.first_mut() {
            // So that nearly every case has a fault.
            match turn {
                Some(turn) => words::make_export(first, turn),
                None => words::make_certain(first),
            }
        }
        let plan = words::plan(rules, of);
        let mut ops: [Op; OPERATIONS] = std::array::from_fn(|_| op(words(&mut random)));
        Op::begin_with_memory(&mut ops);
        if turn.is_some() {
            Op::begin_with_export(&mut ops);
        }
        Self {
            seed,
            number,
            place: Where::Memory,
            plan,
            ops: ops.into_iter().enumerate().collect(),
        }
    }

    /// Runs the case on a world.
    ///
    /// # Errors
    /// As [`World::run`].
    pub fn run(&self, world: &mut World) -> Result<Outcome> {
        if self.place == Where::Domain {
            return self.run_on_domain(world);
        }
        world.run_with(self.seed ^ self.number, |run| {
            run.arm(&self.plan);
            let mut rig = Rig::new(run);
            for &(_, op) in &self.ops {
                rig.step(op);
                // Later violations are mostly consequences of the first.
                if rig.has_failed() {
                    break;
                }
            }
            // Half of the cases compare all bytes at the end; the others release everything under
            // the faults.
            if self.number % 2 == 0 {
                run.disarm();
                rig.finish();
                // The plan applies to the releases of these cases too.
                run.arm(&self.plan);
            }
            Ok(())
        })
    }

    fn run_on_domain(&self, world: &mut World) -> Result<Outcome> {
        world.run_with(self.seed ^ self.number, |run| {
            let Some(domain) = run.domain else {
                unreachable!("a case of a memory domain runs where there is one");
            };
            run.arm(&self.plan);
            let mut rig = DomainRig::new(run, domain)?;
            for &(_, op) in &self.ops {
                run.record.begin();
                rig.step(op);
                if run.record.has_failed() {
                    break;
                }
            }
            if self.number % 2 == 0 {
                run.disarm();
                rig.compare_all();
                run.arm(&self.plan);
            }
            rig.close();
            Ok(())
        })
    }

    /// Returns a smaller case that breaks the invariant that a run broke first, with the run in
    /// which it did: fewer rules and operations, and simpler ones. Rules and operations are reduced
    /// together. Without a smaller one, returns the case and `outcome`.
    pub fn reduce(self, outcome: Outcome, world: &mut World) -> (Self, Outcome) {
        self.reduce_by(outcome, |case| case.run(world), MOST_RUNS, |_, _| {})
    }

    /// `report` gets each smaller case that fails, with its run.
    fn reduce_by(
        self,
        outcome: Outcome,
        mut run: impl FnMut(&Self) -> Result<Outcome>,
        most: usize,
        mut report: impl FnMut(&Self, &Outcome),
    ) -> (Self, Outcome) {
        let broken = |outcome: &Outcome| Some(outcome.violations.first()?.invariant);
        let Some(wanted) = broken(&outcome) else {
            return (self, outcome);
        };
        let (mut best, mut last) = (self, outcome);
        let mut runs = 0;
        let mut fails = |case: &Self, runs: &mut usize| {
            *runs += 1;
            let failed = run(case).ok().filter(|outcome| broken(outcome) == Some(wanted));
            let Some(outcome) = failed else { return false };
            report(case, &outcome);
            last = outcome;
            true
        };
        // Parts, halves first, then ever smaller ones.
        let mut part = (best.ops.len() + best.plan.rules.len()).div_ceil(2);
        while part > 0 && runs < most {
            let mut at = 0;
            let mut is_smaller = false;
            while at < best.ops.len() + best.plan.rules.len() && runs < most {
                let smaller = best.without(at, part);
                if fails(&smaller, &mut runs) {
                    best = smaller;
                    is_smaller = true;
                } else {
                    at += part;
                }
            }
            if part == 1 && !is_smaller {
                break;
            }
            part = if part == 1 { 1 } else { part / 2 };
        }
        // Numbers towards 0.
        let mut index = 0;
        while index < best.ops.len() && runs < most {
            for field in 0..3 {
                for divisor in [u16::MAX, 256, 16, 2] {
                    let mut simpler = best.clone();
                    let op = &mut simpler.ops[index].1;
                    let number = match field {
                        0 => &mut op.a,
                        1 => &mut op.b,
                        _ => &mut op.c,
                    };
                    if *number == 0 {
                        break;
                    }
                    *number /= divisor;
                    if fails(&simpler, &mut runs) {
                        best = simpler;
                        break;
                    }
                }
            }
            index += 1;
        }
        (best, last)
    }

    /// The case without `part` of its rules and operations from the `at`th on; the rules come
    /// first.
    fn without(&self, at: usize, part: usize) -> Self {
        let mut smaller = self.clone();
        let mut index = 0;
        let mut is_kept = || {
            index += 1;
            !(at..at + part).contains(&(index - 1))
        };
        smaller.plan.rules.retain(|_| is_kept());
        smaller.ops.retain(|_| is_kept());
        smaller
    }
}

/// Runs a case until a run breaks an invariant, [`REPEATS`] times at most.
fn repeated(mut run: impl FnMut(&Case) -> Result<Outcome>) -> impl FnMut(&Case) -> Result<Outcome> {
    move |case| {
        let mut outcome = run(case)?;
        for _ in 1..REPEATS {
            if !outcome.violations.is_empty() {
                break;
            }
            outcome = run(case)?;
        }
        Ok(outcome)
    }
}

fn words<const N: usize>(random: &mut SplitMix64) -> [u16; N] {
    [(); N].map(|()| (random.next() >> 48) as u16)
}

/// The worlds of random cases, each made when a case first needs it: every fourth case runs where a
/// seed orders the chip's work.
#[derive(Default)]
pub struct Stack {
    worlds: [Option<World>; 6],
    /// Two nodes in memory, and three.
    fabrics: [Option<MemoryNodes>; 2],
}

impl Stack {
    /// Makes the worlds in memory in this thread.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn new() -> Result<Self> {
        let mut stack = Self::default();
        for number in [0, 3] {
            stack.world(&Case::generate(0, number))?;
        }
        Ok(stack)
    }

    /// The world of a case on one device.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn world(&mut self, case: &Case) -> Result<&mut World> {
        let is_stepped = case.number % 4 == 3;
        let place = match case.place {
            Where::Memory => 0,
            Where::Descriptors | Where::Nodes | Where::Fabric => 1,
            Where::Domain => 2,
        };
        let world = &mut self.worlds[usize::from(is_stepped) + 2 * place];
        if world.is_none() {
            let order = if is_stepped { "&order=stepped" } else { "" };
            let spec = format!("{DEVICE}{order}");
            let spec = spec
                .parse()
                .unwrap_or_else(|error| unreachable!("{spec}: {error}"));
            *world = Some(match case.place {
                Where::Memory => World::new(&spec)?,
                Where::Descriptors | Where::Nodes | Where::Fabric => World::with_descriptors(&spec)?,
                Where::Domain => World::with_descriptors(&spec)?.with_domain(),
            });
        }
        match world {
            Some(world) => Ok(world),
            None => unreachable!("it was made above"),
        }
    }

    /// Runs a case on nodes in memory.
    fn run_on_fabric(&mut self, case: &Case) -> Result<Outcome> {
        let more = (case.number / 2 % 2) as usize;
        let topology = Topology {
            nodes: 2 + more,
            ..Topology::PAIR
        };
        let fabric = &mut self.fabrics[more];
        let nodes = match fabric {
            Some(nodes) => nodes,
            none => none.insert(MemoryNodes::new(topology)?),
        };
        let plans = case.plans(topology.nodes);
        fabric::run(nodes, &plans, case.seed ^ case.number, &case.ops).map(Outcome::from)
    }

    /// Runs a case.
    ///
    /// # Errors
    /// As [`World::run`]; those of making nodes.
    pub fn run(&mut self, case: &Case) -> Result<Outcome> {
        match case.place {
            Where::Nodes => peers::run(case).map(Outcome::from),
            Where::Fabric => self.run_on_fabric(case),
            _ => case.run(self.world(case)?),
        }
    }

    /// Runs a case; one on two nodes up to three times, until a run breaks an invariant.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn repeat(&mut self, case: &Case) -> Result<Outcome> {
        match case.place {
            Where::Nodes => repeated(|case| self.run(case))(case),
            _ => self.run(case),
        }
    }

    /// As [`Case::reduce`]. Two runs on nodes may differ, so each such case gets three runs.
    pub fn reduce(&mut self, case: Case, outcome: Outcome) -> (Case, Outcome) {
        self.reduce_and(case, outcome, |_, _| {})
    }

    /// As [`reduce`](Self::reduce), and passes each smaller case that fails to `report`, with its
    /// run: a later one may never end.
    pub fn reduce_and(
        &mut self,
        case: Case,
        outcome: Outcome,
        report: impl FnMut(&Case, &Outcome),
    ) -> (Case, Outcome) {
        let most = match case.place {
            Where::Nodes => MOST_RUNS_OF_NODES,
            _ => MOST_RUNS,
        };
        case.reduce_by(outcome, |case| self.repeat(case), most, report)
    }
}

impl fmt::Display for Case {
    /// The plan in one line, then one line for each operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Where::Nodes | Where::Fabric if !self.is_of_every_node() => {
                write!(f, "plan of node {}: {}", self.faulty_node(), self.plan)?;
            }
            Where::Fabric => write!(f, "plan of every node: {}", self.plan)?,
            _ => write!(f, "plan: {}", self.plan)?,
        }
        for (place, op) in &self.ops {
            write!(f, "\n{place:4}  {op}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::{Invariant, Violation};
    use crate::op::Kind;

    #[test]
    fn failure_of_some_runs_is_reduced() {
        let mut case = Case::between_nodes(1, 0);
        case.plan = "submit:lose;nic.packet:lose".parse().expect("a plan");
        case.ops[7].1.kind = Kind::RemoteFlush;
        let is_flush = |&(_, op): &(usize, Op)| op.kind == Kind::RemoteFlush;
        let mut calls = 0;
        // Every other run fails, if the case has a flush and the second rule.
        let run = |case: &Case| {
            calls += 1;
            let has_rule = case.plan.rules.iter().any(|rule| rule.target.is_nic());
            let mut outcome = Outcome::default();
            if calls % 2 == 0 && has_rule && case.ops.iter().any(is_flush) {
                outcome.violations.push(Violation {
                    invariant: Invariant::PeersEnd,
                    what: format!("{} operations", case.ops.len()),
                });
            }
            Ok(outcome)
        };
        let mut run = repeated(run);
        let first = run(&case).expect("it runs");
        let (smallest, last) = case.reduce_by(first, run, MOST_RUNS_OF_NODES, |_, _| {});
        assert_eq!(smallest.plan.to_string(), "nic.packet:lose");
        assert_eq!(smallest.ops.len(), 1, "{smallest}");
        assert_eq!(
            last.violations[0].what, "1 operations",
            "the run of the smallest case"
        );
    }
}
