//! Nodes in memory: random requests of queue pairs break no invariant, and runs repeat.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_device::{Deadline, Error, ErrorKind, Result};
use gaudi_faults::{Case, Coverage, Invariant, MemoryNodes, Node, NodesOutcome, Stack, Topology};
use gaudi_seam::RawMapping;
use gaudi_seam::fault::Plan;
use gaudi_verbs::{Access, Cq, Mr, Qp, QpInit, WcStatus, WorkCompletion};
use proptest::test_runner::{Config, RngSeed};

mod common;

use common::cases_and_seed;

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 1500;
/// Bytes that a node writes to another one.
const LEN: usize = 300;
const WAIT: Duration = Duration::from_secs(30);

#[test]
fn requests_break_no_invariant() {
    let (cases, seed) = cases_and_seed(CASES);
    let mut stack = Stack::default();
    let (mut faulty, mut coverage, begin) = (0, Coverage::default(), Instant::now());
    for number in 0..cases {
        let case = Case::on_fabric(seed, number);
        let outcome = stack.run(&case).expect("nodes are made");
        if let Some(violation) = outcome.violations.first() {
            let violation = violation.to_string();
            let (smallest, _) = stack.reduce(case, outcome);
            panic!("seed {seed} case {number}: {violation}\n{smallest}");
        }
        coverage.add(&outcome);
        faulty += u64::from(outcome.has_fault());
    }
    let rate = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    let pairs = coverage.nic_pairs();
    let can_meet = pairs.iter().filter(|pair| pair.never.is_none());
    let missing: Vec<_> = can_meet.filter(|pair| pair.runs == 0).collect();
    println!("seed={seed} cases={cases} with faults={faulty}; {rate:.0} a minute");
    assert!(
        faulty * 4 >= cases * 3 || cases < CASES,
        "faults in {faulty} of {cases} cases"
    );
    assert!(missing.is_empty() || cases < CASES, "{missing:#?}");
}

/// A node's objects. Fields drop in this order.
struct Seat {
    qps: Vec<Qp>,
    mr: Mr,
    cq: Cq,
    memory: Arc<RawMapping>,
}

impl Seat {
    /// Registers bytes that come from the card, and as many for each peer.
    fn new(node: &Node<'_>, peers: usize) -> Result<Self> {
        let pd = node.nic(0).alloc_pd()?;
        let cq = node.nic(0).create_cq(64)?;
        let memory = RawMapping::anonymous((1 + peers) * LEN, false);
        let memory = Arc::new(memory.map_err(|errno| Error::from_errno("mmap", errno))?);
        let (device, mut seen) = (node.device(0), [0; LEN]);
        let buffer = device.alloc(LEN as u64)?;
        device.write(&buffer, 0, &[node.number() as u8 + 1; LEN])?;
        device.read(&buffer, 0, &mut seen)?;
        memory.write(0, &seen).expect("in range");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mapping(Arc::clone(&memory), access)?;
        let qps = (0..peers).map(|_| pd.create_qp(&QpInit::new(&cq)));
        Ok(Self {
            qps: qps.collect::<Result<_>>()?,
            mr,
            cq,
            memory,
        })
    }
}

/// A completion: node, request and status.
type Completed = (usize, u64, WcStatus);

