//! A case: options, operations and a fault plan, all of them made from a seed and a number.

use std::fmt;
use std::time::Duration;

use gaudi_layers::fault::{Plan, Rule, Schedule, Target, Verdict};
use gaudi_random::Rng;
use gaudi_seam::Errno;
use gaudi_seam::Operation;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $weight:literal,)*) => {
        /// What an operation does. Its numbers choose slots, lengths and values; where a slot does not have what it takes, nothing is
        /// done, so that any part of a sequence is a sequence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// Each kind, as often as it is to be met.
            const WEIGHED: &'static [(Self, u64)] = &[$((Self::$name, $weight)),*];
        }
    };
}

kinds! {
    /// `Device::alloc`.
    Alloc 10,
    /// `Device::alloc_exclusive`.
    AllocExclusive 3,
    /// `Device::alloc_host`.
    AllocHost 9,
    /// The processor writes into a host mapping.
    HostWrite 8,
    /// `Device::copy` from host to device memory.
    CopyToDevice 14,
    /// `Device::copy` from device to host memory.
    CopyToHost 12,
    /// `Device::copy` within device memory.
    CopyInDevice 8,
    /// `Device::fill`.
    Fill 8,
    /// `Device::write`, through staging memory.
    Write 3,
    /// `Device::read`, through staging memory.
    Read 3,
    /// `Device::queue`.
    OpenQueue 5,
    /// A copy through a queue of one's own.
    QueueCopy 7,
    /// A queue waits for a sync object that nobody has raised.
    Gate 3,
    /// Another queue raises it.
    OpenGate 3,
    /// `Completion::poll`.
    Poll 5,
    /// `Completion::wait` to the end.
    Wait 7,
    /// `Completion::wait` with no patience.
    WaitNot 3,
    /// `Device::drain`.
    Drain 2,
    /// A buffer is dropped.
    DropBuffer 4,
    /// A buffer is closed.
    CloseBuffer 5,
    /// A host mapping is dropped.
    DropHost 4,
    /// A host mapping is closed.
    CloseHost 4,
    /// A queue is dropped.
    DropQueue 3,
    /// A dma-buf of an exclusive buffer.
    Export 5,
    /// A window of it goes through a socket and comes back.
    Pass 4,
    /// A dma-buf, window or attachment goes.
    DropExport 5,
    /// `HL_MEM_OP_ALLOC`.
    RawAlloc 4,
    /// `HL_MEM_OP_MAP` of it.
    RawMap 4,
    /// `HL_MEM_OP_UNMAP`, of what is mapped or no longer is.
    RawUnmap 4,
    /// `HL_MEM_OP_FREE`, of what is there or no longer is.
    RawFree 4,
    /// A command buffer that fills memory of its own.
    RawFill 4,
    /// A NOP on a queue of any kind.
    RawNop 5,
    /// Something that the driver refuses.
    RawWrong 6,
    /// `HL_CS_FLAGS_SIGNAL`.
    Signal 4,
    /// `HL_CS_FLAGS_WAIT` for a signal.
    AwaitSignal 4,
    /// `HL_IOCTL_WAIT_CS` of a submission of the last three kinds.
    RawWait 5,
    /// `HL_WAIT_CS_FLAGS_INTERRUPT`.
    Interrupt 2,
    /// `HL_INFO_REGISTER_EVENTFD`.
    Register 2,
    /// `HL_INFO_UNREGISTER_EVENTFD`.
    Unregister 2,
    /// The device's status.
    Status 2,
    /// What a buffer or a mapping holds is compared with what it must hold.
    Check 6,
    /// Everything is given back, the device is closed and opened again.
    Reopen 1,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// Chooses among slots.
    pub a: u16,
    /// Chooses among other slots.
    pub b: u16,
    /// Chooses lengths, values, ways.
    pub c: u16,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {}", self.kind, self.a, self.b, self.c)
    }
}

/// A sequence and what disturbs it.
#[derive(Debug, Clone)]
pub struct Case {
    /// Of the run.
    pub seed: u64,
    /// Its number in the run.
    pub number: u64,
    /// Whether a seed orders the chip's work, else it runs as it comes.
    pub stepped: bool,
    /// Bytes in one LIN_DMA packet.
    pub packet_bytes: u64,
    /// Packets in one submission.
    pub packets: u32,
    /// Command buffers of each queue.
    pub slots: u32,
    /// The order in which things are dropped at the end.
    pub end: u64,
    /// What is done.
    pub ops: Vec<Op>,
    /// What goes wrong.
    pub plan: Plan,
}

