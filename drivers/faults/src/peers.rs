//! Transfers between two nodes in a sequence: the first node requests, the second one serves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_device::Buffer;
use gaudi_remote::{Endpoint, EndpointOptions, Nic, Policy, Remote, Rights};
use gaudi_seam::fault::{NicEvent, Plan, Target, Verdict};
use gaudi_seam::{ErrorKind, Result};
use gaudi_sys::lock;

use crate::case::Case;
use crate::invariant::{Invariant, Violation};
use crate::nodes::{Node, Nodes, NodesOutcome, Topology};
use crate::op::{Kind, Op};

/// Bytes of a buffer of each node.
const LEN: usize = 20_000;
/// The byte that the serving node's buffer has first.
const FIRST: u8 = 0x5a;
/// The timeout of each call of a run without a fault that only a timeout ends.
const LONG: Duration = Duration::from_secs(30);
/// The timeout of the others.
const SHORT: Duration = Duration::from_millis(200);

/// How long one node may run, and the other one after its end. Less than the time limit of a case
/// of `gaudi faults run`, which reports no violation of the nodes.
const BUDGET: Duration = Duration::from_secs(20);

/// Runs a case on two nodes. Its plan is that of node `number % 2`.
pub(crate) fn run(case: &Case) -> Result<NodesOutcome> {
    if !is_silent(&case.plan) {
        return run_with(case, LONG);
    }
    let outcome = run_with(case, SHORT)?;
    // A busy machine may exceed the short timeout before anything is lost.
    let is_of_error = |violation: &Violation| violation.invariant == Invariant::TruthfulErrors;
    let mut errors = outcome.errors.iter().flatten();
    let is_late = outcome.nic_fired.is_empty()
        && !outcome.violations.is_empty()
        && outcome.violations.iter().all(is_of_error)
        && errors.any(|error| error.kind() == ErrorKind::TimedOut);
    match is_late {
        true => run_with(case, LONG),
        false => Ok(outcome),
    }
}

fn run_with(case: &Case, timeout: Duration) -> Result<NodesOutcome> {
    let mut options = EndpointOptions::default();
    options.policy = match case.number / 2 % 3 {
        0 => Policy::Never,
        _ => Policy::Try,
    };
    (options.chunk_bytes, options.depth) = (4096, 1 + (case.number / 6 % 4) as u32);
    (options.connect_timeout, options.copy_timeout) = (timeout, timeout * 2);
    let (shared, options) = (&Mutex::new(None), &options);
    let requests = move |node: &mut Node<'_>| request(node, case, options, timeout, shared);
    let serves = move |node: &mut Node<'_>| serve(node, case, options, timeout);
    let served = Mutex::new(None);
    let serves = |node: &mut Node<'_>| {
        *lock(&served) = Some(serves(node)?);
        Ok(())
    };
    let nodes = Nodes::new(Topology::PAIR).with_budget(BUDGET);
    let mut outcome = nodes.run(
        &case.plans(Topology::PAIR.nodes),
        case.seed ^ case.number,
        vec![Box::new(requests), Box::new(serves)],
    )?;
    let (wanted, served) = (lock(shared).take(), lock(&served).take());
    if let (Some(wanted), Some(served)) = (wanted, served) {
        if wanted != served {
            let at = wanted
                .iter()
                .zip(&served)
                .position(|(wanted, seen)| wanted != seen);
            outcome.violations.push(Violation {
                invariant: Invariant::ForeignBytes,
                what: format!("the bytes of node 1 differ from those that node 0 put, from byte {at:?} on"),
            });
        }
    }
    Ok(outcome)
}

/// Whether a rule loses what only a timeout reports.
fn is_silent(plan: &Plan) -> bool {
    let mut rules = plan.rules.iter();
    rules.any(|rule| match rule.target {
        Target::Nic(NicEvent::Completion | NicEvent::Packet) => {
            matches!(rule.verdict, Verdict::Lose | Verdict::Damage | Verdict::Down)
        }
        _ => false,
    })
}

fn connect(node: &mut Node<'_>, options: &EndpointOptions) -> Result<Endpoint> {
    let stream = node.take_stream(1 - node.number());
    let nic = Nic::new(node.nic(0))?;
    Endpoint::over(stream, &nic, Some(node.device(0)), options.clone())
}

