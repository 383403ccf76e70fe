//! Nodes with cards and NICs under faults: random transfers break no invariant, and code with a
//! defect breaks the one that names it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use gaudi_device::{Deadline, Error, ErrorKind};
use gaudi_faults::{Case, Code, Coverage, Invariant, Node, Nodes, NodesOutcome, Stack, Topology, strategies};
use gaudi_remote::{Endpoint, EndpointOptions, Nic, Rights};
use gaudi_seam::fault::Plan;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

mod common;

use common::cases_and_seed;

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 200;
const MAX_WAIT: Duration = Duration::from_secs(30);

#[test]
fn transfers_break_no_invariant() {
    let (cases, seed) = cases_and_seed(CASES);
    let mut stack = Stack::default();
    let (mut faulty, mut of_nic, begin) = (0, 0, Instant::now());
    let mut coverage = Coverage::default();
    for number in 0..cases {
        let case = Case::between_nodes(seed, number);
        let outcome = stack.run(&case).expect("nodes are made");
        if let Some(violation) = outcome.violations.first() {
            let violation = violation.to_string();
            let (smallest, _) = stack.reduce(case, outcome);
            panic!("seed {seed} case {number}: {violation}\n{smallest}");
        }
        coverage.add(&outcome);
        of_nic += u64::from(!outcome.nic_fired.is_empty());
        faulty += u64::from(outcome.has_fault());
    }
    let rate = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    println!("seed={seed} cases={cases} with faults={faulty}, of a NIC={of_nic}; {rate:.0} a minute");
    assert!(
        faulty * 4 >= cases * 3 || cases < CASES,
        "faults in {faulty} of {cases} cases"
    );
    assert!(
        of_nic * 4 >= cases || cases < CASES,
        "faults of a NIC in {of_nic} of {cases} cases"
    );
}

/// Runs two nodes.
fn pair(plans: [&str; 2], nodes: Nodes, first: Code<'_>, second: Code<'_>) -> NodesOutcome {
    let plans = plans.map(|plan| plan.parse::<Plan>().expect("a plan"));
    nodes.run(&plans, 0, vec![first, second]).expect("nodes are made")
}

fn breaks(outcome: &NodesOutcome, invariant: Invariant, text: &str) {
    let is_it = |violation: &gaudi_faults::Violation| {
        violation.invariant == invariant && violation.what.contains(text)
    };
    let found = &outcome.violations;
    assert!(found.iter().any(is_it), "{invariant}, {text:?}: {found:#?}");
}

/// Fills memory of the first card, which meets rules for submissions.
fn fill(node: &mut Node<'_>) -> gaudi_device::Result<()> {
    let buffer = node.device(0).alloc(64)?;
    node.device(0).fill(&buffer, 1)?.wait(Deadline::NEVER)
}

#[test]
fn node_that_outlives_its_peer_is_reported() {
    let nodes = Nodes::new(Topology::PAIR).with_budget(Duration::from_millis(100));
    let waits = |node: &mut Node<'_>| {
        let mut stream = node.take_stream(1);
        // It waits for a peer that has ended, and ignores the hang-up.
        while std::io::Read::read(&mut stream, &mut [0]).is_ok_and(|count| count > 0) {}
        std::thread::sleep(Duration::from_millis(400));
        Ok(())
    };
    let outcome = pair(["", ""], nodes, Box::new(waits), Box::new(|_| Ok(())));
    breaks(&outcome, Invariant::PeersEnd, "nodes [0] still run");
}

#[test]
fn nodes_that_do_not_end_are_reported() {
    let nodes = Nodes::new(Topology::PAIR).with_budget(Duration::from_millis(100));
    let reads = |other: usize| -> Code<'static> {
        Box::new(move |node: &mut Node<'_>| {
            // Both wait for the other one's bytes, until the run cuts their stream.
            let mut stream = node.take_stream(other);
            let count = std::io::Read::read(&mut stream, &mut [0]);
            assert_eq!(count.expect("a hang-up"), 0);
            Ok(())
        })
    };
    let outcome = pair(["", ""], nodes, reads(1), reads(0));
    breaks(&outcome, Invariant::TimeBudget, "nodes [0, 1] still run");
}

#[test]
fn error_without_fault_is_reported() {
    let fails = |_: &mut Node<'_>| Err(Error::new(ErrorKind::Io, "test"));
    let outcome = pair(
        ["", ""],
        Nodes::new(Topology::PAIR),
        Box::new(fails),
        Box::new(fill),
    );
    breaks(&outcome, Invariant::TruthfulErrors, "node 0: the code failed");
    assert!(!outcome.has_fault());
}

#[test]
fn error_of_other_card_is_reported() {
    let fails = |node: &mut Node<'_>| {
        let mut stream = node.take_stream(1);
        while std::io::Read::read(&mut stream, &mut [0]).is_ok_and(|count| count > 0) {}
        Err(Error::new(ErrorKind::DeviceLost, "test"))
    };
    let plans = ["", "submit:when=1:reset"];
    let outcome = pair(plans, Nodes::new(Topology::PAIR), Box::new(fails), Box::new(fill));
    let second = outcome.errors[1].as_ref().expect("its submission fails");
    assert_eq!(second.kind(), ErrorKind::DeviceLost, "{second}");
    breaks(
        &outcome,
        Invariant::TruthfulErrors,
        "node 0: the error of another node's card",
    );
    assert_eq!(outcome.violations.len(), 1, "{:?}", outcome.violations);
}

#[test]
fn held_objects_of_nic_are_reported() {
    let kept = Mutex::new(None);
    let keeps = |node: &mut Node<'_>| {
        *kept.lock().expect("no panic") = Some(node.nic(0).alloc_pd()?);
        Ok(())
    };
    let outcome = pair(
        ["", ""],
        Nodes::new(Topology::PAIR),
        Box::new(keeps),
        Box::new(fill),
    );
    breaks(&outcome, Invariant::Leaks, "node 0: NIC 0 is still held");
}

