//! Cases over a [`Fixture`], and running them.

use std::time::{Duration, Instant};

use gaudi_copy::{
    Attached, Config, DeviceSpec, Error, ErrorKind, Memory, MemoryDomain, Transport, memory_types,
};
use gaudi_harness::survive;

/// What a case needs besides a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A second card.
    Second,
    /// An export that a processor can map: the mock's.
    CpuExport,
    /// A compute node that is closed when the case begins.
    Closed,
}

/// A case. Its group is the topic.
pub type Case = gaudi_harness::Case<Need, fn(&Fixture)>;
/// Outcome of a case.
pub type Outcome = gaudi_harness::Outcome<String>;

/// The cards of a case.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// The card.
    pub spec: DeviceSpec,
    /// Another card; `None` if the machine has one only.
    pub second: Option<DeviceSpec>,
    /// Whether a processor can map exports of the card.
    pub cpu_export: bool,
    /// Keeps the card open between cases, except before those that need it closed.
    pub open: Option<MemoryDomain>,
}

impl Fixture {
    /// The domain of the card.
    pub(crate) fn domain(&self) -> MemoryDomain {
        MemoryDomain::with_config(&self.spec, Config::default())
    }

    /// The domain of the second card.
    pub(crate) fn other(&self) -> MemoryDomain {
        let spec = self.second.as_ref().expect("the case needs a second card");
        MemoryDomain::with_config(spec, Config::default())
    }
}

/// Fails if a case left memory behind on a card that stays open.
fn is_empty(open: &MemoryDomain) {
    assert_eq!(memory_types().stats().ranges, 0, "the case left no device memory");
    let device = open.device().expect("it is open");
    device.trim().expect("trimmed");
    let pool = device.pool_stats();
    assert_eq!((pool.allocations, pool.quarantined_bytes), (0, 0), "{pool:?}");
}

/// Runs one case. Returns the outcome and its time.
pub fn run_case(case: &Case, fixture: &Fixture) -> (Outcome, Duration) {
    let begin = Instant::now();
    let lack = case.tags.iter().find_map(|need| match need {
        Need::Second if fixture.second.is_none() => Some("the machine has one card"),
        Need::CpuExport if !fixture.cpu_export => Some("a processor cannot map exports of this card"),
        _ => None,
    });
    let outcome = match lack {
        Some(why) => Outcome::Unsupported { why: why.into() },
        None => survive(|| {
            (case.run)(fixture);
            if let Some(open) = &fixture.open {
                is_empty(open);
                return;
            }
            for spec in [Some(&fixture.spec), fixture.second.as_ref()]
                .into_iter()
                .flatten()
            {
                let domain = MemoryDomain::with_config(spec, Config::default());
                domain
                    .close()
                    .map_err(Error::from)
                    .expect("the case left nothing behind");
            }
        })
        .map_or_else(Outcome::Failed, |()| Outcome::Passed),
    };
    (outcome, begin.elapsed())
}

/// The kind of a failure.
pub(crate) fn kind<T>(answer: Result<T, impl Into<Error>>) -> ErrorKind {
    match answer {
        Ok(_) => panic!("the call succeeds, and an error was expected"),
        Err(error) => error.into().kind(),
    }
}

/// Bytes of a pattern.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Reads memory through a transport: short gets.
pub(crate) fn read_back(domain: &MemoryDomain, memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
    let mut transport = Transport::new(domain).expect("a transport");
    let target = Attached::to(memory);
    let mut bytes = vec![0; len];
    let most = domain.config().short_bytes;
    for (index, part) in bytes.chunks_mut(most).enumerate() {
        let address = memory.address() + offset + (index * most) as u64;
        transport.get_short(part, &target, address).expect("read");
    }
    bytes
}

/// Writes memory through a transport, and waits.
pub(crate) fn write(domain: &MemoryDomain, memory: &Memory, offset: u64, bytes: &[u8]) {
    let mut transport = Transport::new(domain).expect("a transport");
    let target = Attached::to(memory);
    let most = domain.config().short_bytes;
    for (index, part) in bytes.chunks(most).enumerate() {
        let address = memory.address() + offset + (index * most) as u64;
        transport.put_short(part, &target, address).expect("written");
    }
    transport
        .flush_wait(gaudi_copy::Deadline::NEVER)
        .expect("flushed");
}

/// Runs `child` in a fork child. Its answer is the number of the first check that failed, 0 if none
/// did.
#[expect(unsafe_code, reason = "fork(2)")]
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> i32 {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    // SAFETY: the runner has one thread, and the child exits without the parent's exit handlers.
    match unsafe { fork() }.expect("fork works") {
        ForkResult::Child => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child at once.
            unsafe { nix::libc::_exit(answer.unwrap_or(99)) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).expect("the child ends") {
            WaitStatus::Exited(_, code) => code,
            other => panic!("the child ended by {other:?}"),
        },
    }
}

/// Declares the cases of a topic: functions of a fixture, whose names are sentences.
macro_rules! cases {
    ($topic:literal; $(fn $name:ident($fixture:ident) $([$($need:ident),*])? $body:block)*) => {
        /// The cases of this topic.
        pub(super) const CASES: &[$crate::suite::Case] = &[
            $($crate::suite::Case::new($topic, stringify!($name), "drivers/copy", $name)
                .tagged(&[$($($crate::suite::Need::$need),*)?]),)*
        ];
        $(fn $name($fixture: &$crate::suite::Fixture) $body)*
    };
}
pub(crate) use cases;
