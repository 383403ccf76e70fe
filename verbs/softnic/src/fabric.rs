//! [`Fabric`]: NICs joined by cables in memory, which one thread steps in an order that a seed
//! chooses.
//!
//! A step lets one end of one cable send or receive one frame. It ends before the next one begins,
//! so that a thread that steps and calls a NIC in turn never finds a frame in the middle, and never
//! waits for a peer. Locks are taken in this order: the fabric's, a NIC's, a completion queue's.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::clock::VirtualClock;
use gaudi_sys::lock;
use gaudi_sys::random::SplitMix64;

use crate::cable::Cable;
use crate::cable::memory::Memory;
use crate::clock::Clock;
use crate::core::Shared;
use crate::cq::Stepper;
use crate::link::Link;
use crate::nic::{SoftNic, SoftNicConfig};
use crate::rx::Receiver;
use crate::tx::{Sender, Step};

const OPERATION: &str = "softnic fabric";
/// Virtual time of a step. With it, ends that only refuse each other's messages do not stop the
/// clock.
const STEP: Duration = Duration::from_micros(1);
/// The most frames of answers that a closing NIC sends.
const LINGER: usize = 1024;

/// NICs joined by cables in memory: without threads, without sockets, in virtual time.
///
/// A poll of an empty completion queue steps the fabric until that queue has a completion, for at
/// most 100 µs of virtual time. [`Cq::wait`](gaudi_verbs::Cq::wait) steps it for its timeout, which
/// takes no time of the machine. A step lets one end of one cable send or receive one frame. A seed
/// chooses the end. Timeouts, retries and late completions happen in virtual time, which a step
/// advances by a microsecond, and to the next of them if no frame can move.
///
/// Two runs of the same code in one thread with the same seed have the same order of frames,
/// completions and faults. Threads may share a fabric, but their own order is the machine's.
///
/// A step takes or delivers a whole frame, so that no peer stalls:
/// [`stall_timeout`](SoftNicConfig::stall_timeout) has no effect. Calls that wait for a frame in
/// the air, such as destroying a queue pair, find none between two steps.
///
/// Nothing steps a fabric while a caller blocks: poll(2) of [`Cq::event_fd`] must follow
/// [`run`](Self::run). A NIC of a fabric takes no sockets ([`SoftNic::plug`] fails).
///
/// [`Cq::event_fd`]: gaudi_verbs::Cq::event_fd
#[derive(Debug, Clone)]
pub struct Fabric(Arc<Net>);

/// A step of a [`Fabric`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricStep {
    /// Virtual time since the fabric was made, before the step.
    pub at: Duration,
    /// The NIC, in the order of [`Fabric::nic`].
    pub nic: usize,
    /// The cable of that NIC, in the order in which its cables were joined.
    pub cable: usize,
    /// Whether a frame was sent. Otherwise one was received.
    pub sends: bool,
}

/// What the NICs and their completion queues know of their fabric.
pub(crate) struct Net {
    clock: VirtualClock,
    start_ns: u64,
    state: Mutex<State>,
}

struct State {
    random: SplitMix64,
    nics: Vec<(usize, Arc<Shared>)>,
    ends: Vec<End>,
    /// Ends that can send (true) or receive a frame now.
    choices: Vec<(usize, bool)>,
    made: usize,
    record: Option<Vec<FabricStep>>,
}

/// One end of a cable.
struct End {
    nic: usize,
    shared: Arc<Shared>,
    link: usize,
    cable: Arc<Cable>,
    sender: Sender,
    receiver: Receiver,
}

impl End {
    /// Whether it can send now, whether it can receive, and when it next has to do something.
    fn look(&self, now: Instant) -> (bool, bool, Option<Instant>) {
        let Cable::Memory(memory) = &*self.cable else {
            return (false, false, None);
        };
        let mut core = self.shared.lock();
        if core.links[self.link].down.is_some() {
            return (false, false, None);
        }
        let (is_due, next) = match self.sender.late() {
            Some(due) => (due <= now, Some(due)),
            None => {
                let next = core.tick(&self.shared, self.link, now);
                (core.links[self.link].has_work(), next)
            }
        };
        let is_up = core.links[self.link].down.is_none();
        drop(core);
        let sends = is_up && is_due && memory.has_room();
        (
            sends,
            is_up && memory.has_input(),
            next.filter(|next| *next > now),
        )
    }
}

impl Fabric {
    /// Makes a fabric. The seed chooses the order of frames, and the GIDs and keys of its NICs.
    pub fn new(seed: u64) -> Self {
        Self::with_clock(seed, VirtualClock::default())
    }

    /// Makes a fabric that uses and advances this clock.
    pub fn with_clock(seed: u64, clock: VirtualClock) -> Self {
        let state = State {
            random: SplitMix64::new(seed),
            nics: Vec::new(),
            ends: Vec::new(),
            choices: Vec::new(),
            made: 0,
            record: None,
        };
        Self(Arc::new(Net {
            start_ns: clock.now_ns(),
            clock,
            state: Mutex::new(state),
        }))
    }

    /// Opens a NIC without a cable.
    ///
    /// # Errors
    /// The errno of eventfd(2).
    pub fn nic(&self, name: &str, config: SoftNicConfig) -> Result<Arc<SoftNic>> {
        SoftNic::in_fabric(name, config, Some(&self.0))
    }

