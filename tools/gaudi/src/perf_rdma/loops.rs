//! The loops whose time is measured: nothing is allocated and nothing is looked up in them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::{Cq, Qp, WcOpcode, WorkCompletion};

use super::Op;
use super::node::Node;

/// `wr_id` of receives.
pub(super) const RECEIVED: u64 = u64::MAX;
/// Looks in a row before the processor is offered to others: whoever answers may need it. Offered often, small writes pay for it.
const SPINS: u32 = 1024;
/// Looks between two looks at the clock.
const LOOKS: u32 = 4096;

/// What a row took.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Of one operation each, or of one of a group that completed together.
    pub(super) each: Vec<u64>,
    pub(super) all: Duration,
    pub(super) operations: u32,
}

/// Looks again and again, for so long. The clock is read by those who look in vain only: it may be slow.
struct Patience {
    looks: u32,
    timeout: Duration,
    end: Option<Instant>,
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        Self {
            looks: 0,
            timeout,
            end: None,
        }
    }

    /// What was waited for came.
    #[inline]
    fn renew(&mut self) {
        self.looks = 0;
        self.end = None;
    }

    #[inline]
    fn look_again(&mut self) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks % SPINS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        if self.looks % LOOKS == 0 {
            let now = Instant::now();
            if now >= *self.end.get_or_insert(now + self.timeout) {
                return Err(Error::timed_out("wait for the NIC").into());
            }
        }
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn checked(completion: &WorkCompletion) -> Result<()> {
    if completion.is_success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, "RDMA")
        .because(format!("a work request ended with {}", completion.status))
        .into())
}

/// Waits for one completion.
#[inline]
fn one(cq: &Cq, patience: &mut Patience) -> Result<WorkCompletion> {
    let mut done = [WorkCompletion::EMPTY];
    while cq.poll(&mut done)? == 0 {
        patience.look_again()?;
    }
    checked(&done[0])?;
    Ok(done[0])
}

/// Many operations under way.
pub(super) struct Bandwidth {
    pub(super) window: u32,
    pub(super) signal: u32,
    pub(super) timeout: Duration,
}

impl Bandwidth {
    pub(super) fn run(&self, node: &mut Node, op: Op, bytes: u64, count: u32) -> Result<Taken> {
        let (ours, into) = ([node.outgoing(bytes)?], [node.incoming(bytes)?]);
        let (their_in, their_out) = (node.theirs(true, bytes)?, node.theirs(false, bytes)?);
        let inline = vec![0x5a; usize::try_from(bytes.min(node.inline.into()))?];
        let inline = (op == Op::Send && bytes <= node.inline.into()).then_some(&inline[..]);
        let qp = node.qp.as_mut().context("there is no queue pair")?;
        // Each branch is a loop of its own: the operation is chosen once.
        match (op, inline) {
            (Op::Write, _) => self.pump(qp, &node.cq, count, |qp, id, signaled| {
                qp.post_send(id).signaled(signaled).write(&ours, their_in).post()
            }),
            (Op::Read, _) => self.pump(qp, &node.cq, count, |qp, id, signaled| {
                qp.post_send(id).signaled(signaled).read(&into, their_out).post()
            }),
            (Op::Send, _) => self.pump(qp, &node.cq, count, |qp, id, signaled| {
                qp.post_send(id).signaled(signaled).send(&ours).post()
            }),
            (Op::Atomic, _) => self.pump(qp, &node.cq, count, |qp, id, signaled| {
                qp.post_send(id)
                    .signaled(signaled)
                    .fetch_add(&into[0], their_in, 1)
                    .post()
            }),
        }
    }

    #[inline]
    fn pump(
        &self,
        qp: &mut Qp,
        cq: &Cq,
        count: u32,
        mut post: impl FnMut(&mut Qp, u64, bool) -> gaudi_seam::Result<()>,
    ) -> Result<Taken> {
        // Room is known by completions alone, so that one must come before the window is full.
        let signal = self.signal.min(self.window).max(1);
        let mut taken = Taken {
            each: Vec::with_capacity((count / signal + 1) as usize),
            operations: count,
            ..Taken::default()
        };
        let mut done = [WorkCompletion::EMPTY; 16];
        let (mut posted, mut complete, mut group) = (0, 0, 0);
        let mut patience = Patience::new(self.timeout);
        let start = Instant::now();
        let mut last = start;
        while complete < count {
            while posted < count && posted - complete < self.window {
                group += 1;
                posted += 1;
                let signaled = group == signal || posted == count;
                // The completion says how many it speaks for.
                post(qp, u64::from(group), signaled)?;
                if signaled {
                    group = 0;
                }
            }
            let got = cq.poll(&mut done)?;
            if got == 0 {
                patience.look_again()?;
                continue;
            }
            let now = Instant::now();
            let mut newly = 0;
            for completion in &done[..got] {
                checked(completion)?;
                newly += u32::try_from(completion.wr_id).unwrap_or(1);
            }
            complete += newly;
            taken.each.push(nanos(now - last) / u64::from(newly.max(1)));
            last = now;
            patience.renew();
        }
        taken.all = start.elapsed();
        Ok(taken)
    }
}

