//! The measured loops. They do not allocate.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi::remote::Link;
use gaudi::sys::clock::process_cpu_time;
use gaudi::verbs::{Cq, Qp, RemoteAddr, Sge, WcOpcode, WorkCompletion};
use gaudi::{Error, ErrorKind};

use super::node::Node;
use super::op::{OPERATION, Op, RECEIVED, Tally};
use super::plan::Plan;
use super::samples::{Samples, Taken};
use super::watch::Watch;
use crate::figures::nanos;
use crate::nic::checked;

/// When a loop ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    Operations(u32),
    Time(Duration),
}

impl Limit {
    pub(super) fn of(plan: &Plan) -> Self {
        match plan.duration() {
            Some(duration) => Self::Time(duration),
            None => Self::Operations(plan.iterations),
        }
    }

    pub(super) fn expected(self) -> u64 {
        match self {
            Self::Operations(count) => count.into(),
            Self::Time(_) => u64::MAX,
        }
    }
}

/// Wall and processor time from its start.
pub(super) struct Stopwatch {
    start: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self {
            cpu: process_cpu_time(),
            start: Instant::now(),
        }
    }

    /// Returns the figures of `operations` from the start to `end`; `sent` includes the warm-up.
    pub(super) fn tally(&self, end: Instant, operations: u64, sent: u64) -> Tally {
        Tally {
            sent,
            operations,
            time_ns: nanos(end - self.start).max(1),
            cpu_ns: nanos(process_cpu_time().saturating_sub(self.cpu)),
        }
    }
}

/// The operation of a row, as it is posted over and over.
struct Work {
    op: Op,
    local: [Sge; 1],
    remote: RemoteAddr,
    /// The bytes that are sent without a region.
    inline: Option<Vec<u8>>,
}

impl Work {
    fn new(op: Op, node: &Node, bytes: u64) -> Result<Self> {
        let outgoing = matches!(op, Op::Write | Op::Send);
        Ok(Self {
            op,
            local: [if outgoing {
                node.outgoing(bytes)?
            } else {
                node.incoming(bytes)?
            }],
            remote: node.theirs(op != Op::Read, bytes)?,
            inline: None,
        })
    }

    #[inline]
    fn post(&self, qp: &mut Qp, id: u64, signaled: bool) -> gaudi::Result<()> {
        let post = qp.post_send(id).signaled(signaled);
        match (self.op, &self.inline) {
            (Op::Write, Some(bytes)) => post.write_inline(bytes, self.remote).post(),
            (Op::Write, None) => post.write(&self.local, self.remote).post(),
            (Op::Send, Some(bytes)) => post.send_inline(bytes).post(),
            (Op::Send, None) => post.send(&self.local).post(),
            (Op::Read, _) => post.read(&self.local, self.remote).post(),
            (Op::Atomic, _) => post.fetch_add(&self.local[0], self.remote, 1).post(),
        }
    }
}

/// One queue pair of a bandwidth.
#[derive(Debug, Clone, Default)]
struct Flow {
    /// Operations that it posts in all.
    share: u64,
    posted: u64,
    complete: u64,
    /// Posted since the last signaled one.
    group: u32,
}

/// Runs many operations in flight: out of this end (`sends`), into it as messages (`receives`),
/// both, or neither. With neither, the NIC alone serves the peer.
pub(super) fn bandwidth(
    node: &mut Node,
    plan: &Plan,
    bytes: u64,
    (sends, receives): (bool, bool),
    watch: &mut Watch<'_>,
) -> Result<Taken> {
    let work = Work::new(plan.op, node, bytes)?;
    let into = [node.incoming(node.half)?];
    let Link { qps, cq, .. } = node.link()?;
    let mut pump = Pump {
        plan,
        qps,
        cq,
        work,
        into,
        received: 0,
    };
    let mut stopwatch = Stopwatch::start();
    let mut ours = None;
    if sends {
        let warm = pump.send(Limit::Operations(plan.warm_up), watch)?;
        stopwatch = Stopwatch::start();
        let operations = pump.send(Limit::of(plan), watch)?;
        let tally = stopwatch.tally(Instant::now(), operations, warm + operations);
        watch.done(&tally)?;
        ours = Some(tally);
    }
    if receives {
        pump.receive(watch)?;
    }
    let theirs = watch.await_theirs()?;
    let ours = match ours {
        Some(ours) => ours,
        None => {
            let ours = stopwatch.tally(Instant::now(), 0, 0);
            watch.done(&ours)?;
            ours
        }
    };
    Ok(Taken {
        samples: Samples::new(0),
        ours,
        theirs,
    })
}

struct Pump<'a> {
    plan: &'a Plan,
    qps: &'a mut [Qp],
    cq: &'a Cq,
    work: Work,
    /// Where messages are received.
    into: [Sge; 1],
    received: u64,
}

