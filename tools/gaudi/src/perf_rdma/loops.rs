//! The measured loops: they neither allocate nor look anything up.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi::remote::Link;
use gaudi::verbs::{Cq, Qp, RemoteAddr, Sge, WcOpcode, WorkCompletion};
use gaudi::{Error, ErrorKind};
use gaudi_sys::clock::process_cpu_time;

use super::node::Node;
use super::op::{Op, RDMA, RECEIVED, Tally};
use super::plan::Plan;
use super::samples::{Samples, Taken};
use super::watch::Watch;

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

    /// Returns the figures of `operations` from the start until now; `sent` includes the warm-up.
    pub(super) fn tally(&self, operations: u64, sent: u64) -> Tally {
        self.tally_at(Instant::now(), operations, sent)
    }

    fn tally_at(&self, end: Instant, operations: u64, sent: u64) -> Tally {
        Tally {
            sent,
            operations,
            time_ns: nanos(end - self.start).max(1),
            cpu_ns: nanos(process_cpu_time().saturating_sub(self.cpu)),
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn checked(completion: &WorkCompletion) -> Result<()> {
    if completion.is_success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, RDMA)
        .because(format!("a work request ended with {}", completion.status))
        .into())
}

/// Waits for one completion.
#[inline]
fn one(cq: &Cq, watch: &mut Watch<'_>) -> Result<WorkCompletion> {
    let mut done = [WorkCompletion::EMPTY];
    while cq.poll(&mut done)? == 0 {
        watch.look_again()?;
    }
    checked(&done[0])?;
    Ok(done[0])
}

/// Many operations in flight, out of this end, into it, or both.
pub(super) struct Bandwidth<'p> {
    pub(super) plan: &'p Plan,
    pub(super) sends: bool,
    /// Messages arrive here.
    pub(super) receives: bool,
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