/// One operation after the other.
pub(super) fn latency(
    node: &mut Node,
    op: Op,
    bytes: u64,
    (warm, count): (u32, u32),
    by_memory: bool,
    timeout: Duration,
) -> Result<Taken> {
    let mut taken = Taken {
        each: Vec::with_capacity(count as usize),
        operations: count,
        ..Taken::default()
    };
    let mut ping = Ping::new(node, bytes)?;
    let (into, their_in, their_out) = (
        node.incoming(bytes)?,
        node.theirs(true, bytes)?,
        node.theirs(false, bytes)?,
    );
    let mut patience = Patience::new(timeout);
    // One look at the clock a round: the end of one is the start of the next.
    let mut start = Instant::now();
    let mut begun = start;
    for round in 1..=warm + count {
        if round == warm + 1 {
            begun = start;
        }
        // There and back is two of them.
        let ways = match op {
            Op::Write if by_memory => {
                ping.write(node, round, &mut patience)?;
                ping.await_byte(node, round, &mut patience)?;
                2
            }
            Op::Send => {
                ping.send(node, &mut patience)?;
                ping.await_message(node, &mut patience)?;
                2
            }
            _ => {
                let qp = node.qp.as_mut().context("there is no queue pair")?;
                match op {
                    Op::Write => qp.post_send(1).write(&ping.ours, their_in).post()?,
                    Op::Read => qp.post_send(1).read(&[into], their_out).post()?,
                    _ => qp.post_send(1).fetch_add(&into, their_in, 1).post()?,
                }
                one(&node.cq, &mut patience)?;
                1
            }
        };
        let now = Instant::now();
        if round > warm {
            taken.each.push(nanos(now - start) / ways);
        }
        start = now;
        patience.renew();
    }
    taken.all = start - begun;
    ping.drain(node, &mut patience)?;
    Ok(taken)
}

/// The other side of a latency that goes there and back.
pub(super) fn echo(
    node: &mut Node,
    bytes: u64,
    count: u32,
    by_memory: bool,
    timeout: Duration,
) -> Result<()> {
    let mut ping = Ping::new(node, bytes)?;
    let mut patience = Patience::new(timeout);
    for round in 1..=count {
        if by_memory {
            ping.await_byte(node, round, &mut patience)?;
            ping.write(node, round, &mut patience)?;
        } else {
            ping.await_message(node, &mut patience)?;
            ping.send(node, &mut patience)?;
        }
        patience.renew();
    }
    ping.drain(node, &mut patience)
}

/// One end of a ping-pong: every so many of its sends tell their completion, so that the queue has room.
struct Ping {
    bytes: u64,
    ours: [gaudi_verbs::Sge; 1],
    their_in: gaudi_verbs::RemoteAddr,
    into: [gaudi_verbs::Sge; 1],
    /// What goes without a region, where it is short enough.
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
            inline: if bytes <= node.inline.into() {
                Some(vec![0x5a; usize::try_from(bytes)?])
            } else {
                None
            },
            unsignaled: 0,
            outstanding: 0,
            messages: 0,
        })
    }

    /// Whether the next send is to tell its completion; waits where the one before has not yet.
    fn signaled(&mut self, node: &mut Node, patience: &mut Patience) -> Result<bool> {
        self.unsignaled += 1;
        if self.unsignaled < GROUP {
            return Ok(false);
        }
        self.unsignaled = 0;
        while self.outstanding > 0 {
            let completion = one(&node.cq, patience)?;
            self.took(node, &completion)?;
        }
        self.outstanding = 1;
        Ok(true)
    }

    fn took(&mut self, node: &mut Node, completion: &WorkCompletion) -> Result<()> {
        if completion.opcode == WcOpcode::RECV {
            self.messages += 1;
            let qp = node.qp.as_mut().context("there is no queue pair")?;
            qp.post_recv(RECEIVED).post(&self.into)?;
        } else {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(())
    }

    fn write(&mut self, node: &mut Node, round: u32, patience: &mut Patience) -> Result<()> {
        let signaled = self.signaled(node, patience)?;
        let value = (round % 255) as u8 + 1;
        if self.inline.is_none() {
            node.set_last_byte(self.bytes, value);
        }
        let qp = node.qp.as_mut().context("there is no queue pair")?;
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

    fn await_byte(&self, node: &Node, round: u32, patience: &mut Patience) -> Result<()> {
        let value = (round % 255) as u8 + 1;
        while node.last_byte(self.bytes) != value {
            patience.look_again()?;
        }
        Ok(())
    }

    fn send(&mut self, node: &mut Node, patience: &mut Patience) -> Result<()> {
        let signaled = self.signaled(node, patience)?;
        let qp = node.qp.as_mut().context("there is no queue pair")?;
        match &self.inline {
            Some(inline) => qp.post_send(1).signaled(signaled).send_inline(inline).post()?,
            None => qp.post_send(1).signaled(signaled).send(&self.ours).post()?,
        }
        Ok(())
    }

    fn await_message(&mut self, node: &mut Node, patience: &mut Patience) -> Result<()> {
        while self.messages == 0 {
            let completion = one(&node.cq, patience)?;
            self.took(node, &completion)?;
        }
        self.messages -= 1;
        Ok(())
    }

    fn drain(&mut self, node: &mut Node, patience: &mut Patience) -> Result<()> {
        while self.outstanding > 0 {
            let completion = one(&node.cq, patience)?;
            self.took(node, &completion)?;
        }
        Ok(())
    }
}

/// Takes so many messages.
pub(super) fn receive(node: &mut Node, count: u32, timeout: Duration) -> Result<()> {
    let into = [node.incoming(node.half())?];
    let mut done = [WorkCompletion::EMPTY; 16];
    let mut patience = Patience::new(timeout);
    let mut got = 0;
    let qp = node.qp.as_mut().context("there is no queue pair")?;
    while got < count {
        let here = node.cq.poll(&mut done)?;
        if here == 0 {
            patience.look_again()?;
            continue;
        }
        for completion in &done[..here] {
            checked(completion)?;
            qp.post_recv(RECEIVED).post(&into)?;
        }
        got += u32::try_from(here).unwrap_or(0);
        patience.renew();
    }
    Ok(())
}