/// Each node writes its bytes to each other one, `rounds` times.
fn write_to_all(nodes: &mut [Node<'_>], rounds: usize, completed: &mut Vec<Completed>) -> Result<()> {
    let count = nodes.len();
    let seats = nodes.iter().map(|node| Seat::new(node, count - 1));
    let mut seats = seats.collect::<Result<Vec<_>>>()?;
    let addresses = |seat: &Seat| seat.qps.iter().map(Qp::address).collect::<Result<Vec<_>>>();
    let addresses = seats.iter().map(addresses).collect::<Result<Vec<_>>>()?;
    for (node, seat) in seats.iter_mut().enumerate() {
        for (index, qp) in seat.qps.iter_mut().enumerate() {
            let peer = (node + index + 1) % count;
            qp.connect(&addresses[peer][count - 2 - index], Access::REMOTE_WRITE)?;
        }
    }
    let places: Vec<_> = seats.iter().map(|seat| seat.mr.remote()).collect();
    for round in 0..rounds {
        for (node, seat) in seats.iter_mut().enumerate() {
            for (index, qp) in seat.qps.iter_mut().enumerate() {
                let peer = (node + index + 1) % count;
                let part = ((count - 1 - index) * LEN) as u64;
                let (local, far) = ([seat.mr.sge(0, LEN as u32)?], places[peer].at(part, LEN as u64)?);
                let number = (round * count + index) as u64;
                qp.post_send(number).write(&local, far).post()?;
            }
        }
    }
    for (node, seat) in seats.iter().enumerate() {
        // A completion may be reported twice.
        let mut ended = BTreeSet::new();
        while ended.len() < rounds * (count - 1) {
            let mut wc = [WorkCompletion::EMPTY; 4];
            let found = seat.cq.wait(&mut wc, WAIT)?;
            completed.extend(wc[..found].iter().map(|wc| (node, wc.wr_id, wc.status)));
            ended.extend(wc[..found].iter().map(|wc| wc.wr_id));
        }
    }
    if let Some(failed) = completed.iter().find(|one| one.2 != WcStatus::SUCCESS) {
        return Err(Error::new(ErrorKind::Io, "test").saw(failed.2, WcStatus::SUCCESS));
    }
    for (node, seat) in seats.iter().enumerate() {
        let mut seen = vec![0; count * LEN];
        seat.memory.read(0, &mut seen).expect("in range");
        for (distance, part) in seen.chunks(LEN).enumerate() {
            let from = (node + distance) % count;
            assert!(
                part.iter().all(|&byte| byte == from as u8 + 1),
                "{node} from {from}"
            );
        }
    }
    Ok(())
}

#[test]
fn one_seed_repeats_frames_completions_and_faults() {
    let topology = Topology {
        nodes: 3,
        ..Topology::PAIR
    };
    let mut nodes = MemoryNodes::new(topology).expect("memory");
    let plan = |text: &str| text.parse::<Plan>().expect("a plan");
    let plans = [
        plan("nic.packet:when=3:lose;nic.completion:when=2:delay=3ms"),
        plan("nic.packet:when=2:reorder;submit:when=1:delay=1ms"),
        plan("nic.packet:when=4:duplicate"),
    ];
    let mut all = |seed: u64| -> (_, Vec<Completed>) {
        let mut completed = Vec::new();
        let outcome = nodes.run(&plans, seed, |nodes| write_to_all(nodes, 4, &mut completed));
        let NodesOutcome {
            violations,
            unfired,
            errors,
            steps,
            ..
        } = outcome.expect("nodes are made");
        assert!(violations.is_empty(), "{violations:?}");
        assert!(unfired.is_empty(), "{errors:?} {unfired:?}");
        (steps, completed)
    };
    let first = all(1);
    assert!(first.0.len() > 60, "{} steps", first.0.len());
    assert!(first == all(1), "two runs with one seed differ");
    let others: Vec<_> = (2..8).map(&mut all).collect();
    assert!(
        others.iter().all(|other| other.0 != first.0),
        "a seed chooses the order of frames"
    );
    assert!(
        others.iter().any(|other| other.1 != first.1),
        "and that of completions"
    );
    assert!(first == all(1), "an earlier run changes a later one");
}

#[test]
fn shrunk_failure_needs_one_loss() {
    let mut nodes = MemoryNodes::new(Topology::PAIR).expect("memory");
    let config = Config {
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..Config::default()
    };
    // A defect: the code does not expect that a completion is lost.
    let failure = nodes.find(config, 1_usize..6, |nodes, &rounds| {
        let answer = write_to_all(nodes, rounds, &mut Vec::new());
        let is_late = |error: &Error| error.kind() == ErrorKind::TimedOut;
        assert!(!answer.as_ref().is_err_and(is_late), "a completion is missing");
        answer
    });
    let failure = failure.expect("some case loses a completion");
    let (_, rounds) = failure.input.as_ref().expect("a run was possible");
    let rules: usize = failure.plans.iter().map(|plan| plan.rules.len()).sum();
    assert!(failure.why.contains("a completion is missing"), "{failure}");
    assert_eq!((*rounds, rules), (1, 1), "{failure}");
    assert!(failure.to_string().contains("nic.completion"), "{failure}");
}

#[test]
fn error_without_fault_is_reported() {
    let mut nodes = MemoryNodes::new(Topology::PAIR).expect("memory");
    let fails = |_: &mut [Node<'_>]| Err(Error::new(ErrorKind::Io, "test"));
    let outcome = nodes.run(&[], 0, fails).expect("nodes are made");
    let found: Vec<Invariant> = outcome.violations.iter().map(|one| one.invariant).collect();
    assert_eq!(found, [Invariant::TruthfulErrors]);
}

#[test]
fn held_objects_and_panics_are_reported() {
    let mut nodes = MemoryNodes::new(Topology::PAIR).expect("memory");
    let mut kept = None;
    let outcome = nodes.run(&[], 0, |nodes| {
        kept = Some(nodes[1].nic(0).alloc_pd()?);
        let buffer = nodes[0].device(0).alloc(64)?;
        nodes[0].device(0).fill(&buffer, 1)?.wait(Deadline::NEVER)?;
        panic!("a defect of the code")
    });
    let outcome = outcome.expect("nodes are made");
    let broken = |invariant, text: &str| {
        let is_it = |one: &gaudi_faults::Violation| one.invariant == invariant && one.what.contains(text);
        outcome.violations.iter().any(is_it)
    };
    assert!(
        broken(Invariant::Leaks, "node 1: NIC 0"),
        "{:?}",
        outcome.violations
    );
    assert!(broken(Invariant::Panics, "a defect"), "{:?}", outcome.violations);
}
