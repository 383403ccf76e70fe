//! [`Nodes`]: nodes with cards and NICs in one process, one closure a node, under plans of faults.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_seam::fault::{Plan, Rule};
use gaudi_seam::{DeviceSpec, Error, ErrorKind, Result};
use gaudi_softnic::{FabricStep, NicFaults, SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

use crate::invariant::{Invariant, Violation};
use crate::world::{Canaries, DEVICE, Outcome, Quiet, Run, World, message};

/// How many nodes a run has, and what each of them has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Nodes.
    pub nodes: usize,
    /// Cards of each node.
    pub cards: usize,
    /// NICs of each node. A cable joins the NICs with the same number of each two nodes.
    pub nics: usize,
}

impl Topology {
    /// Two nodes with a card and a NIC each.
    pub const PAIR: Self = Self {
        nodes: 2,
        cards: 1,
        nics: 1,
    };
}

/// The code of a node.
pub type Code<'a> = Box<dyn FnOnce(&mut Node<'_>) -> Result<()> + Send + 'a>;

/// Nodes in one process, each with mocks as cards and software NICs.
///
/// Each node has a thread, and the nodes run in the machine's time: the order of their steps, and
/// so the event that a rule meets, may differ between two runs. Work of a card takes virtual time.
#[derive(Debug, Clone)]
pub struct Nodes {
    topology: Topology,
    budget: Duration,
    off: Vec<Invariant>,
}

/// A node, as its code sees it.
#[derive(Debug)]
pub struct Node<'a> {
    pub(crate) number: usize,
    pub(crate) devices: Vec<&'a Device>,
    pub(crate) nics: Vec<Context>,
    /// Empty for nodes in memory.
    pub(crate) streams: Vec<Option<UnixStream>>,
}

impl Node<'_> {
    /// The number of the node, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// A card.
    ///
    /// # Panics
    /// If the topology has no such card.
    pub fn device(&self, card: usize) -> &Device {
        self.devices[card]
    }

    /// A NIC.
    ///
    /// # Panics
    /// If the topology has no such NIC.
    pub fn nic(&self, nic: usize) -> &Context {
        &self.nics[nic]
    }

    /// Takes the stream to another node. It hangs up when the code of one of both has ended.
    ///
    /// # Panics
    /// If the number is invalid, the stream was taken before, or the nodes are in memory.
    pub fn take_stream(&mut self, node: usize) -> UnixStream {
        let stream = self.streams.get_mut(node).and_then(Option::take);
        stream.unwrap_or_else(|| panic!("node {} has no stream to node {node}", self.number))
    }
}

/// The result of a run of nodes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NodesOutcome {
    /// The broken invariants. Each text begins with the node.
    pub violations: Vec<Violation>,
    /// The result of each card, node by node.
    pub cards: Vec<Outcome>,
    /// The error of each node's code.
    pub errors: Vec<Option<Error>>,
    /// The armed rules of NIC events that injected a fault, of every node.
    pub nic_fired: Vec<Rule>,
    /// The armed rules that injected nothing, of every node.
    pub unfired: Vec<Rule>,
    /// The steps of the cables, of nodes in memory.
    pub steps: Vec<FabricStep>,
}

impl NodesOutcome {
    /// Whether a fault was injected.
    pub fn has_fault(&self) -> bool {
        !self.nic_fired.is_empty() || self.cards.iter().any(Outcome::has_fault)
    }

    /// Adds the rules of a card that injected nothing. Those of NIC events are not the card's.
    pub(crate) fn add_unfired(&mut self, card: &Outcome) {
        let unfired = card.unfired.iter().filter(|rule| !rule.target.is_nic());
        self.unfired.extend(unfired);
    }

    /// Adds the rules of NICs.
    pub(crate) fn count_nics(&mut self, faults: &[NicFaults]) {
        for count in faults.iter().flat_map(NicFaults::rules) {
            match count.fired {
                0 => self.unfired.push(count.rule),
                _ => self.nic_fired.push(count.rule),
            }
        }
    }
}

impl From<NodesOutcome> for Outcome {
    /// The result of all cards together.
    fn from(nodes: NodesOutcome) -> Self {
        let mut all = Self {
            violations: nodes.violations,
            unfired: nodes.unfired,
            nic_fired: nodes.nic_fired,
            ..Self::default()
        };
        for card in nodes.cards {
            all.met.extend(card.met);
            all.has_device_fault |= card.has_device_fault;
            all.calls += card.calls;
            all.took = all.took.max(card.took);
        }
        all
    }
}