impl Pump<'_> {
    /// Posts operations until `limit`, waits for all of them, and returns their number.
    fn send(&mut self, limit: Limit, watch: &mut Watch<'_>) -> Result<u64> {
        let (window, list) = (u64::from(self.plan.window), u64::from(self.plan.post_list));
        // Only completions make room, so one must be signaled before the window is full.
        let signal = self.plan.signal.min(self.plan.window).max(1);
        let queues = self.qps.len() as u64;
        let share = |at| match limit {
            Limit::Operations(count) => u64::from(count) / queues + u64::from(at < u64::from(count) % queues),
            Limit::Time(_) => u64::MAX,
        };
        let flow = |at| Flow {
            share: share(at),
            ..Flow::default()
        };
        let mut flows: Vec<Flow> = (0..queues).map(flow).collect();
        let end = match limit {
            Limit::Time(time) => Instant::now().checked_add(time),
            Limit::Operations(_) => None,
        };
        let mut is_over = false;
        watch.renew();
        loop {
            let mut outstanding = 0;
            for (at, (qp, flow)) in self.qps.iter_mut().zip(&mut flows).enumerate() {
                let id = (at as u64) << 32;
                let mut next = if is_over {
                    0
                } else {
                    list.min(flow.share - flow.posted)
                };
                while next > 0 && window - (flow.posted - flow.complete) >= next {
                    for left in (0..next).rev() {
                        flow.group += 1;
                        flow.posted += 1;
                        // The end of a list is signaled: its room is released as a whole.
                        let signaled =
                            flow.group == signal || flow.posted == flow.share || (list > 1 && left == 0);
                        // The completion counts the operations that it is of.
                        self.work.post(qp, id | u64::from(flow.group), signaled)?;
                        if signaled {
                            flow.group = 0;
                        }
                    }
                    next = list.min(flow.share - flow.posted);
                }
                if is_over && flow.group > 0 {
                    // One more, signaled, completes the group that the time cut.
                    flow.posted += 1;
                    self.work.post(qp, id | u64::from(flow.group + 1), true)?;
                    flow.group = 0;
                }
                outstanding += flow.posted - flow.complete;
            }
            if outstanding == 0 && (is_over || end.is_none()) {
                return Ok(flows.iter().map(|flow| flow.complete).sum());
            }
            let got = self.poll(&mut flows)?;
            if got > 0 || watch.look_again()? {
                let now = Instant::now();
                is_over |= end.is_some_and(|end| now >= end);
                if got > 0 {
                    watch.progress(now)?;
                }
            }
        }
    }

    /// Receives messages until the peer has ended the row and all its messages have arrived.
    fn receive(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        watch.renew();
        loop {
            match watch.theirs() {
                Some(theirs) if self.received == theirs.sent => return Ok(()),
                Some(theirs) if self.received > theirs.sent => {
                    return Err(Error::new(ErrorKind::Protocol, "receive messages")
                        .because("more messages arrived than the peer sent")
                        .saw(self.received, theirs.sent)
                        .into());
                }
                _ => {}
            }
            if self.poll(&mut [])? == 0 {
                watch.look_again()?;
            } else {
                watch.renew();
            }
        }
    }

    /// Takes completions without waiting, and posts completed receives again.
    #[inline]
    fn poll(&mut self, flows: &mut [Flow]) -> Result<usize> {
        let mut done = [WorkCompletion::EMPTY; 16];
        let got = self.cq.poll(&mut done)?;
        for completion in &done[..got] {
            checked(completion)?;
            if completion.wr_id & RECEIVED != 0 {
                repost(self.qps, completion.wr_id, &self.into)?;
                self.received += 1;
            } else if let Some(flow) = flows.get_mut((completion.wr_id >> 32) as usize) {
                flow.complete += completion.wr_id & 0xffff_ffff;
            }
        }
        Ok(got)
    }
}

/// Posts the receive of a completion again.
#[inline]
fn repost(qps: &mut [Qp], wr_id: u64, into: &[Sge; 1]) -> Result<()> {
    let qp = qps.get_mut((wr_id & !RECEIVED) as usize);
    qp.context("there is no queue pair")?
        .post_recv(wr_id)
        .post(into)?;
    Ok(())
}

