//! Requests of queue pairs between nodes in memory, with a model of the bytes.
//!
//! Each node has a region of four parts: what it sends, what it receives or reads, what others
//! write, and a word that atomics of others add to. Each request has a slot of its own, so that the
//! expected bytes depend on no order.

use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::fault::{NicEvent, Plan, Target, Verdict};
use gaudi_seam::{Error, ErrorKind, RawMapping, Result};
use gaudi_verbs::{Access, Cq, Mr, Qp, QpAddress, QpInit, WcStatus, WorkCompletion};

use crate::invariant::{Invariant, Violation};
use crate::memory_nodes::MemoryNodes;
use crate::nodes::{Node, NodesOutcome};
use crate::op::{Kind, OPERATIONS, Op};

/// Bytes of a slot.
const SLOT: usize = 512;
/// Bytes of a part with slots.
const PART: usize = OPERATIONS * SLOT;
const SENT: usize = 0;
const RECEIVED: usize = PART;
const WRITTEN: usize = 2 * PART;
/// The word that atomics add to.
const COUNTER: usize = 3 * PART;
const REGION: usize = COUNTER + 8;
/// The most bytes of an inline send.
const INLINE: usize = 64;
const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
/// Longer than all retries of a queue pair.
const WAIT: Duration = Duration::from_secs(30);

/// Runs the operations on nodes in memory, under a plan for each node.
pub(crate) fn run(
    nodes: &mut MemoryNodes,
    plans: &[Plan],
    seed: u64,
    ops: &[(usize, Op)],
) -> Result<NodesOutcome> {
    let count = nodes.topology().nodes;
    let requests = ops.iter().filter_map(|&(slot, op)| Request::of(slot, op, count));
    let requests: Vec<Request> = requests.collect();
    let mut ends = Ends::of(&requests, plans.iter().any(duplicates));
    let mut violations = Vec::new();
    let mut outcome = nodes.run(plans, seed, |nodes| {
        perform(nodes, &requests, &mut ends, &mut violations)
    })?;
    outcome.violations.extend(violations);
    Ok(outcome)
}

/// Whether a plan reports a completion twice.
fn duplicates(plan: &Plan) -> bool {
    let mut rules = plan.rules.iter();
    rules.any(|rule| rule.target == Target::Nic(NicEvent::Completion) && rule.verdict == Verdict::Duplicate)
}

/// A request of a node.
#[derive(Debug, Clone, Copy)]
struct Request {
    kind: Kind,
    slot: usize,
    node: usize,
    peer: usize,
    len: usize,
}

impl Request {
    fn of(slot: usize, op: Op, nodes: usize) -> Option<Self> {
        let most = match op.kind {
            Kind::RdmaWrite | Kind::RdmaWriteImm | Kind::RdmaRead | Kind::Send => SLOT,
            Kind::SendInline => INLINE,
            Kind::FetchAdd => 0,
            // Of other places.
            _ => return None,
        };
        let node = usize::from(op.a) % nodes;
        Some(Self {
            kind: op.kind,
            slot,
            node,
            peer: (node + 1 + usize::from(op.b) % (nodes - 1)) % nodes,
            len: usize::from(op.c) % (most + 1),
        })
    }

    /// The offset of its slot in a part.
    fn at(&self, part: usize) -> usize {
        part + self.slot * SLOT
    }

    /// Whether the peer's receive takes the message.
    fn is_received(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendInline | Kind::RdmaWriteImm)
    }

    /// Where its bytes go, and from where: node and offset each.
    fn transfer(&self) -> Option<((usize, usize), (usize, usize))> {
        let own = (self.node, self.at(SENT));
        match self.kind {
            Kind::RdmaRead => Some(((self.node, self.at(RECEIVED)), (self.peer, self.at(SENT)))),
            Kind::Send | Kind::SendInline => Some(((self.peer, self.at(RECEIVED)), own)),
            Kind::RdmaWrite | Kind::RdmaWriteImm => Some(((self.peer, self.at(WRITTEN)), own)),
            _ => None,
        }
    }
}

/// A byte that a node sends: never 0.
fn sent(node: usize, at: usize) -> u8 {
    ((node * 71 + at * 13) % 255 + 1) as u8
}

/// The objects of a node. Fields drop in this order.
struct Seat {
    /// To each other node, by its distance from 1.
    qps: Vec<Qp>,
    mr: Mr,
    cq: Cq,
    memory: Arc<RawMapping>,
}