impl Case {
    /// The case of that number.
    pub fn generate(seed: u64, number: u64) -> Self {
        let mut rng = Rng::of_case(seed, number);
        let all: u64 = Kind::WEIGHED.iter().map(|(_, weight)| weight).sum();
        let count = 8 + rng.below(40);
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let mut at = rng.below(all);
                let kind = Kind::WEIGHED.iter().find(|(_, weight)| {
                    let hit = at < *weight;
                    at = at.saturating_sub(*weight);
                    hit
                });
                let bits = rng.next_u64();
                Op {
                    kind: kind.map_or(Kind::Check, |(kind, _)| *kind),
                    a: bits as u16,
                    b: (bits >> 16) as u16,
                    c: (bits >> 32) as u16,
                }
            })
            .collect();
        // Memory first, so that what follows finds some.
        for (op, kind) in
            ops.iter_mut()
                .zip([Kind::Alloc, Kind::AllocHost, Kind::HostWrite, Kind::CopyToDevice])
        {
            op.kind = kind;
        }
        Self {
            seed,
            number,
            stepped: rng.percent(40),
            packet_bytes: rng.pick(&[256, 384, 512, 1024, 4096, 1 << 20]),
            packets: rng.pick(&[1, 1, 2, 3, 8]),
            slots: rng.pick(&[1, 2, 3, 4, 16]),
            end: rng.next_u64(),
            plan: plan(&mut rng, &Performed::by(&ops)),
            ops,
        }
    }
}

impl Kind {
    /// What it asks of the driver in most cases. Where a slot is empty or a piece of shared memory is at hand it asks nothing.
    const fn operations(self) -> &'static [Operation] {
        use Operation::{
            CbCreate, CbDestroy, CbInfo, ExportDmabuf, Info, MemAlloc, MemFree, MemMapDevice, MemMapHost,
            MemUnmap, Mmap, RegisterEvents, Submit, UnregisterEvents, WaitCs, WaitInterrupt,
        };
        match self {
            Self::AllocExclusive => &[MemAlloc, MemMapDevice],
            Self::AllocHost => &[MemMapHost],
            Self::CopyToDevice | Self::CopyToHost | Self::CopyInDevice | Self::Fill => &[Submit],
            Self::Write | Self::Read => &[Submit, WaitCs],
            Self::OpenQueue => &[CbCreate, CbInfo, Mmap, CbDestroy],
            Self::Signal | Self::AwaitSignal | Self::RawNop => &[Submit],
            Self::RawFill => &[MemMapHost, Submit],
            Self::Wait | Self::Drain => &[WaitCs],
            Self::CloseHost | Self::DropHost => &[MemUnmap],
            Self::Export => &[ExportDmabuf],
            Self::RawAlloc => &[MemAlloc],
            Self::RawUnmap => &[MemUnmap],
            Self::RawFree => &[MemFree],
            Self::Interrupt => &[WaitInterrupt],
            Self::Register => &[RegisterEvents],
            Self::Unregister => &[UnregisterEvents],
            Self::Status => &[Info],
            _ => &[],
        }
    }
}

/// What a sequence asks of the driver, by guess: a rule for what it never does would strike nothing.
struct Performed(Vec<(Operation, u64)>);

impl Performed {
    fn by(ops: &[Op]) -> Self {
        let count = |operation: &Operation| {
            let of = |op: &&Op| op.kind.operations().contains(operation);
            let own = ops.iter().filter(of).count() as u64;
            // The first four operations of a sequence, and its end.
            own + u64::from(SURE.contains(operation))
        };
        let mut all: Vec<_> = STRUCK
            .iter()
            .map(|operation| (*operation, count(operation)))
            .collect();
        all.retain(|&(_, count)| count > 0);
        Self(all)
    }

    fn pick(&self, rng: &mut Rng) -> Operation {
        let at = rng.below(self.0.len() as u64) as usize;
        self.0
            .get(at)
            .map_or(Operation::Submit, |&(operation, _)| operation)
    }