/// Runs one operation after the other.
pub(super) fn latency(
    node: &mut Node,
    plan: &Plan,
    bytes: u64,
    by_memory: bool,
    watch: &mut Watch<'_>,
) -> Result<Taken> {
    let limit = Limit::of(plan);
    let mut samples = Samples::new(limit.expected());
    let mut ping = Ping::new(node, plan.op, bytes, by_memory)?;
    // A round trip has two of them.
    let ways = if ping.end == End::Completion { 1 } else { 2 };
    let warm = u64::from(plan.warm_up);
    let mut stopwatch = Stopwatch::start();
    // The clock is read once in each round: the end of one is the start of the next.
    let mut start = Instant::now();
    let mut round = 0_u64;
    loop {
        if round == warm {
            stopwatch = Stopwatch::start();
            start = Instant::now();
        }
        let is_over = match limit {
            Limit::Operations(count) => round >= warm + u64::from(count),
            Limit::Time(time) => round > warm && start - stopwatch.start >= time,
        };
        if is_over {
            break;
        }
        round += 1;
        ping.post(round, watch)?;
        if !ping.wait(round, watch)? {
            return Err(Error::new(ErrorKind::Protocol, OPERATION)
                .because("the peer ended the row before this end did")
                .into());
        }
        let now = Instant::now();
        if round > warm {
            samples.push(nanos(now - start) / ways);
        }
        start = now;
        watch.progress(now)?;
    }
    let ours = stopwatch.tally(start, round - warm, round);
    ping.drain(watch)?;
    watch.done(&ours)?;
    let theirs = watch.await_theirs()?;
    Ok(Taken {
        samples,
        ours,
        theirs,
    })
}

/// Serves a latency by round trips, until the peer ends the row.
pub(super) fn echo(
    node: &mut Node,
    plan: &Plan,
    bytes: u64,
    by_memory: bool,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let stopwatch = Stopwatch::start();
    let mut ping = Ping::new(node, plan.op, bytes, by_memory)?;
    let mut round = 1;
    while ping.wait(round, watch)? {
        ping.post(round, watch)?;
        watch.renew();
        round += 1;
    }
    ping.drain(watch)?;
    watch.done(&stopwatch.tally(Instant::now(), 0, 0))
}

/// The event that ends a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The peer's write, whose last byte changes.
    Byte,
    /// The peer's message.
    Message,
    /// The operation's own completion.
    Completion,
}

/// One end of a latency. Some of its sends are signaled, so that the queue has room.
struct Ping<'n> {
    node: &'n mut Node,
    work: Work,
    end: End,
    bytes: u64,
    into: [Sge; 1],
    unsignaled: u32,
    /// Signaled sends whose completion was not seen.
    outstanding: u32,
    messages: u32,
}

const GROUP: u32 = 16;

impl<'n> Ping<'n> {
    fn new(node: &'n mut Node, op: Op, bytes: u64, by_memory: bool) -> Result<Self> {
        let mut work = Work::new(op, node, bytes)?;
        let end = match op {
            Op::Write if by_memory => End::Byte,
            Op::Send => End::Message,
            _ => End::Completion,
        };
        if end != End::Completion && bytes <= node.inline().into() {
            work.inline = Some(vec![0x5a; usize::try_from(bytes)?]);
        }
        Ok(Self {
            work,
            end,
            bytes,
            into: [node.incoming(node.half)?],
            unsignaled: 0,
            outstanding: 0,
            messages: 0,
            node,
        })
    }

    /// Posts the operation of a round; first waits for the completion of the signaled one before,
    /// if this one is signaled.
    fn post(&mut self, round: u64, watch: &mut Watch<'_>) -> Result<()> {
        self.unsignaled += 1;
        let signaled = self.end == End::Completion || self.unsignaled == GROUP;
        if signaled {
            self.unsignaled = 0;
            self.drain(watch)?;
            self.outstanding = 1;
        }
        if self.end == End::Byte {
            match self.work.inline.as_deref_mut() {
                Some([.., last]) => *last = mark(round),
                _ => self.node.set_last_byte(self.bytes, mark(round)),
            }
        }
        Ok(self.work.post(self.node.first()?, 1, signaled)?)
    }

    /// Waits for the end of a round; false if the peer ended the row instead.
    fn wait(&mut self, round: u64, watch: &mut Watch<'_>) -> Result<bool> {
        match self.end {
            End::Completion => self.drain(watch)?,
            End::Message => {
                while self.messages == 0 {
                    if !self.poll()? && watch.look_again()? && watch.theirs().is_some() {
                        return Ok(false);
                    }
                }
                self.messages -= 1;
            }
            End::Byte => {
                while self.node.last_byte(self.bytes) != mark(round) {
                    if watch.look_again()? {
                        // Memory never shows that a queue pair is in error.
                        while self.poll()? {}
                        if watch.theirs().is_some() {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes one completion without waiting; false if there was none.
    #[inline]
    fn poll(&mut self) -> Result<bool> {
        let mut done = [WorkCompletion::EMPTY];
        let Link { qps, cq, .. } = self.node.link()?;
        if cq.poll(&mut done)? == 0 {
            return Ok(false);
        }
        checked(&done[0])?;
        if done[0].opcode == WcOpcode::RECV {
            self.messages += 1;
            repost(qps, done[0].wr_id, &self.into)?;
        } else {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(true)
    }

    fn drain(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        while self.outstanding > 0 {
            if !self.poll()? {
                watch.look_again()?;
            }
        }
        Ok(())
    }
}

/// Returns the last byte of a round: never 0, which is the byte before the first round.
fn mark(round: u64) -> u8 {
    (round % 255) as u8 + 1
}
