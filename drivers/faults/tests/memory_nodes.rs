//! Nodes in memory: random RDMA operations against a reference under random faults, and runs that
//! repeat.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_device::{Deadline, Error, ErrorKind, Result};
use gaudi_faults::{Invariant, MemoryNodes, Node, NodesOutcome, Topology, strategies};
use gaudi_seam::RawMapping;
use gaudi_seam::fault::{NicEvent, Plan, Target, Verdict};
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{Access, Cq, Mr, Mtu, Qp, QpAddress, QpInit, WcStatus, WorkCompletion};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

mod common;

use common::cases_and_seed;

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 1500;
/// Bytes of an operation's place in memory.
const SLOT: usize = 512;
/// The most operations of a case.
const MOST: usize = 12;
/// Bytes of a part of a node's memory: what it sends, what it receives or reads, what others write.
const PART: usize = MOST * SLOT;
/// The word that atomics of others add to.
const COUNTER: usize = 3 * PART;
const BYTES: usize = COUNTER + 4096;
const FULL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
const WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    WriteImm,
    Read,
    Send,
    Inline,
    FetchAdd,
}

/// An operation of a node on the one that follows it by `ahead`.
#[derive(Debug, Clone, Copy)]
struct Post {
    operation: Operation,
    node: usize,
    ahead: usize,
    len: usize,
}

fn posts(nodes: usize) -> impl Strategy<Value = Vec<Post>> {
    let operation = prop_oneof![
        Just(Operation::Write),
        Just(Operation::WriteImm),
        Just(Operation::Read),
        Just(Operation::Send),
        Just(Operation::Inline),
        Just(Operation::FetchAdd),
    ];
    let post = (operation, 0..nodes, 1..nodes, 0..=SLOT);
    let post = post.prop_map(|(operation, node, ahead, len)| Post {
        operation,
        node,
        ahead,
        len: if operation == Operation::Inline {
            len.min(64)
        } else {
            len
        },
    });
    vec(post, 1..=MOST)
}

/// A node's objects. Fields drop in this order.
struct Seat {
    /// To each other node, by its distance from 1.
    qps: Vec<Qp>,
    mr: Mr,
    cq: Cq,
    memory: Arc<RawMapping>,
}

/// What a node sends: no byte is 0.
fn sent(node: usize, at: usize) -> u8 {
    ((node * 71 + at * 13) % 255 + 1) as u8
}

impl Seat {
    fn new(node: &Node<'_>, peers: usize) -> Result<Self> {
        let pd = node.nic(0).alloc_pd()?;
        let cq = node.nic(0).create_cq(256)?;
        let memory =
            Arc::new(RawMapping::anonymous(BYTES, false).map_err(|errno| Error::from_errno("mmap", errno))?);
        // From the card, through host memory.
        let bytes: Vec<u8> = (0..PART).map(|at| sent(node.number(), at)).collect();
        let (device, mut seen) = (node.device(0), vec![0; PART]);
        let buffer = device.alloc(PART as u64)?;
        device.write(&buffer, 0, &bytes)?;
        device.read(&buffer, 0, &mut seen)?;
        memory.write(0, &seen).expect("in range");
        let mr = pd.reg_mapping(Arc::clone(&memory), FULL)?;
        let mut init = QpInit::new(&cq);
        init.max_inline_data = 64;
        let qps = (0..peers).map(|_| pd.create_qp(&init)).collect::<Result<_>>()?;
        Ok(Self { qps, mr, cq, memory })
    }
}

fn connect(qp: &mut Qp, remote: QpAddress) -> Result<()> {
    let own = qp.address()?;
    qp.modify(&QpTransition::Init { access: FULL })?;
    qp.modify(&QpTransition::ReadyToReceive {
        remote,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 16,
        min_rnr_timer: Duration::from_millis(1),
    })?;
    qp.modify(&QpTransition::ReadyToSend {
        sq_psn: own.psn,
        max_rd_atomic: 16,
        timeout: Duration::from_millis(50),
        retry_cnt: 7,
        rnr_retry: 7,
    })
}

