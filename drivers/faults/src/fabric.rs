//! Requests of queue pairs between nodes in memory, with a model of the bytes.
//!
//! Each node has a region of four parts: what it sends, what it receives or reads, what others
//! write, and a word that atomics of others add to. Each request has a slot of its own, so that the
//! expected bytes depend on no order.

use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::fault::{NicEvent, Plan, Target, Verdict};
use gaudi_seam::{Error, ErrorKind, RawMapping, Result};
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{Access, Cq, Mr, Mtu, Qp, QpAddress, QpInit, WcStatus, WorkCompletion};

use crate::case::{Case, OPERATIONS};
use crate::invariant::{Invariant, Violation};
use crate::memory_nodes::MemoryNodes;
use crate::nodes::{Node, NodesOutcome};
use crate::op::{Kind, Op};

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

/// Runs a case on nodes in memory. Its plan is that of one node.
pub(crate) fn run(case: &Case, nodes: &mut MemoryNodes) -> Result<NodesOutcome> {
    let count = nodes.topology().nodes;
    let mut plans = vec![Plan::default(); count];
    plans[case.faulty_node()] = case.plan.clone();
    let requests: Vec<Request> = case
        .ops
        .iter()
        .filter_map(|&(slot, op)| Request::of(slot, op, count))
        .collect();
    let mut found = Vec::new();
    let repeats =
        case.plan.rules.iter().any(|rule| {
            rule.target == Target::Nic(NicEvent::Completion) && rule.verdict == Verdict::Duplicate
        });
    let mut outcome = nodes.run(&plans, case.seed ^ case.number, |nodes| {
        perform(nodes, &requests, repeats, &mut found)
    })?;
    outcome.violations.extend(found);
    Ok(outcome)
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
        let memory =
            RawMapping::anonymous(REGION, false).map_err(|errno| Error::from_errno("mmap", errno))?;
        let bytes: Vec<u8> = (0..PART).map(|at| sent(node.number(), at)).collect();
        memory
            .write(SENT, &bytes)
            .map_err(|errno| Error::from_errno("write", errno))?;
        let memory = Arc::new(memory);
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

fn connect(qp: &mut Qp, remote: QpAddress) -> Result<()> {
    let own = qp.address()?;
    qp.modify(&QpTransition::Init { access: ACCESS })?;
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

/// Makes the objects of all nodes, and connects each node with each other one.
fn seats(nodes: &[Node<'_>]) -> Result<Vec<Seat>> {
    let count = nodes.len();
    let seats = nodes.iter().map(|node| Seat::new(node, count - 1));
    let mut seats = seats.collect::<Result<Vec<_>>>()?;
    let addresses = seats.iter().map(Seat::addresses).collect::<Result<Vec<_>>>()?;
    for (node, seat) in seats.iter_mut().enumerate() {
        for (index, qp) in seat.qps.iter_mut().enumerate() {
            let peer = (node + index + 1) % count;
            connect(qp, addresses[peer][count - 2 - index])?;
        }
    }
    Ok(seats)
}

/// The `wr_id` of a receive is this and the slot.
const RECEIVE: u64 = 1 << 32;

/// What the sequence expects and has seen.
struct Ends {
    /// Whether a completion may be reported twice.
    repeats: bool,
    /// Node, `wr_id`, and the status once it has ended.
    requests: Vec<(usize, u64, Option<WcStatus>)>,
}

impl Ends {
    fn of(requests: &[Request], repeats: bool) -> Self {
        let sends = requests.iter().map(|one| (one.node, one.slot as u64, None));
        let taken = requests.iter().filter(|one| one.is_received());
        let receives = taken.map(|one| (one.peer, RECEIVE + one.slot as u64, None));
        Self {
            repeats,
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
            Some(Some(_)) if !self.repeats => format!("node {node}: a second completion: {wc:?}"),
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
    repeats: bool,
    found: &mut Vec<Violation>,
) -> Result<()> {
    let mut seats = seats(nodes)?;
    post_receives(&mut seats, requests)?;
    post_sends(&mut seats, requests)?;
    let mut ends = Ends::of(requests, repeats);
    let mut answer = Ok(());
    for (node, seat) in seats.iter().enumerate() {
        let mut wc = [WorkCompletion::EMPTY; 4];
        while ends.has_left(node) {
            match seat.cq.wait(&mut wc, WAIT) {
                Ok(count) => found.extend(wc[..count].iter().filter_map(|wc| ends.end(node, wc))),
                Err(error) => {
                    answer = Err(error);
                    break;
                }
            }
        }
    }
    compare(&seats, requests, &ends, found);
    let mut statuses = ends.requests.iter().filter_map(|one| one.2);
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
        let qp = (request.node + count - request.peer - 1) % count;
        seat.qps[qp]
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
        let qp = (request.peer + count - request.node - 1) % count;
        let post = seat.qps[qp].post_send(request.slot as u64);
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
fn compare(seats: &[Seat], requests: &[Request], ends: &Ends, found: &mut Vec<Violation>) {
    let memory = seats.iter().map(|seat| bytes_of(&seat.memory, 0, REGION));
    let mut memory: Vec<Vec<u8>> = memory.collect();
    let mut violated = |what: String| {
        let invariant = Invariant::ForeignBytes;
        found.push(Violation { invariant, what });
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
