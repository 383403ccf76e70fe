//! [`SoftCq`]: a bounded ring of completions and an eventfd.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use gaudi_seam::fault::{Met, NicEvent, Verdict};
use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::lock;
use gaudi_verbs::WorkCompletion;
use gaudi_verbs::provider::{CompletionQueue, event_within};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::fault::{Faults, REORDER_WAIT};

/// The most virtual time of a poll of an empty completion queue.
const POLL: Duration = Duration::from_micros(100);

/// What moves frames while a thread polls.
pub(crate) trait Stepper: fmt::Debug + Send + Sync {
    /// Moves frames until `is_done`, or for some virtual time. Returns whether it is done.
    ///
    /// The caller holds no lock of a NIC.
    fn run(&self, time: Duration, is_done: &dyn Fn() -> bool) -> bool;
}

/// A completion queue of a [`SoftNic`](crate::SoftNic).
pub(crate) struct SoftCq {
    /// The number that events carry.
    pub(crate) handle: u32,
    ring: Mutex<Ring>,
    event: EventFd,
    faults: Arc<Faults>,
    /// The fabric, if the NIC is of one.
    stepper: Option<Arc<dyn Stepper>>,
    /// Itself, for the timer of its late completions.
    own: Weak<Self>,
}

struct Ring {
    entries: VecDeque<WorkCompletion>,
    depth: usize,
    /// Completions that signal the eventfd, if any do.
    armed: Option<Armed>,
    overrun: bool,
    /// Completions that a fault rule delays, and those behind them, with the time of each.
    late: VecDeque<(Entry, Instant)>,
    /// A completion that a fault rule reorders: it follows the next one, or waits until this time.
    held: Option<(Entry, Instant)>,
}

/// A completion, and whether its request was solicited.
#[derive(Debug, Clone, Copy)]
struct Entry {
    completion: WorkCompletion,
    solicited: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    Any,
    Solicited,
}

impl SoftCq {
    pub(crate) fn new(
        handle: u32,
        depth: usize,
        faults: &Arc<Faults>,
        stepper: Option<Arc<dyn Stepper>>,
    ) -> Result<Arc<Self>> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::from_errno("ibv_create_comp_channel", errno))?;
        let ring = Ring {
            entries: VecDeque::with_capacity(depth),
            depth,
            armed: None,
            overrun: false,
            late: VecDeque::new(),
            held: None,
        };
        Ok(Arc::new_cyclic(|own| Self {
            handle,
            ring: Mutex::new(ring),
            event,
            faults: Arc::clone(faults),
            stepper: stepper.clone(),
            own: Weak::clone(own),
        }))
    }

    /// Adds a completion. Returns false if the queue is full: the completion is lost, and the queue
    /// is broken.
    pub(crate) fn push(&self, completion: WorkCompletion, solicited: bool) -> bool {
        let met = self.faults.meet_qp(NicEvent::Completion, completion.qp_num.0);
        let entry = Entry {
            completion,
            solicited,
        };
        let mut ring = lock(&self.ring);
        if met == Met::default() && ring.late.is_empty() && ring.held.is_none() {
            self.add(&mut ring, entry);
        } else {
            self.push_late(&mut ring, entry, met);
        }
        !ring.overrun
    }

    /// Adds a completion by its faults, and what follows it.
    #[cold]
    fn push_late(&self, ring: &mut Ring, entry: Entry, met: Met) {
        let now = self.faults.clock.now();
        let mut times = 1;
        let mut happens = true;
        match met.verdict() {
            Some(Verdict::Lose) => times = 0,
            Some(Verdict::Duplicate) => times = 2,
            Some(Verdict::Reorder) if ring.held.is_none() => {
                let due = later(now, REORDER_WAIT);
                ring.held = Some((entry, due));
                self.faults.schedule(due, Weak::clone(&self.own));
                times = 0;
            }
            _ => happens = false,
        }
        for _ in 0..times {
            self.add_after(ring, entry, now, met.delay);
        }
        if times > 0 {
            if let Some((held, _)) = ring.held.take() {
                self.add_after(ring, held, now, Duration::ZERO);
            }
        }
        if let Some(hit) = met.decided.filter(|_| happens) {
            self.faults.happened(hit);
        }
    }

    /// Adds a completion after a delay, and after those that are late.
    fn add_after(&self, ring: &mut Ring, entry: Entry, now: Instant, delay: Duration) {
        let last = ring.late.back().map(|(_, due)| *due);
        if delay.is_zero() && last.is_none() {
            return self.add(ring, entry);
        }
        if ring.entries.len() + ring.late.len() >= ring.depth {
            ring.overrun = true;
            return self.wake(ring, entry);
        }
        let due = later(now, delay);
        let due = last.map_or(due, |last| last.max(due));
        ring.late.push_back((entry, due));
        self.faults.schedule(due, Weak::clone(&self.own));
    }

    /// Adds a completion now.
    fn add(&self, ring: &mut Ring, entry: Entry) {
        if ring.overrun || ring.entries.len() >= ring.depth {
            ring.overrun = true;
        } else {
            ring.entries.push_back(entry.completion);
        }
        self.wake(ring, entry);
    }

    /// Signals the eventfd if it is armed for this completion.
    fn wake(&self, ring: &mut Ring, entry: Entry) {
        // An error signals like a solicited completion.
        let wakes = match ring.armed {
            Some(Armed::Any) => true,
            Some(Armed::Solicited) => entry.solicited || !entry.completion.is_success() || ring.overrun,
            None => false,
        };
        if wakes {
            ring.armed = None;
            // Cannot fail: each request to be notified adds 1 to the counter.
            let _ = self.event.write(1);
        }
    }

    /// Whether a poll finds a completion or an overrun.
    fn has_news(&self) -> bool {
        let mut ring = lock(&self.ring);
        self.release(&mut ring);
        !ring.entries.is_empty() || ring.overrun
    }

    /// Adds the late completions whose time has come.
    pub(crate) fn release_due(&self) {
        self.release(&mut lock(&self.ring));
    }

    fn release(&self, ring: &mut Ring) {
        if ring.late.is_empty() && ring.held.is_none() {
            return;
        }
        let now = self.faults.clock.now();
        while let Some((entry, _)) = ring.late.front().copied().filter(|(_, due)| *due <= now) {
            ring.late.pop_front();
            self.add(ring, entry);
        }
        if let Some((entry, _)) = ring.held.filter(|(_, due)| *due <= now) {
            ring.held = None;
            self.add_after(ring, entry, now, Duration::ZERO);
        }
    }
}