/// The injected changes that a reference must know.
#[derive(Clone, Copy, Default)]
struct Injected {
    /// Bits that frames may lose.
    flips: u32,
    duplicates: bool,
}

fn injected(plans: &[Plan]) -> Injected {
    let rules = plans.iter().flat_map(|plan| &plan.rules);
    let mut all = Injected::default();
    for rule in rules {
        match (rule.target, rule.verdict) {
            (Target::Nic(NicEvent::Packet), Verdict::Flip(_)) => all.flips += 1,
            (Target::Nic(NicEvent::Completion), Verdict::Duplicate) => all.duplicates = true,
            _ => {}
        }
    }
    all
}

/// A completion: node, request and status.
type Completed = (usize, u64, WcStatus);

/// Performs the operations, and compares every byte with the reference.
fn perform(
    nodes: &mut [Node<'_>],
    posts: &[Post],
    injected: Injected,
    completed: &mut Vec<Completed>,
) -> Result<()> {
    let count = nodes.len();
    let mut seats = nodes
        .iter()
        .map(|node| Seat::new(node, count - 1))
        .collect::<Result<Vec<_>>>()?;
    let address = |seat: &Seat| seat.qps.iter().map(Qp::address).collect::<Result<Vec<_>>>();
    let addresses = seats.iter().map(address).collect::<Result<Vec<_>>>()?;
    for (node, seat) in seats.iter_mut().enumerate() {
        for (index, qp) in seat.qps.iter_mut().enumerate() {
            let peer = (node + index + 1) % count;
            connect(qp, addresses[peer][count - 2 - index])?;
        }
    }
    // Receives, in the order in which the messages of each queue pair take them.
    let mut received: Vec<(usize, usize, usize)> = Vec::new();
    for (number, post) in posts.iter().enumerate() {
        let peer = (post.node + post.ahead) % count;
        if matches!(
            post.operation,
            Operation::Send | Operation::Inline | Operation::WriteImm
        ) {
            let seat = &mut seats[peer];
            let into = seat.mr.sge((PART + number * SLOT) as u64, SLOT as u32)?;
            seat.qps[count - 1 - post.ahead]
                .post_recv(100 + number as u64)
                .post(&[into])?;
            received.push((peer, number, post.node));
        }
    }
    for (number, post) in posts.iter().enumerate() {
        let peer = (post.node + post.ahead) % count;
        let there = seats[peer].mr.remote();
        let seat = &mut seats[post.node];
        let (at, len) = (number * SLOT, post.len as u32);
        let local = [seat.mr.sge(at as u64, len)?];
        let into = [seat.mr.sge((PART + at) as u64, len)?];
        let old = seat.mr.sge((PART + at) as u64, 8)?;
        let inline: Vec<u8> = (at..at + post.len).map(|at| sent(post.node, at)).collect();
        let remote = there.at((2 * PART + at) as u64, len.into())?;
        let send = seat.qps[post.ahead - 1].post_send(number as u64);
        match post.operation {
            Operation::Write => send.write(&local, remote),
            Operation::WriteImm => send.write_imm(&local, remote, number as u32),
            Operation::Read => send.read(&into, there.at(at as u64, len.into())?),
            Operation::Send => send.send(&local),
            Operation::Inline => send.send_inline(&inline),
            Operation::FetchAdd => send.fetch_add(&old, there.at(COUNTER as u64, 8)?, 1),
        }
        .post()?;
    }
    let mut ends: HashMap<(usize, u64), WcStatus> = HashMap::new();
    let mut expected: Vec<(usize, u64)> = posts
        .iter()
        .enumerate()
        .map(|(n, post)| (post.node, n as u64))
        .collect();
    expected.extend(
        received
            .iter()
            .map(|&(peer, number, _)| (peer, 100 + number as u64)),
    );
    let mut failed = Ok(());
    for (node, seat) in seats.iter().enumerate() {
        let is_left = |ends: &HashMap<(usize, u64), WcStatus>| {
            expected
                .iter()
                .any(|key| key.0 == node && !ends.contains_key(key))
        };
        while is_left(&ends) {
            let mut wc = [WorkCompletion::EMPTY; 4];
            let count = match seat.cq.wait(&mut wc, WAIT) {
                Ok(count) => count,
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            };
            for wc in &wc[..count] {
                completed.push((node, wc.wr_id, wc.status));
                let before = ends.insert((node, wc.wr_id), wc.status);
                assert!(expected.contains(&(node, wc.wr_id)), "unknown request: {wc:?}");
                assert!(before.is_none() || injected.duplicates, "two completions: {wc:?}");
                if wc.status != WcStatus::SUCCESS {
                    failed = Err(Error::new(ErrorKind::Io, "test").saw(wc.status, "SUCCESS"));
                }
            }
        }
    }
    let mut flips = injected.flips;
    let mut reference = vec![vec![None; BYTES]; count];
    let mut place = |node: usize, at: usize, len: usize, from: usize, source: usize, is_done: bool| {
        for byte in 0..len {
            reference[node][at + byte] = Some((sent(from, source + byte), is_done));
        }
    };
    for (number, post) in posts.iter().enumerate() {
        let peer = (post.node + post.ahead) % count;
        let is_done = ends.get(&(post.node, number as u64)) == Some(&WcStatus::SUCCESS);
        let at = number * SLOT;
        match post.operation {
            Operation::Write | Operation::WriteImm => {
                place(peer, 2 * PART + at, post.len, post.node, at, is_done);
            }
            Operation::Read => place(post.node, PART + at, post.len, peer, at, is_done),
            Operation::Send | Operation::Inline => place(peer, PART + at, post.len, post.node, at, is_done),
            Operation::FetchAdd => {}
        }
    }
    for (node, seat) in seats.iter().enumerate() {
        let mut seen = vec![0; BYTES];
        seat.memory.read(0, &mut seen).expect("in range");
        check_atomics(posts, node, count, &seats, &ends, &mut seen)?;
        for (at, &byte) in seen.iter().enumerate() {
            let (wanted, may_be_old) = match reference[node][at] {
                Some((byte, is_done)) => (byte, !is_done),
                None if at < PART => (sent(node, at), false),
                None => (0, true),
            };
            if byte != wanted && !(may_be_old && byte == 0) {
                let bits = (byte ^ wanted).count_ones();
                assert!(
                    bits <= flips,
                    "node {node}, byte {at}: {byte:#x}, expected {wanted:#x}"
                );
                flips -= bits;
            }
        }
    }
    failed
}

/// Each atomic that succeeded found another value, and none was performed twice. Clears its words.
fn check_atomics(
    posts: &[Post],
    node: usize,
    count: usize,
    seats: &[Seat],
    ends: &HashMap<(usize, u64), WcStatus>,
    seen: &mut [u8],
) -> Result<()> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let mut found = Vec::new();
    let mut posted = 0;
    for (number, post) in posts.iter().enumerate() {
        if post.operation != Operation::FetchAdd {
            continue;
        }
        let at = PART + number * SLOT;
        if post.node == node {
            seen[at..at + 8].fill(0);
        }
        if (post.node + post.ahead) % count == node {
            posted += 1;
            if ends.get(&(post.node, number as u64)) == Some(&WcStatus::SUCCESS) {
                let mut bytes = [0; 8];
                seats[post.node].memory.read(at, &mut bytes).expect("in range");
                found.push(word(&bytes));
            }
        }
    }
    let total = word(&seen[COUNTER..COUNTER + 8]);
    seen[COUNTER..COUNTER + 8].fill(0);
    let done = found.len() as u64;
    assert!(
        (done..=posted).contains(&total),
        "{total} additions of {posted}, {done} completed"
    );
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len() as u64, done, "two atomics found one value: {found:?}");
    Ok(())
}