/// What a node's thread uses.
struct Seat {
    nics: Vec<Arc<SoftNic>>,
    streams: Vec<Option<UnixStream>>,
}

/// What a node's thread reports to the thread that waits.
enum Event {
    /// The node has its devices.
    Begun(usize),
    /// The code has ended.
    Ended(usize),
}

/// The end of a node.
struct End {
    cards: Vec<Outcome>,
    error: Option<Error>,
    /// Whether a fault was injected into one of the node's own cards.
    has_own_fault: bool,
    violations: Vec<Violation>,
}

impl Nodes {
    /// Nodes of this topology. A run makes them.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            budget: Duration::from_secs(60),
            off: Vec::new(),
        }
    }

    /// Sets how long the other nodes may run after the first one has ended, and how long the first
    /// one may run once every node has its devices.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
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

    /// Runs the code of each node under the node's plan, and checks the invariants. `seed` is that
    /// of the mocks.
    ///
    /// The rules of NIC events are those of each NIC of the node, the others those of each card. A
    /// node without a plan has no faults.
    ///
    /// # Errors
    /// Those of making the nodes.
    ///
    /// # Panics
    /// If there is not one closure for each node.
    pub fn run(&self, plans: &[Plan], seed: u64, code: Vec<Code<'_>>) -> Result<NodesOutcome> {
        assert_eq!(code.len(), self.topology.nodes, "one closure for each node");
        let plan_of = |node: usize| plans.get(node).cloned().unwrap_or_default();
        let (seats, wires) = self.seats(&plan_of)?;
        let nic_faults: Vec<NicFaults> = seats
            .iter()
            .flat_map(|seat| seat.nics.iter().map(|nic| nic.faults()))
            .collect();
        let (events, seen) = channel();
        // Of the calling thread, which may log nothing.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let mut violations = Vec::new();
        let all: Vec<Result<End>> = thread::scope(|scope| {
            let spawn = |(number, (seat, code))| {
                let (plan, events) = (plan_of(number), events.clone());
                let cards = self.topology.cards;
                let log = log.clone();
                let run = move || run_node(number, cards, seat, &plan, seed, code, &events);
                scope.spawn(move || tracing::dispatcher::with_default(&log, run))
            };
            let running: Vec<_> = seats.into_iter().zip(code).enumerate().map(spawn).collect();
            violations.extend(self.watch(&seen, &wires));
            let join = |running: thread::ScopedJoinHandle<'_, Result<End>>| {
                running
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        let all = all.into_iter().collect::<Result<Vec<End>>>()?;
        let mut outcome = NodesOutcome::default();
        outcome.count_nics(&nic_faults);
        let has_fault = !outcome.nic_fired.is_empty() || all.iter().any(|end| end.has_own_fault);
        for (number, end) in all.into_iter().enumerate() {
            let judged = judge(end.error.as_ref(), has_fault, end.has_own_fault);
            let of_cards = end.cards.iter().flat_map(|card| card.violations.clone());
            for violation in end.violations.into_iter().chain(judged).chain(of_cards) {
                let what = format!("node {number}: {}", violation.what);
                violations.push(Violation { what, ..violation });
            }
            end.cards.iter().for_each(|card| outcome.add_unfired(card));
            outcome.cards.extend(end.cards);
            outcome.errors.push(end.error);
        }
        violations.retain(|violation| !self.off.contains(&violation.invariant));
        outcome.violations = violations;
        Ok(outcome)
    }

    /// Makes the NICs, the cables and the streams. Returns them, and a clone of each cable and
    /// stream.
    fn seats(&self, plan_of: &dyn Fn(usize) -> Plan) -> Result<(Vec<Seat>, Vec<UnixStream>)> {
        let failed = |error: std::io::Error| Error::from_errno("socketpair", gaudi_sys::fd::errno_of(error));
        let Topology { nodes, nics, .. } = self.topology;
        let make = |node: usize| {
            let config = SoftNicConfig {
                faults: plan_of(node),
                stall_timeout: Duration::from_secs(2),
                ..SoftNicConfig::default()
            };
            let nics = (0..nics).map(|nic| SoftNic::unplugged(&format!("nic{nic}"), config.clone()));
            Ok(Seat {
                nics: nics.collect::<Result<_>>()?,
                streams: (0..nodes).map(|_| None).collect(),
            })
        };
        let mut seats = (0..nodes).map(make).collect::<Result<Vec<_>>>()?;
        let mut wires = Vec::new();
        for one in 0..nodes {
            for other in one + 1..nodes {
                for nic in 0..nics {
                    let (a, b) = UnixStream::pair().map_err(failed)?;
                    wires.push(a.try_clone().map_err(failed)?);
                    seats[one].nics[nic].plug(a)?;
                    seats[other].nics[nic].plug(b)?;
                }
                let (a, b) = UnixStream::pair().map_err(failed)?;
                wires.push(a.try_clone().map_err(failed)?);
                seats[one].streams[other] = Some(a);
                seats[other].streams[one] = Some(b);
            }
        }
        Ok((seats, wires))
    }

    /// Waits until every node has ended. Reports those that do not end in time, and cuts their
    /// connections so that they do.
    fn watch(&self, events: &Receiver<Event>, wires: &[UnixStream]) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut running: Vec<usize> = (0..self.topology.nodes).collect();
        // The nodes that still make their devices, which takes long on a busy machine.
        let mut waiting = running.clone();
        let mut begin = Instant::now();
        let mut is_cut = false;
        while !running.is_empty() {
            let event = match waiting.is_empty() && !is_cut {
                true => events.recv_timeout(self.budget.saturating_sub(begin.elapsed())),
                false => events.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Begun(number)) => {
                    waiting.retain(|&other| other != number);
                    begin = Instant::now();
                }
                Ok(Event::Ended(number)) => {
                    if running.len() == self.topology.nodes {
                        begin = Instant::now();
                    }
                    running.retain(|&other| other != number);
                    // It may not have begun.
                    waiting.retain(|&other| other != number);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (invariant, since) = match running.len() == self.topology.nodes {
                        true => (Invariant::TimeBudget, "the start"),
                        false => (Invariant::PeersEnd, "the end of another node"),
                    };
                    let what = format!("nodes {running:?} still run {:?} after {since}", self.budget);
                    violations.push(Violation { invariant, what });
                    for wire in wires {
                        // Fails if the other end has closed it.
                        let _ = wire.shutdown(Shutdown::Both);
                    }
                    is_cut = true;
                }
                // Every thread has ended.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        violations
    }
}

/// An error needs a fault, and an error of the card a fault of a card of this node.
pub(crate) fn judge(error: Option<&Error>, has_fault: bool, has_own_fault: bool) -> Option<Violation> {
    let error = error?;
    let is_of_card = matches!(
        error.kind(),
        ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Hung
    );
    let what = match (has_fault, is_of_card && !has_own_fault) {
        (false, _) => format!("the code failed, and no fault was injected into any node: {error}"),
        (true, true) => format!("the error of another node's card is reported as this node's: {error}"),
        (true, false) => return None,
    };
    let invariant = Invariant::TruthfulErrors;
    Some(Violation { invariant, what })
}

/// Reports the end of a node's code, also if it never began, and hangs up its streams.
struct Goodbye<'a> {
    number: usize,
    streams: Vec<UnixStream>,
    events: &'a Sender<Event>,
}