/// The serving node: offers a buffer until the peer's offer reports the end. Returns its bytes.
fn serve(node: &mut Node<'_>, case: &Case, options: &EndpointOptions, timeout: Duration) -> Result<Vec<u8>> {
    let device = node.device(0).clone();
    let mut endpoint = connect(node, options)?;
    let buffer = buffer(&device, case.number)?;
    device.fill(&buffer, FIRST)?.wait(timeout)?;
    endpoint.offer(&buffer, Rights::BOTH)?;
    endpoint.receive_offer(timeout * 20)?;
    endpoint.forget(&buffer)?;
    let mut seen = vec![0; LEN];
    device.read(&buffer, 0, &mut seen)?;
    endpoint.close()?;
    Ok(seen)
}

/// Memory that can be exported, or in every fourth case memory that cannot.
fn buffer(device: &gaudi_device::Device, number: u64) -> Result<Buffer> {
    match number / 2 % 4 {
        3 => device.alloc(LEN as u64),
        _ => device.alloc_exclusive(LEN as u64),
    }
}

/// The requesting node, with a model of the bytes of both buffers.
struct Requester<'a> {
    endpoint: Endpoint,
    device: &'a gaudi_device::Device,
    remote: Remote,
    buffer: Buffer,
    own: Vec<u8>,
    theirs: Vec<u8>,
    timeout: Duration,
}

fn request(
    node: &mut Node<'_>,
    case: &Case,
    options: &EndpointOptions,
    timeout: Duration,
    shared: &Mutex<Option<Vec<u8>>>,
) -> Result<()> {
    let device = &node.device(0).clone();
    let mut endpoint = connect(node, options)?;
    let remote = endpoint.receive_offer(timeout * 2)?;
    let buffer = buffer(device, case.number)?;
    device.fill(&buffer, 1)?.wait(timeout)?;
    let mut requester = Requester {
        endpoint,
        device,
        remote,
        buffer,
        own: vec![1; LEN],
        theirs: vec![FIRST; LEN],
        timeout,
    };
    for &(_, op) in &case.ops {
        requester.step(op)?;
    }
    requester.check()?;
    let Requester {
        mut endpoint,
        device,
        theirs,
        buffer,
        ..
    } = requester;
    drop(buffer);
    let end = Arc::new(gaudi_device::HostBuffer::new(64)?);
    endpoint.offer(&end, Rights::PUT)?;
    // The peer's end of the connection is the answer.
    let answer = endpoint.receive_offer(timeout * 2);
    drop((answer, device));
    *lock(shared) = Some(theirs);
    Ok(())
}

impl Requester<'_> {
    fn step(&mut self, op: Op) -> Result<()> {
        let Op { kind, a, b, c } = op;
        let len = usize::from(c) % LEN + 1;
        let (from, to) = (usize::from(a) % (LEN - len + 1), usize::from(b) % (LEN - len + 1));
        let far = || self.remote.at(to as u64..(to + len) as u64);
        let near = || self.buffer.at(from as u64..(from + len) as u64);
        match kind {
            Kind::RemotePut => {
                let put = self.endpoint.put(near()?, far()?)?;
                self.endpoint.wait(put, self.timeout)?;
                self.theirs[to..to + len].copy_from_slice(&self.own[from..from + len]);
            }
            Kind::RemoteGet => {
                let get = self.endpoint.get(near()?, far()?)?;
                self.endpoint.wait(get, self.timeout)?;
                self.own[from..from + len].copy_from_slice(&self.theirs[to..to + len]);
            }
            Kind::RemotePutBytes => {
                let bytes: Vec<u8> = (0..len).map(|at| (at as u8) ^ (a as u8)).collect();
                self.endpoint.put_bytes(&bytes, far()?, self.timeout)?;
                self.theirs[to..to + len].copy_from_slice(&bytes);
            }
            Kind::RemoteGetBytes => {
                let mut seen = vec![0; len];
                self.endpoint.get_bytes(&mut seen, far()?, self.timeout)?;
                assert!(seen == self.theirs[to..to + len], "bytes of the peer differ");
            }
            Kind::RemoteFlush => self.endpoint.flush_remote(&self.remote, self.timeout)?,
            Kind::RemoteFill => {
                let part = near()?;
                self.device.fill(part, a as u8)?.wait(self.timeout)?;
                self.own[from..from + len].fill(a as u8);
            }
            // Of sequences on one card.
            _ => {}
        }
        Ok(())
    }

    /// Compares the bytes of both buffers with the model.
    fn check(&mut self) -> Result<()> {
        let mut seen = vec![0; LEN];
        self.endpoint.get_bytes(&mut seen, &self.remote, self.timeout)?;
        assert!(seen == self.theirs, "bytes of the peer's buffer differ");
        self.device.read(&self.buffer, 0, &mut seen)?;
        assert!(seen == self.own, "bytes of the own buffer differ");
        Ok(())
    }
}