/// Everything that a run shows.
fn run(nodes: &mut MemoryNodes, plans: &[Plan], seed: u64, posts: &[Post]) -> (NodesOutcome, Vec<Completed>) {
    let mut completed = Vec::new();
    let injected = injected(plans);
    let outcome = nodes.run(plans, seed, |nodes| {
        perform(nodes, posts, injected, &mut completed)
    });
    (outcome.expect("nodes are made"), completed)
}

fn topology(nodes: usize) -> Topology {
    Topology {
        nodes,
        ..Topology::PAIR
    }
}

#[test]
fn random_operations_match_the_reference() {
    let (cases, seed) = cases_and_seed(CASES);
    let began = Instant::now();
    let (mut faulty, mut of_nic, mut steps, mut runs) = (0_u64, 0_u64, 0, 0_u64);
    for count in [2, 3] {
        let mut nodes = MemoryNodes::new(topology(count)).expect("memory");
        let mut runner = TestRunner::new(Config {
            cases: (cases / 2) as u32,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            ..Config::default()
        });
        // A fault of a card mostly ends the code before its NICs work.
        let rule = prop_oneof![1 => strategies::rule(), 8 => strategies::nic_rule()];
        let plans = vec(vec(rule, 0..=3).prop_map(|rules| Plan { rules }), count);
        let tally = std::cell::RefCell::new((&mut nodes, &mut faulty, &mut of_nic, &mut steps, &mut runs));
        let ran = runner.run(&(plans, any::<u64>(), posts(count)), |(plans, order, posts)| {
            let (nodes, faulty, of_nic, steps, runs) = &mut *tally.borrow_mut();
            let (outcome, _) = run(nodes, &plans, order, &posts);
            **faulty += u64::from(outcome.has_fault());
            **of_nic += u64::from(!outcome.nic_fired.is_empty());
            **steps += outcome.steps.len();
            **runs += 1;
            let violations: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
            prop_assert!(violations.is_empty(), "{}", violations.join("\n"));
            Ok(())
        });
        if let Err(error) = ran {
            panic!("seed {seed}, {count} nodes: {error}");
        }
    }
    let rate = runs as f64 * 60.0 / began.elapsed().as_secs_f64();
    println!(
        "seed={seed} cases={runs} with faults={faulty}, of a NIC={of_nic}, steps={steps}; {rate:.0} a minute"
    );
    assert!(faulty * 2 >= runs, "faults in {faulty} of {runs} cases");
    assert!(of_nic * 4 >= runs, "faults of a NIC in {of_nic} of {runs} cases");
}