impl Seat {
    fn new(node: &Node<'_>, peers: usize) -> Result<Self> {
        let pd = node.nic(0).alloc_pd()?;
        let cq = node.nic(0).create_cq(256)?;
        let memory = RawMapping::anonymous(REGION, false);
        let memory = Arc::new(memory.map_err(|errno| Error::from_errno("mmap", errno))?);
        // What it sends comes from the card.
        let mut bytes: Vec<u8> = (0..PART).map(|at| sent(node.number(), at)).collect();
        let buffer = node.device(0).alloc(PART as u64)?;
        node.device(0).write(&buffer, 0, &bytes)?;
        bytes.fill(0);
        node.device(0).read(&buffer, 0, &mut bytes)?;
        let copied = memory.write(SENT, &bytes);
        copied.map_err(|errno| Error::from_errno("copy", errno))?;
        let mr = pd.reg_mapping(Arc::clone(&memory), ACCESS)?;
        let mut init = QpInit::new(&cq);
        init.max_inline_data = INLINE as u32;
        let qps = (0..peers).map(|_| pd.create_qp(&init)).collect::<Result<_>>()?;
        Ok(Self { qps, mr, cq, memory })
    }

    fn addresses(&self) -> Result<Vec<QpAddress>> {
        self.qps.iter().map(Qp::address).collect()
    }
}

/// The index of the queue pair from one node to another one.
fn qp_to(peer: usize, node: usize, nodes: usize) -> usize {
    (peer + nodes - node - 1) % nodes
}