impl Bandwidth<'_> {
    pub(super) fn run(&self, node: &mut Node, bytes: u64, watch: &mut Watch<'_>) -> Result<Taken> {
        let (ours, into) = ([node.outgoing(bytes)?], [node.incoming(bytes)?]);
        let whole = [node.incoming(node.half())?];
        let (their_in, their_out) = (node.theirs(true, bytes)?, node.theirs(false, bytes)?);
        let Link { qps, cq, .. } = node.link()?;
        let mut received = 0;
        let pump = |qps: &mut [Qp], limit, received: &mut u64, watch: &mut Watch<'_>| {
            // Each branch is a loop of its own: the operation is chosen once.
            match self.plan.op {
                Op::Write => self.pump((qps, cq), (limit, &whole), received, watch, |qp, id, signaled| {
                    qp.post_send(id).signaled(signaled).write(&ours, their_in).post()
                }),
                Op::Read => self.pump((qps, cq), (limit, &whole), received, watch, |qp, id, signaled| {
                    qp.post_send(id).signaled(signaled).read(&into, their_out).post()
                }),
                Op::Send => self.pump((qps, cq), (limit, &whole), received, watch, |qp, id, signaled| {
                    qp.post_send(id).signaled(signaled).send(&ours).post()
                }),
                Op::Atomic => self.pump((qps, cq), (limit, &whole), received, watch, |qp, id, signaled| {
                    let post = qp.post_send(id).signaled(signaled);
                    post.fetch_add(&into[0], their_in, 1).post()
                }),
            }
        };
        let mut stopwatch = Stopwatch::start();
        let mut tally = None;
        if self.sends {
            let warm = match self.plan.warm_up {
                0 => 0,
                count => pump(qps, Limit::Operations(count), &mut received, watch)?,
            };
            stopwatch = Stopwatch::start();
            let operations = pump(qps, Limit::of(self.plan), &mut received, watch)?;
            let ours = stopwatch.tally(operations, warm + operations);
            watch.done(&ours)?;
            tally = Some(ours);
        }
        if self.receives {
            receive((qps, cq), &whole, &mut received, watch)?;
        }
        let theirs = watch.await_theirs()?;
        let ours = match tally {
            Some(ours) => ours,
            None => {
                let ours = stopwatch.tally(0, 0);
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

    /// Posts operations until `limit`, waits for all of them, and returns their number.
    #[inline]
    fn pump(
        &self,
        (qps, cq): (&mut [Qp], &Cq),
        (limit, into): (Limit, &[Sge; 1]),
        received: &mut u64,
        watch: &mut Watch<'_>,
        mut post: impl FnMut(&mut Qp, u64, bool) -> gaudi::Result<()>,
    ) -> Result<u64> {
        let (window, list) = (u64::from(self.plan.window), u64::from(self.plan.post_list));
        // Only completions make room, so one must be signaled before the window is full.
        let signal = self.plan.signal.min(self.plan.window).max(1);
        let mut flows = vec![Flow::default(); qps.len()];
        if let Limit::Operations(count) = limit {
            let (count, queues) = (u64::from(count), flows.len() as u64);
            for (at, flow) in flows.iter_mut().enumerate() {
                flow.share = count / queues + u64::from((at as u64) < count % queues);
            }
        } else {
            flows.iter_mut().for_each(|flow| flow.share = u64::MAX);
        }
        let end = match limit {
            Limit::Time(time) => Instant::now().checked_add(time),
            Limit::Operations(_) => None,
        };
        let mut is_over = false;
        let mut done = [WorkCompletion::EMPTY; 16];
        watch.renew();
        loop {
            let mut outstanding = 0;
            for (at, (qp, flow)) in qps.iter_mut().zip(&mut flows).enumerate() {
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
                        post(qp, id | u64::from(flow.group), signaled)?;
                        if signaled {
                            flow.group = 0;
                        }
                    }
                    next = list.min(flow.share - flow.posted);
                }
                if is_over && flow.group > 0 {
                    // One more, signaled, completes the group that the time cut.
                    flow.posted += 1;
                    post(qp, id | u64::from(flow.group + 1), true)?;
                    flow.group = 0;
                }
                outstanding += flow.posted - flow.complete;
            }
            if outstanding == 0 && (is_over || end.is_none()) {
                return Ok(flows.iter().map(|flow| flow.complete).sum());
            }
            let got = cq.poll(&mut done)?;
            for completion in &done[..got] {
                checked(completion)?;
                if completion.wr_id & RECEIVED != 0 {
                    repost(qps, completion.wr_id, into)?;
                    *received += 1;
                } else if let Some(flow) = flows.get_mut((completion.wr_id >> 32) as usize) {
                    flow.complete += completion.wr_id & 0xffff_ffff;
                }
            }
            if got > 0 || watch.look_again()? {
                let now = Instant::now();
                is_over |= end.is_some_and(|end| now >= end);
                if got > 0 {
                    watch.progress(now)?;
                }
            }
        }
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

/// Receives messages until the peer has ended the row and all its messages have arrived.
fn receive(
    (qps, cq): (&mut [Qp], &Cq),
    into: &[Sge; 1],
    received: &mut u64,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let mut done = [WorkCompletion::EMPTY; 16];
    watch.renew();
    loop {
        match watch.theirs() {
            Some(theirs) if *received == theirs.sent => return Ok(()),
            Some(theirs) if *received > theirs.sent => {
                return Err(Error::new(ErrorKind::Protocol, "receive messages")
                    .because("more messages arrived than the peer sent")
                    .saw(*received, theirs.sent)
                    .into());
            }
            _ => {}
        }
        let got = cq.poll(&mut done)?;
        if got == 0 {
            watch.look_again()?;
            continue;
        }
        for completion in &done[..got] {
            checked(completion)?;
            repost(qps, completion.wr_id, into)?;
        }
        *received += got as u64;
        watch.renew();
    }
}

/// One operation after the other.
pub(super) fn latency(
    node: &mut Node,
    plan: &Plan,
    bytes: u64,
    by_memory: bool,
    watch: &mut Watch<'_>,
) -> Result<Taken> {
    let limit = Limit::of(plan);
    let mut samples = Samples::new(limit.expected());
    let mut ping = Ping::new(node, bytes)?;
    let (into, their_in, their_out) = (
        node.incoming(bytes)?,
        node.theirs(true, bytes)?,
        node.theirs(false, bytes)?,
    );
    let warm = u64::from(plan.warm_up);
    let ended_early =
        || Error::new(ErrorKind::Protocol, "perf").because("the peer ended the row before this end did");
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
        // A round trip has two of them.
        let ways = match plan.op {
            Op::Write if by_memory => {
                ping.write(node, round, watch)?;
                if !ping.await_byte(node, round, watch)? {
                    return Err(ended_early().into());
                }
                2
            }
            Op::Send => {
                ping.send(node, watch)?;
                if !ping.await_message(node, watch)? {
                    return Err(ended_early().into());
                }
                2
            }
            op => {
                let qp = node.first()?;
                match op {
                    Op::Write => qp.post_send(1).write(&ping.ours, their_in).post()?,
                    Op::Read => qp.post_send(1).read(&[into], their_out).post()?,
                    _ => qp.post_send(1).fetch_add(&into, their_in, 1).post()?,
                }
                one(&node.link()?.cq, watch)?;
                1
            }
        };
        let now = Instant::now();
        if round > warm {
            samples.push(nanos(now - start) / ways);
        }
        start = now;
        watch.progress(now)?;
    }
    let ours = stopwatch.tally_at(start, round - warm, round);
    ping.drain(node, watch)?;
    watch.done(&ours)?;
    let theirs = watch.await_theirs()?;
    Ok(Taken {
        samples,
        ours,
        theirs,
    })
}

/// The other side of a latency by round trips. It ends when the peer ends the row.
pub(super) fn echo(node: &mut Node, bytes: u64, by_memory: bool, watch: &mut Watch<'_>) -> Result<()> {
    let stopwatch = Stopwatch::start();
    let mut ping = Ping::new(node, bytes)?;
    for round in 1.. {
        if by_memory {
            if !ping.await_byte(node, round, watch)? {
                break;
            }
            ping.write(node, round, watch)?;
        } else {
            if !ping.await_message(node, watch)? {
                break;
            }
            ping.send(node, watch)?;
        }
        watch.renew();
    }
    ping.drain(node, watch)?;
    watch.done(&stopwatch.tally(0, 0))
}