impl Drop for Goodbye<'_> {
    fn drop(&mut self) {
        for stream in &self.streams {
            // Fails if the other end has closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Fails only if nothing waits for the node.
        let _ = self.events.send(Event::Ended(self.number));
    }
}

fn run_node(
    number: usize,
    cards: usize,
    seat: Seat,
    plan: &Plan,
    seed: u64,
    code: Code<'_>,
    events: &Sender<Event>,
) -> Result<End> {
    let streams = seat.streams.iter().flatten();
    let mut goodbye = Some(Goodbye {
        number,
        streams: streams.filter_map(|stream| stream.try_clone().ok()).collect(),
        events,
    });
    let mut end = End {
        cards: Vec::new(),
        error: None,
        has_own_fault: false,
        violations: Vec::new(),
    };
    let make = |card: usize| {
        World::with_descriptors(&card_spec(card)).map(|world| world.in_real_time().inside(card > 0))
    };
    let worlds = (0..cards).map(make).collect::<Result<Vec<_>>>();
    let mut code = Some(code);
    let mut seat = Some(seat);
    let mut outcomes = Vec::new();
    let ran = worlds.and_then(|mut worlds| {
        let End {
            error,
            has_own_fault,
            violations,
            ..
        } = &mut end;
        nest(&mut worlds, seed, &[], &mut outcomes, &mut |runs| {
            // Each is used in the innermost call, of which there is one.
            let (Some(seat), Some(code)) = (seat.take(), code.take()) else {
                return Ok(());
            };
            let canaries = runs.iter().map(|run| Canaries::new(run.device));
            let canaries = canaries.collect::<Result<Vec<_>>>()?;
            runs.iter().for_each(|run| run.arm(plan));
            // Fails only if nothing waits for the node.
            let _ = events.send(Event::Begun(number));
            *error = run_code(number, seat, runs, code, violations);
            goodbye.take();
            *has_own_fault |= end_cards(runs, canaries);
            Ok(())
        })
    });
    outcomes.reverse();
    end.cards = outcomes;
    ran.map(|()| end)
}