/// A time after `now`, or `now` if the clock cannot represent it.
fn later(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or(now)
}

impl CompletionQueue for SoftCq {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        if let Some(stepper) = &self.stepper {
            stepper.run(POLL, &|| self.has_news());
        }
        let mut ring = lock(&self.ring);
        self.release(&mut ring);
        let count = into.len().min(ring.entries.len());
        for (place, completion) in into.iter_mut().zip(ring.entries.drain(..count)) {
            *place = completion;
        }
        if count == 0 && ring.overrun {
            return Err(Error::new(ErrorKind::Io, "ibv_poll_cq")
                .with_errno(Errno::EOVERFLOW)
                .because("more work completed than the queue has room for: completions are lost")
                .saw("an overrun", format!("at most {} at a time", ring.depth))
                .helped_by("make the queue as deep as all queues that complete in it together"));
        }
        Ok(count)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let mut ring = lock(&self.ring);
        // A later request does not narrow an earlier one.
        if !solicited_only {
            ring.armed = Some(Armed::Any);
        } else if ring.armed.is_none() {
            ring.armed = Some(Armed::Solicited);
        }
        if ring.overrun {
            // Fails only if the counter is full, and the descriptor is readable then.
            let _ = self.event.write(1);
        }
        Ok(())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait_event(&self, timeout: Duration) -> Result<bool> {
        match &self.stepper {
            None => event_within(self.event_fd(), timeout),
            Some(stepper) if stepper.run(timeout, &|| self.has_news()) => Ok(true),
            Some(_) => Err(Error::timed_out("completion queue wait")),
        }
    }

    fn ack_event(&self) -> Result<()> {
        match self.event.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(Error::from_errno("ibv_get_cq_event", errno)),
        }
    }
}

impl fmt::Debug for SoftCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = lock(&self.ring);
        write!(f, "SoftCq({} of {})", ring.entries.len(), ring.depth)
    }
}