#[test]
fn panic_of_node_is_reported() {
    let panics = |_: &mut Node<'_>| panic!("a property of the code");
    let outcome = pair(
        ["", ""],
        Nodes::new(Topology::PAIR),
        Box::new(panics),
        Box::new(fill),
    );
    breaks(&outcome, Invariant::Panics, "node 0: a property of the code");
}

/// Node 1 panics at a large value whose fill is refused.
#[test]
fn failure_of_nodes_shrinks_input_and_plans() {
    let code = |node: &mut Node<'_>, values: &Vec<u8>| {
        let buffer = node.device(0).alloc(64)?;
        for &value in values {
            let filled = node.device(0).fill(&buffer, value);
            assert!(node.number() == 0 || value < 50 || filled.is_ok(), "the defect");
            filled?.wait(Deadline::NEVER)?;
        }
        Ok(())
    };
    let config = Config {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    };
    let input = proptest::collection::vec(0_u8..100, 0..8);
    let failure = Nodes::new(Topology::PAIR).find(config, input, code);
    let failure = failure.expect("the defect is found");
    println!("{failure}");
    assert!(failure.why.contains("panics: node 1: the defect"), "{failure}");
    let rules: Vec<usize> = failure.plans.iter().map(|plan| plan.rules.len()).collect();
    assert_eq!(rules, [0, 1], "one rule of the node: {failure}");
    assert_eq!(failure.input.as_deref(), Some(&[50][..]), "{failure}");
}

#[test]
fn invariant_is_switched_off_by_name() {
    let fails = |_: &mut Node<'_>| Err(Error::new(ErrorKind::Io, "test"));
    let nodes = Nodes::new(Topology::PAIR).without(Invariant::TruthfulErrors);
    let outcome = pair(["", ""], nodes, Box::new(fails), Box::new(fill));
    assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
}

/// Sends the bytes of each card to the next node, over each NIC in turn.
fn send_to_next(node: &mut Node<'_>, topology: Topology) -> gaudi_device::Result<()> {
    let Topology { nodes, cards, nics } = topology;
    let (next, before) = ((node.number() + 1) % nodes, (node.number() + nodes - 1) % nodes);
    for card in 0..cards {
        let device = node.device(card);
        let buffer = device.alloc_exclusive(4096)?;
        device.fill(&buffer, 7)?.wait(Deadline::NEVER)?;
        assert!(
            card == 0 || !std::ptr::eq(device, node.device(0)),
            "each card is its own"
        );
    }
    if next == node.number() {
        return Ok(());
    }
    let device = node.device(cards - 1).clone();
    let nic = Nic::new(node.nic(nics - 1))?;
    // With two nodes one stream leads to both neighbours, so only the first node sends.
    let sends = next != before || node.number() == 0;
    let receives = next != before || node.number() != 0;
    let options = EndpointOptions::default();
    let receiver = receives.then(|| node.take_stream(before));
    let sender = sends.then(|| node.take_stream(next));
    std::thread::scope(|scope| {
        let received = receiver.map(|stream| {
            let (device, nic, options) = (device.clone(), nic.clone(), options.clone());
            scope.spawn(move || {
                let mut endpoint = Endpoint::over(stream, &nic, Some(&device), options)?;
                let buffer = device.alloc_exclusive(4096)?;
                device.fill(&buffer, 0)?.wait(Deadline::NEVER)?;
                endpoint.offer(&buffer, Rights::BOTH)?;
                endpoint.receive_offer(MAX_WAIT)?;
                let mut seen = vec![0; 4096];
                device.read(&buffer, 0, &mut seen)?;
                assert!(seen.iter().all(|&byte| byte == 9), "the peer's bytes arrive");
                endpoint.offer(&buffer, Rights::BOTH).map(drop)
            })
        });
        if let Some(stream) = sender {
            let mut endpoint = Endpoint::over(stream, &nic, Some(&device), options)?;
            let remote = endpoint.receive_offer(MAX_WAIT)?;
            endpoint.put_bytes(&[9; 4096], &remote, MAX_WAIT)?;
            let end = device.alloc_host(1)?;
            endpoint.offer(&end, Rights::PUT)?;
            // The peer offers again when it has compared the bytes.
            endpoint.receive_offer(MAX_WAIT)?;
        }
        received.map_or(Ok(()), |thread| thread.join().expect("no panic"))
    })
}

#[test]
fn every_topology_transfers_without_faults() {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(6)
    });
    let answer = runner.run(&strategies::topologies(), |topology| {
        let code = (0..topology.nodes)
            .map(|_| -> Code<'static> { Box::new(move |node: &mut Node<'_>| send_to_next(node, topology)) });
        let outcome = Nodes::new(topology)
            .run(&[], 0, code.collect())
            .expect("nodes are made");
        prop_assert!(
            outcome.violations.is_empty(),
            "{topology:?}: {:#?}",
            outcome.violations
        );
        prop_assert_eq!(outcome.cards.len(), topology.nodes * topology.cards);
        Ok(())
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

/// A subscriber that its caller knows by its type.
struct Silent;

impl tracing::Subscriber for Silent {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn nodes_log_as_their_caller() {
    let code = || -> Code<'static> {
        Box::new(|_: &mut Node<'_>| {
            assert!(tracing::dispatcher::get_default(|log| log.is::<Silent>()));
            Ok(())
        })
    };
    tracing::subscriber::with_default(Silent, || {
        let outcome = pair(["", ""], Nodes::new(Topology::PAIR), code(), code());
        assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    });
}