/// Makes the objects of all nodes, and connects each node with each other one.
fn seats(nodes: &[Node<'_>]) -> Result<Vec<Seat>> {
    let count = nodes.len();
    let seats = nodes.iter().map(|node| Seat::new(node, count - 1));
    let mut seats = seats.collect::<Result<Vec<_>>>()?;
    let addresses = seats.iter().map(Seat::addresses).collect::<Result<Vec<_>>>()?;
    for (node, seat) in seats.iter_mut().enumerate() {
        for (index, qp) in seat.qps.iter_mut().enumerate() {
            let peer = (node + index + 1) % count;
            qp.connect(&addresses[peer][qp_to(node, peer, count)], ACCESS)?;
        }
    }
    Ok(seats)
}

/// The `wr_id` of a receive is this and the slot.
const RECEIVE: u64 = 1 << 32;

/// What the sequence expects and has seen.
struct Ends {
    /// Whether a completion may be reported twice.
    may_repeat: bool,
    /// Node, `wr_id`, and the status once it has ended.
    requests: Vec<(usize, u64, Option<WcStatus>)>,
}

impl Ends {
    fn of(requests: &[Request], may_repeat: bool) -> Self {
        let sends = requests.iter().map(|one| (one.node, one.slot as u64, None));
        let taken = requests.iter().filter(|one| one.is_received());
        let receives = taken.map(|one| (one.peer, RECEIVE + one.slot as u64, None));
        Self {
            may_repeat,
            requests: sends.chain(receives).collect(),
        }
    }

    fn is_done(&self, request: &Request) -> bool {
        let key = (request.node, request.slot as u64, Some(WcStatus::SUCCESS));
        self.requests.contains(&key)
    }

    fn has_left(&self, node: usize) -> bool {
        self.requests.iter().any(|one| one.0 == node && one.2.is_none())
    }

    /// Records a completion. It must be that of a request, and its first.
    fn end(&mut self, node: usize, wc: &WorkCompletion) -> Option<Violation> {
        let mut requests = self.requests.iter_mut();
        let request = requests.find(|one| (one.0, one.1) == (node, wc.wr_id));
        let what = match request.map(|one| one.2.replace(wc.status)) {
            None => format!("node {node}: the completion of no request: {wc:?}"),
            Some(Some(_)) if !self.may_repeat => format!("node {node}: a second completion: {wc:?}"),
            _ => return None,
        };
        let invariant = Invariant::EndsOnce;
        Some(Violation { invariant, what })
    }
}

/// Performs the requests, and compares every byte with the model.
fn perform(
    nodes: &[Node<'_>],
    requests: &[Request],
    ends: &mut Ends,
    violations: &mut Vec<Violation>,
) -> Result<()> {
    let mut seats = seats(nodes)?;
    post_receives(&mut seats, requests)?;
    post_sends(&mut seats, requests)?;
    let mut answer = Ok(());
    let mut wc = [WorkCompletion::EMPTY; 4];
    for (node, seat) in seats.iter().enumerate() {
        while ends.has_left(node) {
            match seat.cq.wait(&mut wc, WAIT) {
                Ok(count) => violations.extend(wc[..count].iter().filter_map(|wc| ends.end(node, wc))),
                Err(error) => {
                    answer = Err(error);
                    break;
                }
            }
        }
    }
    // A request that has ended must not complete again.
    for (node, seat) in seats.iter().enumerate() {
        loop {
            match seat.cq.poll(&mut wc)? {
                0 => break,
                count => violations.extend(wc[..count].iter().filter_map(|wc| ends.end(node, wc))),
            }
        }
    }
    compare(&seats, requests, ends, violations);
    let mut statuses = ends.requests.iter().filter_map(|request| request.2);
    if let Some(status) = statuses.find(|&status| status != WcStatus::SUCCESS) {
        answer = Err(Error::new(ErrorKind::Io, "completion").saw(status, WcStatus::SUCCESS));
    }
    answer
}

/// Posts receives, in the order in which the messages of each queue pair take them.
fn post_receives(seats: &mut [Seat], requests: &[Request]) -> Result<()> {
    let count = seats.len();
    for request in requests.iter().filter(|request| request.is_received()) {
        let seat = &mut seats[request.peer];
        let into = seat.mr.sge(request.at(RECEIVED) as u64, SLOT as u32)?;
        seat.qps[qp_to(request.node, request.peer, count)]
            .post_recv(RECEIVE + request.slot as u64)
            .post(&[into])?;
    }
    Ok(())
}

/// Posts the requests, in the order of the sequence.
fn post_sends(seats: &mut [Seat], requests: &[Request]) -> Result<()> {
    let count = seats.len();
    for request in requests {
        let there = seats[request.peer].mr.remote();
        let seat = &mut seats[request.node];
        let bytes = request.len as u64;
        let sge = |part, len| seat.mr.sge(request.at(part) as u64, len);
        let (local, into) = (
            [sge(SENT, request.len as u32)?],
            [sge(RECEIVED, request.len as u32)?],
        );
        let old = sge(RECEIVED, 8)?;
        let inline: Vec<u8> = (0..request.len)
            .map(|at| sent(request.node, request.at(SENT) + at))
            .collect();
        let written = there.at(request.at(WRITTEN) as u64, bytes)?;
        let qp = &mut seat.qps[qp_to(request.peer, request.node, count)];
        let post = qp.post_send(request.slot as u64);
        match request.kind {
            Kind::RdmaWriteImm => post.write_imm(&local, written, request.slot as u32),
            Kind::RdmaRead => post.read(&into, there.at(request.at(SENT) as u64, bytes)?),
            Kind::Send => post.send(&local),
            Kind::SendInline => post.send_inline(&inline),
            Kind::FetchAdd => post.fetch_add(&old, there.at(COUNTER as u64, 8)?, 1),
            _ => post.write(&local, written),
        }
        .post()?;
    }
    Ok(())
}

/// Compares the memory of all nodes with the model. The bytes of a request that has not succeeded
/// have arrived or not.
fn compare(seats: &[Seat], requests: &[Request], ends: &Ends, violations: &mut Vec<Violation>) {
    let memory = seats.iter().map(|seat| bytes_of(&seat.memory, 0, REGION));
    let mut memory: Vec<Vec<u8>> = memory.collect();
    let mut violated = |what: String| {
        let invariant = Invariant::ForeignBytes;
        violations.push(Violation { invariant, what });
    };
    for request in requests {
        let Some(((node, at), (from, source))) = request.transfer() else {
            continue;
        };
        let is_done = ends.is_done(request);
        for byte in 0..request.len {
            let seen = std::mem::take(&mut memory[node][at + byte]);
            let wanted = sent(from, source + byte);
            if seen != wanted && (is_done || seen != 0) {
                violated(format!(
                    "node {node}, byte {}: {seen:#04x}, expected {wanted:#04x} from {request:?}",
                    at + byte
                ));
                break;
            }
        }
    }
    for (node, memory) in memory.iter_mut().enumerate() {
        let adds = requests.iter().filter(|one| one.kind == Kind::FetchAdd);
        for add in adds.clone().filter(|one| one.node == node) {
            memory[add.at(RECEIVED)..][..8].fill(0);
        }
        let to_node: Vec<&Request> = adds.filter(|one| one.peer == node).collect();
        let done = to_node.iter().filter(|add| ends.is_done(add));
        let mut old: Vec<u64> = done
            .map(|add| word(&bytes_of(&seats[add.node].memory, add.at(RECEIVED), 8)))
            .collect();
        let (total, count) = (word(&memory[COUNTER..]), old.len());
        old.sort_unstable();
        old.dedup();
        let is_possible = (count as u64..=to_node.len() as u64).contains(&total);
        if !is_possible || old.len() < count || old.last().is_some_and(|&last| last >= total) {
            violated(format!(
                "node {node}: {} additions of 1, of which {count} ended, gave {total} and found {old:?}",
                to_node.len()
            ));
        }
        memory[COUNTER..].fill(0);
        // What it sends has not changed, and the rest was not written.
        let expected = |at: usize| if at < RECEIVED { sent(node, at) } else { 0 };
        if let Some(at) = (0..REGION).find(|&at| memory[at] != expected(at)) {
            violated(format!(
                "node {node}, byte {at}: {:#04x}, which no request wrote",
                memory[at]
            ));
        }
    }
}

fn bytes_of(memory: &RawMapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    if memory.read(at, &mut bytes).is_err() {
        unreachable!("the range is inside the region");
    }
    bytes
}

/// The word at the start of some bytes.
fn word(bytes: &[u8]) -> u64 {
    let word = bytes.first_chunk().copied().unwrap_or_default(); // the callers pass 8 bytes or more
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::nodes::Topology;

    const THREE: Topology = Topology {
        nodes: 3,
        ..Topology::PAIR
    };

    fn nodes(topology: Topology) -> MemoryNodes {
        MemoryNodes::new(topology).expect("memory")
    }

    #[test]
    fn case_repeats_exactly() {
        let mut nodes = nodes(THREE);
        for number in 0..40 {
            let case = Case::on_fabric(5, number);
            let mut all = || {
                let outcome = run(&mut nodes, &case.plans(3), number, &case.ops).expect("nodes are made");
                assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
                // The texts may have packet sequence numbers, which start at random.
                let kind = |error: &Error| (error.kind(), error.errno());
                let errors: Vec<_> = outcome.errors.iter().flatten().map(kind).collect();
                (outcome.steps, outcome.nic_fired, outcome.unfired, errors)
            };
            assert!(all() == all(), "two runs differ\n{case}");
        }
    }

    #[test]
    fn duplicated_completion_is_reported() {
        let plan = "nic.completion:when=1:duplicate".parse().expect("a plan");
        let request = Request {
            kind: Kind::RdmaWrite,
            slot: 0,
            node: 0,
            peer: 1,
            len: 100,
        };
        for (may_repeat, expected) in [(false, &[Invariant::EndsOnce][..]), (true, &[])] {
            let mut ends = Ends::of(&[request], may_repeat);
            let mut violations = Vec::new();
            let outcome = nodes(Topology::PAIR).run(std::slice::from_ref(&plan), 1, |nodes| {
                perform(nodes, &[request], &mut ends, &mut violations)
            });
            assert!(outcome.expect("nodes are made").violations.is_empty());
            let found: Vec<Invariant> = violations.iter().map(|violation| violation.invariant).collect();
            assert_eq!(found, expected, "{violations:?}");
        }
    }

    #[test]
    fn changed_byte_of_each_part_is_reported() {
        let request = Request {
            kind: Kind::RdmaWrite,
            slot: 1,
            node: 0,
            peer: 1,
            len: 100,
        };
        let places = [
            ("sent", SENT),
            ("not received", RECEIVED + 3),
            ("written by the request", request.at(WRITTEN) + 99),
            ("beside the request", request.at(WRITTEN) + 100),
            ("added", COUNTER),
        ];
        let outcome = nodes(Topology::PAIR).run(&[], 1, |nodes| {
            let mut seats = seats(nodes)?;
            post_sends(&mut seats, &[request])?;
            let mut ends = Ends::of(&[request], false);
            let mut wc = [WorkCompletion::EMPTY; 1];
            seats[0].cq.wait(&mut wc, WAIT)?;
            assert_eq!(ends.end(0, &wc[0]), None);
            let mut violations = Vec::new();
            compare(&seats, &[request], &ends, &mut violations);
            assert_eq!(violations, []);
            for (name, at) in places {
                let memory = &seats[1].memory;
                let before = bytes_of(memory, at, 1);
                memory.write(at, &[before[0] ^ 1]).expect("in range");
                compare(&seats, &[request], &ends, &mut violations);
                assert_eq!(violations.len(), 1, "{name}: {violations:?}");
                violations.clear();
                memory.write(at, &before).expect("in range");
            }
            Ok(())
        });
        let violations = outcome.expect("nodes are made").violations;
        assert!(violations.is_empty(), "{violations:?}");
    }
}