    /// Joins two NICs of this fabric by a cable.
    ///
    /// # Errors
    /// - `InvalidInput`: a NIC is not of this fabric, or both are the same.
    /// - `EEXIST`: a cable joins them.
    pub fn join(&self, a: &SoftNic, b: &SoftNic) -> Result<()> {
        let is_own = |nic: &SoftNic| nic.net().is_some_and(|net| Arc::ptr_eq(net, &self.0));
        if !is_own(a) || !is_own(b) || a.gid() == b.gid() {
            return Err(Error::from_errno(OPERATION, Errno::EINVAL)
                .because("a cable in memory joins two NICs of one fabric"));
        }
        let holds = |link: &Link| link.holds(&b.gid());
        if a.shared.lock().links.iter().any(holds) {
            return Err(Error::from_errno(OPERATION, Errno::EEXIST).because("a cable joins the NICs"));
        }
        let (one, other) = Memory::pair();
        self.0.plug(&a.shared, one, b.gid());
        self.0.plug(&b.shared, other, a.gid());
        Ok(())
    }

    /// Steps the fabric for some virtual time.
    pub fn run(&self, time: Duration) {
        self.0.run(time, &|| false);
    }

    /// The virtual time since the fabric was made.
    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }

    /// Records the steps from now on.
    pub fn record(&self) {
        lock(&self.0.state).record = Some(Vec::new());
    }

    /// Returns the recorded steps, and ends the record.
    pub fn take_record(&self) -> Vec<FabricStep> {
        lock(&self.0.state).record.take().unwrap_or_default()
    }
}

impl Net {
    pub(crate) fn clock(&self) -> Clock {
        Clock(Some(self.clock.clone()))
    }

    pub(crate) fn random(&self) -> u64 {
        lock(&self.state).random.next()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.clock.now_ns().saturating_sub(self.start_ns))
    }

    /// Adds a NIC.
    pub(crate) fn add(&self, shared: &Arc<Shared>) {
        let mut state = lock(&self.state);
        let number = state.made;
        state.made += 1;
        state.nics.push((number, Arc::clone(shared)));
    }

    /// Adds one end of a cable.
    fn plug(&self, shared: &Arc<Shared>, memory: Memory, peer: gaudi_verbs::Gid) {
        let mut state = lock(&self.state);
        let is_it = |(_, other): &&(usize, Arc<Shared>)| Arc::ptr_eq(other, shared);
        let Some(&(nic, _)) = state.nics.iter().find(is_it) else {
            // The NIC is closed.
            return;
        };
        let cable = Arc::new(Cable::Memory(memory));
        let link = shared.plug(&cable, Some(peer));
        state.ends.push(End {
            nic,
            shared: Arc::clone(shared),
            link,
            cable,
            sender: Sender::new(link),
            receiver: Receiver::new(link, 0),
        });
    }

    /// Adds a loop from a NIC to itself.
    pub(crate) fn plug_loop(&self, shared: &Arc<Shared>) {
        self.plug(shared, Memory::looped(), shared.gid);
    }

    /// Sends the answers of a closing NIC, hangs up its cables, and removes it.
    pub(crate) fn remove(&self, shared: &Arc<Shared>) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let is_own = |end: &&mut End| Arc::ptr_eq(&end.shared, shared);
        for end in state.ends.iter_mut().filter(is_own) {
            for _ in 0..LINGER {
                match end.sender.step(shared, &end.cable) {
                    Step::Frame => {}
                    Step::Idle(..) | Step::Ended => break,
                }
            }
            end.cable.shut();
        }
        state.ends.retain(|end| !Arc::ptr_eq(&end.shared, shared));
        state.nics.retain(|(_, other)| !Arc::ptr_eq(other, shared));
    }

    /// Lets one end send or receive one frame. If none can, advances the clock to the next timer or
    /// to `until`. Returns false once the time is `until`.
    fn step(&self, until_ns: u64) -> bool {
        let mut state = lock(&self.state);
        let now_ns = self.clock.now_ns();
        if now_ns >= until_ns {
            return false;
        }
        let now = self.clock.instant();
        let State {
            random,
            nics,
            ends,
            choices,
            record,
            ..
        } = &mut *state;
        let due = nics.iter().filter_map(|(_, nic)| nic.faults.release_due());
        let mut next: Option<Instant> = due.min();
        choices.clear();
        for (index, end) in ends.iter().enumerate() {
            let (sends, receives, due) = end.look(now);
            choices.extend([(index, true)].into_iter().filter(|_| sends));
            choices.extend([(index, false)].into_iter().filter(|_| receives));
            next = [next, due].into_iter().flatten().min();
        }
        let choice = usize::try_from(random_below(random, choices.len())).unwrap_or(0);
        let Some(&(index, sends)) = choices.get(choice) else {
            let timer = next.map(|next| next.saturating_duration_since(now).as_nanos());
            let timer = timer.and_then(|left| now_ns.checked_add(u64::try_from(left).ok()?));
            self.clock
                .advance_to(timer.map_or(until_ns, |timer| timer.min(until_ns)));
            return true;
        };
        let end = &mut ends[index];
        if let Some(record) = record {
            record.push(FabricStep {
                at: Duration::from_nanos(now_ns.saturating_sub(self.start_ns)),
                nic: end.nic,
                cable: end.link,
                sends,
            });
        }
        self.clock.advance(STEP);
        if sends {
            drop(end.sender.step(&end.shared, &end.cable));
        } else {
            end.receiver.step(&end.shared, &end.cable);
        }
        true
    }
}

impl Stepper for Net {
    fn run(&self, time: Duration, is_done: &dyn Fn() -> bool) -> bool {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = self.clock.now_ns().saturating_add(time);
        while !is_done() {
            if !self.step(until) {
                return is_done();
            }
        }
        true
    }
}

/// Draws only if there is a choice.
fn random_below(random: &mut SplitMix64, choices: usize) -> u64 {
    match choices {
        0 | 1 => 0,
        count => random.below(count as u64),
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric at {:?}", self.elapsed())
    }
}