/// The other side of a row in which the NIC serves alone.
pub(super) fn idle(watch: &mut Watch<'_>) -> Result<()> {
    let stopwatch = Stopwatch::start();
    watch.await_theirs()?;
    watch.done(&stopwatch.tally(0, 0))
}

/// One end of a ping-pong. Some of its sends are signaled, so that the queue has room.
struct Ping {
    bytes: u64,
    ours: [Sge; 1],
    their_in: RemoteAddr,
    into: [Sge; 1],
    /// The bytes that are sent without a region, if they are few enough.
    inline: Option<Vec<u8>>,
    unsignaled: u32,
    /// Signaled sends whose completion was not seen.
    outstanding: u32,
    messages: u32,
}

const GROUP: u32 = 16;

impl Ping {
    fn new(node: &Node, bytes: u64) -> Result<Self> {
        Ok(Self {
            bytes,
            ours: [node.outgoing(bytes)?],
            their_in: node.theirs(true, bytes)?,
            into: [node.incoming(node.half())?],
            inline: if bytes <= node.inline().into() {
                Some(vec![0x5a; usize::try_from(bytes)?])
            } else {
                None
            },
            unsignaled: 0,
            outstanding: 0,
            messages: 0,
        })
    }

    /// Whether the next send is signaled; first waits for the completion of the signaled one
    /// before.
    fn signaled(&mut self, node: &mut Node, watch: &mut Watch<'_>) -> Result<bool> {
        self.unsignaled += 1;
        if self.unsignaled < GROUP {
            return Ok(false);
        }
        self.unsignaled = 0;
        self.drain(node, watch)?;
        self.outstanding = 1;
        Ok(true)
    }

    fn took(&mut self, node: &mut Node, completion: &WorkCompletion) -> Result<()> {
        checked(completion)?;
        if completion.opcode == WcOpcode::RECV {
            self.messages += 1;
            repost(&mut node.link()?.qps, completion.wr_id, &self.into)?;
        } else {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(())
    }

    fn write(&mut self, node: &mut Node, round: u64, watch: &mut Watch<'_>) -> Result<()> {
        let signaled = self.signaled(node, watch)?;
        let value = mark(round);
        if self.inline.is_none() {
            node.set_last_byte(self.bytes, value);
        }
        let qp = node.first()?;
        match &mut self.inline {
            Some(inline) => {
                if let Some(last) = inline.last_mut() {
                    *last = value;
                }
                qp.post_send(1)
                    .signaled(signaled)
                    .write_inline(inline, self.their_in)
                    .post()?;
            }
            None => qp
                .post_send(1)
                .signaled(signaled)
                .write(&self.ours, self.their_in)
                .post()?,
        }
        Ok(())
    }

    /// Waits for the peer's byte; false if the peer ended the row instead.
    ///
    /// Memory never shows that a queue pair is in error, so the completion queue is polled at
    /// intervals.
    fn await_byte(&mut self, node: &mut Node, round: u64, watch: &mut Watch<'_>) -> Result<bool> {
        let value = mark(round);
        while node.last_byte(self.bytes) != value {
            if watch.look_again()? {
                let mut done = [WorkCompletion::EMPTY];
                while node.link()?.cq.poll(&mut done)? > 0 {
                    self.took(node, &done[0])?;
                }
                if watch.theirs().is_some() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn send(&mut self, node: &mut Node, watch: &mut Watch<'_>) -> Result<()> {
        let signaled = self.signaled(node, watch)?;
        let qp = node.first()?;
        match &self.inline {
            Some(inline) => qp.post_send(1).signaled(signaled).send_inline(inline).post()?,
            None => qp.post_send(1).signaled(signaled).send(&self.ours).post()?,
        }
        Ok(())
    }

    /// Waits for the peer's message; false if the peer ended the row instead.
    fn await_message(&mut self, node: &mut Node, watch: &mut Watch<'_>) -> Result<bool> {
        let mut done = [WorkCompletion::EMPTY];
        while self.messages == 0 {
            if node.link()?.cq.poll(&mut done)? > 0 {
                self.took(node, &done[0])?;
            } else if watch.look_again()? && watch.theirs().is_some() {
                return Ok(false);
            }
        }
        self.messages -= 1;
        Ok(true)
    }

    fn drain(&mut self, node: &mut Node, watch: &mut Watch<'_>) -> Result<()> {
        while self.outstanding > 0 {
            let completion = one(&node.link()?.cq, watch)?;
            self.took(node, &completion)?;
        }
        Ok(())
    }
}

/// The last byte of a round: never 0, which is the byte before the first round.
fn mark(round: u64) -> u8 {
    (round % 255) as u8 + 1
}
