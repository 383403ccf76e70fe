//! A case: options, operations and a fault plan, generated from a seed and a number.

use std::fmt;
use std::time::Duration;

use gaudi_layers::fault::{Plan, Rule, Schedule, Target, Verdict};
use gaudi_random::Rng;
use gaudi_seam::Errno;
use gaudi_seam::Operation;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $weight:literal,)*) => {
        /// The kind of an operation. Its numbers choose slots, lengths and values. An operation on
        /// an unsuitable slot does nothing, so any part of a sequence is a sequence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// Each kind with its weight.
            const WEIGHTS: &'static [(Self, u64)] = &[$((Self::$name, $weight)),*];
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
    /// A copy through an opened queue.
    QueueCopy 7,
    /// A queue waits for a sync object.
    Gate 3,
    /// Another queue signals that sync object.
    OpenGate 3,
    /// `Completion::poll`.
    Poll 5,
    /// `Completion::wait` without a deadline.
    Wait 7,
    /// `Completion::wait` with a timeout of zero.
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
    /// A window of a dma-buf is sent through a socket and received.
    Pass 4,
    /// A dma-buf, window or attachment is dropped.
    DropExport 5,
    /// `HL_MEM_OP_ALLOC`.
    RawAlloc 4,
    /// `HL_MEM_OP_MAP` of such an allocation.
    RawMap 4,
    /// `HL_MEM_OP_UNMAP` of an address that is or was mapped.
    RawUnmap 4,
    /// `HL_MEM_OP_FREE` of a valid or an invalid handle.
    RawFree 4,
    /// A command buffer that fills a mapping made at the seam.
    RawFill 4,
    /// A NOP on a queue of any kind.
    RawNop 5,
    /// A request that the driver refuses.
    RawWrong 6,
    /// `HL_CS_FLAGS_SIGNAL`.
    Signal 4,
    /// `HL_CS_FLAGS_WAIT` for a signal.
    AwaitSignal 4,
    /// `HL_IOCTL_WAIT_CS` for a submission of the last three kinds.
    RawWait 5,
    /// `HL_WAIT_CS_FLAGS_INTERRUPT`.
    Interrupt 2,
    /// `HL_INFO_REGISTER_EVENTFD`.
    Register 2,
    /// `HL_INFO_UNREGISTER_EVENTFD`.
    Unregister 2,
    /// The device's status.
    Status 2,
    /// The bytes of a buffer or a mapping are compared with the expected ones.
    Check 6,
    /// Everything is released, and the device is closed and opened again.
    Reopen 1,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The kind.
    pub kind: Kind,
    /// Chooses among slots.
    pub a: u16,
    /// Chooses among other slots.
    pub b: u16,
    /// Chooses lengths, values and variants.
    pub c: u16,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {}", self.kind, self.a, self.b, self.c)
    }
}

/// A sequence and its fault plan.
#[derive(Debug, Clone)]
pub struct Case {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the case in the run.
    pub number: u64,
    /// Whether the seed orders the chip's work; otherwise work runs as it arrives.
    pub stepped: bool,
    /// The maximum bytes of one LIN_DMA packet.
    pub packet_bytes: u64,
    /// The maximum packets of one submission.
    pub packets: u32,
    /// The number of command buffers of each queue.
    pub slots: u32,
    /// The seed of the order of releases at the close.
    pub end: u64,
    /// The operations.
    pub ops: Vec<Op>,
    /// The faults to inject.
    pub plan: Plan,
}

impl Case {
    /// Generates case `number` of `seed`.
    pub fn generate(seed: u64, number: u64) -> Self {
        let mut rng = Rng::of_case(seed, number);
        let all: u64 = Kind::WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let count = 8 + rng.below(40);
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let mut at = rng.below(all);
                let kind = Kind::WEIGHTS.iter().find(|(_, weight)| {
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
        // Memory first, so that later operations have some to use.
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
    /// Returns the operations that it usually requests. With an empty slot, or with free shared
    /// memory, it requests none.
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

/// An estimate of the driver calls of a sequence. A rule for an operation that the sequence never
/// performs would inject nothing.
struct Performed(Vec<(Operation, u64)>);

impl Performed {
    fn by(ops: &[Op]) -> Self {
        let count = |operation: &Operation| {
            let of = |op: &&Op| op.kind.operations().contains(operation);
            let own = ops.iter().filter(of).count() as u64;
            // The first four operations of a sequence and its close.
            own + u64::from(ALWAYS.contains(operation))
        };
        let mut all: Vec<_> = FAULTABLE
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

    /// Returns half the estimated number of calls that match `target`: calls on unsuitable slots
    /// and after an earlier fault never happen.
    fn half(&self, target: Target) -> u64 {
        let of = |(operation, _): &&(Operation, u64)| target.matches(*operation);
        let counts = self.0.iter().filter(of).map(|(_, count)| *count);
        // Frequent operations are listed more than once, so `Any` takes the largest count.
        counts.max().unwrap_or(1).div_ceil(2)
    }
}

/// The operations of every sequence.
const ALWAYS: &[Operation] = &[
    Operation::Submit,
    Operation::WaitCs,
    Operation::MemAlloc,
    Operation::MemMapDevice,
    Operation::MemMapHost,
    Operation::MemUnmap,
    Operation::MemFree,
];

/// The operations of sequences; frequent ones are listed more than once.
const FAULTABLE: &[Operation] = &[
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

/// Errnos of the driver's refusals, and some that the driver never returns.
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
    // One case in twenty has no rules: the stack must also work without faults.
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
        // Errnos that the stack retries end after a few: the stack has no deadline here.
        _ if again => Schedule::range(first, first + rng.below(3), 1),
        0 if !wide => Schedule::range(first, u64::MAX, 1 + rng.below(3)),
        1 => Schedule::range(first, first + rng.below(4), 1),
        _ => Schedule::nth(first),
    };
    let percent = if !again && rng.percent(15) { 50 } else { 100 };
    Rule {
        schedule: schedule.with_chance(percent, rng.below(1000)),
        ..Rule::new(target, verdict)
    }
}