    /// How often a target is met, by guess, and half of that: what is done in vain and what an earlier fault ends is never met.
    fn half(&self, target: Target) -> u64 {
        let of = |(operation, _): &&(Operation, u64)| target.matches(*operation);
        let counts = self.0.iter().filter(of).map(|(_, count)| *count);
        // The frequent ones stand here more often than once, and all of them together are met more often than any.
        counts.max().unwrap_or(1).div_ceil(2)
    }
}

/// What every sequence does.
const SURE: &[Operation] = &[
    Operation::Submit,
    Operation::WaitCs,
    Operation::MemAlloc,
    Operation::MemMapDevice,
    Operation::MemMapHost,
    Operation::MemUnmap,
    Operation::MemFree,
];

/// Operations that sequences perform, the frequent ones more often.
const STRUCK: &[Operation] = &[
    Operation::Submit,
    Operation::Submit,
    Operation::Submit,
    Operation::WaitCs,
    Operation::WaitCs,
    Operation::WaitCs,
    Operation::MemAlloc,
    Operation::MemMapDevice,
    Operation::MemMapHost,
    Operation::MemMapHost,
    Operation::MemUnmap,
    Operation::MemUnmap,
    Operation::MemFree,
    Operation::CbCreate,
    Operation::CbInfo,
    Operation::Mmap,
    Operation::CbDestroy,
    Operation::ExportDmabuf,
    Operation::Info,
    Operation::RegisterEvents,
    Operation::UnregisterEvents,
    Operation::WaitInterrupt,
];

/// What the driver answers where it refuses, and some errnos that it never does.
const ERRNOS: &[Errno] = &[
    Errno::EINVAL,
    Errno::ENOMEM,
    Errno::EBUSY,
    Errno::EIO,
    Errno::ETIMEDOUT,
    Errno::EPERM,
    Errno::EFAULT,
    Errno::ENODEV,
    Errno::EINTR,
    Errno::EAGAIN,
    Errno::ENOTTY,
    Errno::EMFILE,
    Errno::ENOSPC,
];

fn plan(rng: &mut Rng, performed: &Performed) -> Plan {
    // One in twenty has none: the stack must be right without faults too.
    let rules = match rng.below(20) {
        0 => 0,
        1..=5 => 1,
        6..=11 => 2,
        12..=16 => 3,
        _ => 4,
    };
    let rules = (0..rules).map(|_| rule(rng, performed)).collect();
    Plan { rules }
}

fn rule(rng: &mut Rng, performed: &Performed) -> Rule {
    let operation = performed.pick(rng);
    let (target, verdict) = match rng.below(20) {
        0 => (
            Target::Only(operation),
            Verdict::Delay(Duration::from_millis(1 << rng.below(16))),
        ),
        1..=3 => (Target::Only(Operation::Submit), Verdict::Lose),
        4 => (Target::Only(operation), Verdict::Reset),
        5 => (Target::Any, Verdict::Reset),
        6 => (Target::Any, Verdict::Error(rng.pick(ERRNOS))),
        7 => (Target::Only(Operation::Submit), Verdict::Error(Errno::EAGAIN)),
        8 => (Target::Only(Operation::WaitCs), Verdict::Error(Errno::EINTR)),
        _ => (Target::Only(operation), Verdict::Error(rng.pick(ERRNOS))),
    };
    let wide = target == Target::Any;
    let most = performed.half(target).min(if wide { 40 } else { 4 });
    let first = 1 + rng.below(most.max(1));
    let again = matches!(verdict, Verdict::Error(Errno::EAGAIN | Errno::EINTR));
    let schedule = match rng.below(4) {
        // Answers that ask for another try end after a few: the stack is told to be patient.
        _ if again => Schedule::range(first, first + rng.below(3), 1),
        0 if !wide => Schedule::range(first, u64::MAX, 1 + rng.below(3)),
        1 => Schedule::range(first, first + rng.below(4), 1),
        _ => Schedule::nth(first),
    };
    let percent = if !again && rng.percent(15) { 50 } else { 100 };
    Rule {
        target,
        schedule,
        verdict,
        percent,
        seed: rng.below(1000),
    }
}