#[test]
fn one_seed_repeats_frames_completions_and_faults() {
    let mut nodes = MemoryNodes::new(topology(3)).expect("memory");
    let plan = |text: &str| text.parse::<Plan>().expect("a plan");
    let plans = [
        plan("nic.packet:when=3:lose;nic.completion:when=2:delay=3ms"),
        plan("nic.packet:when=2:reorder;submit:when=1:delay=1ms"),
        plan("nic.packet:when=4:duplicate"),
    ];
    let operations = [
        Operation::Write,
        Operation::Read,
        Operation::Send,
        Operation::FetchAdd,
    ];
    let post = |number: usize| Post {
        operation: operations[number / 3],
        node: number % 3,
        ahead: 1 + number % 2,
        len: 300,
    };
    let posts: Vec<Post> = (0..MOST).map(post).collect();
    let mut all = |seed: u64| {
        let (outcome, completed) = run(&mut nodes, &plans, seed, &posts);
        assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
        assert!(
            outcome.unfired.is_empty(),
            "{:?} {:?}",
            outcome.errors,
            outcome.unfired
        );
        (outcome.steps, completed)
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
    let failure = nodes.find(config, posts(2), |nodes, posts| {
        let answer = perform(
            nodes,
            posts,
            Injected {
                flips: 64,
                duplicates: true,
            },
            &mut Vec::new(),
        );
        let is_late = |error: &Error| error.kind() == ErrorKind::TimedOut;
        assert!(!answer.as_ref().is_err_and(is_late), "a completion is missing");
        answer
    });
    let failure = failure.expect("some case loses a completion");
    let (_, posts) = failure.input.as_ref().expect("a run was possible");
    let rules: usize = failure.plans.iter().map(|plan| plan.rules.len()).sum();
    assert!(failure.why.contains("a completion is missing"), "{failure}");
    assert_eq!((posts.len(), rules), (1, 1), "{failure}");
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