/// Disarms the plans of cards, and checks the canaries. Returns whether a card had a fault.
pub(crate) fn end_cards(runs: &[&Run<'_>], canaries: Vec<Canaries>) -> bool {
    let mut has_fault = false;
    for (run, canaries) in runs.iter().zip(canaries) {
        let record = run.record.lock();
        has_fault |= !record.met.is_empty() || run.has_fired() || record.was_reset;
        let trusts = !record.false_end && !record.work_failed;
        drop(record);
        run.disarm();
        if trusts {
            canaries.check(run);
        }
    }
    has_fault
}

/// The device of a card.
pub(crate) fn card_spec(card: usize) -> DeviceSpec {
    let spec = format!("{DEVICE}&index={card}");
    spec.parse()
        .unwrap_or_else(|error| unreachable!("{spec}: {error}"))
}

/// Runs the code. Returns its error.
fn run_code(
    number: usize,
    seat: Seat,
    runs: &[&Run<'_>],
    code: Code<'_>,
    violations: &mut Vec<Violation>,
) -> Option<Error> {
    let contexts = seat.nics.iter().map(|nic| {
        let nic: Arc<SoftNic> = Arc::clone(nic);
        Context::open(nic)
    });
    let contexts: Vec<Context> = match contexts.collect::<Result<_>>() {
        Ok(contexts) => contexts,
        Err(error) => return Some(error),
    };
    let mut node = Node {
        number,
        devices: runs.iter().map(|run| run.device).collect(),
        nics: contexts,
        streams: seat.streams,
    };
    let quiet = Quiet::begin();
    let answer = catch_unwind(AssertUnwindSafe(|| code(&mut node)));
    drop(quiet);
    close_nics(&mut node, violations);
    error_of(answer, violations)
}

/// Closes the NICs of a node whose code has ended.
pub(crate) fn close_nics(node: &mut Node<'_>, violations: &mut Vec<Violation>) {
    for (nic, context) in node.nics.drain(..).enumerate() {
        if let Err(failed) = context.close() {
            let (context, error) = failed.into_parts();
            drop(context);
            let what = format!("NIC {nic} is still held after the run: {error}");
            let invariant = Invariant::Leaks;
            violations.push(Violation { invariant, what });
        }
    }
}

/// The error of code that ended, or a panic as a violation.
pub(crate) fn error_of(answer: thread::Result<Result<()>>, violations: &mut Vec<Violation>) -> Option<Error> {
    match answer {
        Ok(answer) => answer.err(),
        Err(panic) => {
            let what = message(&*panic);
            let invariant = Invariant::Panics;
            violations.push(Violation { invariant, what });
            None
        }
    }
}

/// The innermost code of [`nest`].
type OnCards<'a> = &'a mut dyn FnMut(&[&Run<'_>]) -> Result<()>;

/// Runs code on all cards. The innermost card's outcome is the first.
pub(crate) fn nest(
    worlds: &mut [World],
    seed: u64,
    outer: &[&Run<'_>],
    outcomes: &mut Vec<Outcome>,
    code: OnCards<'_>,
) -> Result<()> {
    let Some((first, rest)) = worlds.split_first_mut() else {
        return code(outer);
    };
    let outcome = first.run_with(seed, |run| {
        let runs: Vec<&Run<'_>> = outer.iter().copied().chain([run]).collect();
        nest(rest, seed, &runs, outcomes, code)
    })?;
    outcomes.push(outcome);
    Ok(())
}
