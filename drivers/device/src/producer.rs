//! The producer of a hardware queue's submissions: a ring of command buffers, and the submissions
//! in flight.
//!
//! A queue executes in order, so a submission that has ended proves that all before it have.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use gaudi_seam::{CsRequest, CsSeq, Errno, Error, ErrorKind, QueueId, Result, WaitStatus};
use gaudi_spec::QueueRow;
use gaudi_sys::{Deadline, clock};
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsChunk};

use crate::active_queues::ActiveQueue;
use crate::asic;
use crate::context::Context;
use crate::location::Memory;
use crate::ring::Ring;
use crate::shared::{exclusive, lock};
use crate::sob::Sob;
use crate::unfinished::{has_ended, is_end, query};

const SUBMIT: &str = "HL_IOCTL_CS";
const WAIT: &str = "HL_IOCTL_WAIT_CS";
/// No submission failed.
const NONE: u64 = u64::MAX;
/// Objects that are moved out of the window at a time, to be released without its lock.
const RELEASED: usize = 8;

pub(crate) struct Producer {
    pub(crate) context: Arc<Context>,
    pub(crate) row: QueueRow,
    pub(crate) ring: Ring,
    window: Mutex<Window>,
    /// Read-locked by threads that release what submissions held. Such a thread may block in the
    /// driver; a write lock waits until all is released.
    releasing: RwLock<()>,
    /// Every submission up to this one succeeded. Changed with the window locked.
    done_through: AtomicU64,
    /// The first that failed. Every later one fails too: the driver aborts the whole context.
    failed_from: AtomicU64,
    failure: Mutex<Option<Error>>,
    monitor: OnceLock<u32>,
}

struct Window {
    /// Oldest first. They use the slots before the queue's open one.
    entries: VecDeque<Entry>,
    /// Emptied lists, reused for their capacity.
    spare: Vec<Vec<Hold>>,
    /// The number of the newest submission, or 0.
    newest: u64,
}

struct Entry {
    seq: u64,
    holds: Vec<Hold>,
}

/// An object that a submission uses until it ends.
#[derive(Debug)]
pub(crate) enum Hold {
    Memory(Memory),
    /// No other owner gets the sync object.
    Sob(Sob),
    /// Another queue's part of the work, which ends before this submission.
    Other(Arc<Producer>, u64),
}

/// How one wait in the driver ended.
#[derive(PartialEq, Eq)]
enum Answer {
    Done,
    Busy,
    /// By a signal, before its time.
    Interrupted,
}

impl Producer {
    /// # Errors
    /// `Forked`, or as [`Ring::new`].
    pub(crate) fn new(context: &Arc<Context>, row: QueueRow) -> Result<Arc<Self>> {
        context.check_process("HL_CB_OP_CREATE")?;
        let ring = Ring::new(context)?;
        let producer = Arc::new(Self {
            context: Arc::clone(context),
            row,
            window: Mutex::new(Window {
                entries: VecDeque::with_capacity(ring.slots),
                spare: Vec::with_capacity(ring.slots + 1),
                newest: 0,
            }),
            ring,
            releasing: RwLock::default(),
            done_through: AtomicU64::new(0),
            failed_from: AtomicU64::new(NONE),
            failure: Mutex::new(None),
            monitor: OnceLock::new(),
        });
        context.live.queues.fetch_add(1, Ordering::Relaxed);
        let weak: Weak<Self> = Arc::downgrade(&producer);
        context.queues.add(weak);
        Ok(producer)
    }

    /// Returns the number of slots that no submission uses. Waits for the oldest submission if all
    /// are used.
    ///
    /// # Errors
    /// - `WouldBlock`: all are used and `timeout` is zero.
    /// - `TimedOut`, `Forked`, or the failure of an earlier submission.
    pub(crate) fn free_slots(&self, timeout: Duration) -> Result<usize> {
        self.context.check_process(SUBMIT)?;
        let mut deadline = None;
        loop {
            let oldest = {
                let window = lock(&self.window);
                let free = self.ring.slots.saturating_sub(window.entries.len());
                if free > 0 {
                    return Ok(free);
                }
                window.entries.front().map(|entry| entry.seq)
            };
            if let Some(seq) = oldest {
                // The clock is read only if there is something to wait for.
                self.wait_for_room(seq, *deadline.get_or_insert_with(|| timeout.into()))
                    .map_err(|error| self.blocked(error, timeout))?;
            }
        }
    }

    /// Submits `used` bytes of a [free](Self::free_slots) slot, and takes their `holds`.
    ///
    /// # Errors
    /// - `WouldBlock`: the driver has no room and `timeout` is zero.
    /// - `TimedOut`, the failure of an earlier submission, or the driver's own error.
    pub(crate) fn submit(
        &self,
        slot: usize,
        used: usize,
        holds: &mut Vec<Hold>,
        timeout: Duration,
    ) -> Result<u64> {
        let QueueId(queue) = self.row.id;
        let chunk = HlCsChunk::user(
            queue,
            self.ring.address(slot),
            // A slot has `command_buffer_bytes` bytes, a `u32`.
            used as u32,
        );
        let request = CsRequest {
            execute: std::slice::from_ref(&chunk),
            flags: CsFlags::NONE,
            ..CsRequest::default()
        };
        if tracing::enabled!(target: asic::PACKETS, tracing::Level::TRACE) {
            let (context, bytes) = (&self.context, self.ring.contents(slot, used));
            context.encoder.log(context.id, self.row.id, &bytes);
        }
        let (mut nap, mut deadline) = (Duration::from_micros(20), None);
        let seq = loop {
            if let Some(error) = self.failure() {
                return Err(error);
            }
            match self.context.io.submit(&request) {
                Ok(answer) if answer.status == CsStatus::SUCCESS => break answer.seq.0,
                Ok(answer) => {
                    return Err(Error::new(ErrorKind::Io, SUBMIT)
                        .on(self.context.id)
                        .because("the driver answered another status than success")
                        .saw(answer.status, CsStatus::SUCCESS));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let deadline = *deadline.get_or_insert_with(|| timeout.into());
                    self.make_room(deadline, &mut nap)
                        .map_err(|error| self.blocked(error, timeout))?;
                }
                Err(error) if error.errno() == Some(Errno::EINTR) => {
                    // Every call may be interrupted, so the deadline ends the loop.
                    if deadline.get_or_insert_with(|| timeout.into()).has_passed() {
                        return Err(self.blocked(Error::would_block(SUBMIT).on(self.context.id), timeout));
                    }
                    pause(&mut nap);
                }
                Err(error) => return Err(error),
            }
        };
        self.context.stats.submissions.add(1);
        let mut window = lock(&self.window);
        // Empty only before the ring was used once: later every entry has left its list.
        let spare = window.spare.pop().unwrap_or_default();
        window.entries.push_back(Entry {
            seq,
            holds: std::mem::replace(holds, spare),
        });
        window.newest = seq;
        Ok(seq)
    }

    /// Waits for room in the driver: for the oldest own submission, otherwise for the one whose
    /// place is needed. Never spins.
    fn make_room(&self, deadline: Deadline, nap: &mut Duration) -> Result<()> {
        self.context.stats.full_waits.add(1);
        let own = lock(&self.window).entries.front().map(|entry| entry.seq);
        if let Some(seq) = own {
            return self.wait_for_room(seq, deadline);
        }
        if deadline.has_passed() {
            return Err(Error::would_block(SUBMIT).on(self.context.id));
        }
        if let Some(seq) = self.oldest_in_flight() {
            let (left, _) = deadline.step();
            // An error belongs to the submission's own queue.
            let answer = self
                .context
                .io
                .wait_cs(CsSeq(seq), left.min(Duration::from_millis(20)));
            if answer.is_ok_and(|answer| answer.status == WaitStatus::Busy) {
                return Ok(());
            }
        }
        // That one has ended and there is no room: the hardware queue is full, and no call of the
        // driver waits for it.
        pause(nap);
        Ok(())
    }

    fn oldest_in_flight(&self) -> Option<u64> {
        let context = &self.context;
        context.queues.oldest_in_flight(context.asic.max_pending_cs)
    }

    /// The error of a submission that the driver did not accept in time: `TimedOut`, with the
    /// submission that must end first. `WouldBlock` without a box if the caller does not wait at
    /// all.
    #[cold]
    fn blocked(&self, error: Error, timeout: Duration) -> Error {
        // A wait that the driver refuses with EAGAIN is another error.
        let is_deadline = match error.kind() {
            ErrorKind::WouldBlock => error.operation() == SUBMIT,
            kind => kind == ErrorKind::TimedOut,
        };
        if timeout.is_zero() || !is_deadline {
            return error;
        }
        let error = Error::timed_out(SUBMIT).on(self.context.id);
        let in_flight = |&seq: &u64| !has_ended(&*self.context.io, seq);
        let own = lock(&self.window).entries.front().map(|entry| entry.seq);
        match self.oldest_in_flight().filter(in_flight).or(own) {
            Some(seq) => error
                .because(format!(
                    "submission {seq} must end before the driver accepts another"
                ))
                .helped_by("submit what it waits for before other work, or wait longer (Queue::set_timeout)"),
            None => error,
        }
    }

    /// Waits for an own submission, so that there is room; `WouldBlock` if the deadline has passed
    /// and it has not ended.
    fn wait_for_room(&self, seq: u64, deadline: Deadline) -> Result<()> {
        if !deadline.has_passed() {
            self.wait(seq, deadline)?;
        } else if !self.poll(seq)? {
            return Err(Error::would_block(SUBMIT).on(self.context.id));
        }
        // The wait asks no driver if a later number is done, and releases nothing then. A driver
        // that gives numbers out of order must not make the caller spin.
        self.release(seq);
        Ok(())
    }

    /// The result of a submission, if it is known without a call of the driver.
    fn known(&self, seq: u64) -> Option<Result<()>> {
        if seq <= self.done_through.load(Ordering::Acquire) {
            return Some(Ok(()));
        }
        if seq < self.failed_from.load(Ordering::Acquire) {
            return None;
        }
        self.failure().map(Err)
    }

    fn failure(&self) -> Option<Error> {
        if self.failed_from.load(Ordering::Acquire) == NONE {
            return None;
        }
        lock(&self.failure).clone()
    }

    /// Whether a submission is done. Asks the driver and does not wait.
    ///
    /// # Errors
    /// The submission's failure, `Forked`, or the driver's own error.
    pub(crate) fn poll(&self, seq: u64) -> Result<bool> {
        self.context.check_process(WAIT)?;
        if let Some(answer) = self.known(seq) {
            return answer.map(|()| true);
        }
        Ok(self.ask(seq, Duration::ZERO)? == Answer::Done)
    }

    /// Waits for a submission.
    ///
    /// # Errors
    /// `TimedOut`, or as [`poll`](Self::poll).
    pub(crate) fn wait(&self, seq: u64, deadline: Deadline) -> Result<()> {
        self.context.check_process(WAIT)?;
        loop {
            if let Some(answer) = self.known(seq) {
                return answer;
            }
            let (left, last) = deadline.step();
            match self.ask(seq, left)? {
                Answer::Done => return Ok(()),
                // The driver's answer decides, not this machine's clock: a virtual clock may
                // advance by the whole time at once.
                Answer::Busy if last => return Err(Error::timed_out(WAIT).on(self.context.id)),
                Answer::Interrupted if deadline.has_passed() => {
                    return Err(Error::timed_out(WAIT).on(self.context.id));
                }
                Answer::Busy | Answer::Interrupted => {}
            }
        }
    }

    /// One wait in the driver.
    fn ask(&self, seq: u64, timeout: Duration) -> Result<Answer> {
        match self.context.io.wait_cs(CsSeq(seq), timeout) {
            Ok(answer) if answer.status == WaitStatus::Completed => {
                self.complete(seq);
                Ok(Answer::Done)
            }
            Ok(_) => Ok(Answer::Busy),
            Err(error) if error.errno() == Some(Errno::EINTR) => Ok(Answer::Interrupted),
            Err(error) => {
                if matches!(
                    error.kind(),
                    ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io
                ) {
                    self.fail(seq, &error);
                    // An earlier failure of the queue is the cause of this one, and every call
                    // reports the same error.
                    return Err(self.failure().unwrap_or(error));
                }
                Err(error)
            }
        }
    }

    /// Records that everything up to `seq` is done, and releases what it held.
    fn complete(&self, seq: u64) {
        self.release_after(seq, |window| self.mark_done(window, seq));
    }

    /// Records that everything up to `seq` is done, with the window locked: a higher number stays.
    fn mark_done(&self, _locked: &Window, seq: u64) {
        if self.done_through.load(Ordering::Relaxed) < seq {
            self.done_through.store(seq, Ordering::Release);
        }
    }

    /// `seq` failed, and every later submission fails with it: the driver aborts a context as a
    /// whole and resets. A later submission may still run until the reset, so its memory is held
    /// until the driver reports its end.
    fn fail(&self, seq: u64, error: &Error) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            *failure = Some(error.clone());
        }
        drop(failure);
        self.failed_from.fetch_min(seq, Ordering::AcqRel);
        tracing::error!(
            "device {}: submission {seq} on queue {} failed: {error}",
            self.context.id,
            self.row.id
        );
        if is_end(error) {
            self.release(seq);
        }
    }

    /// Whether no engine works on a submission any more. Asks the driver and does not wait.
    ///
    /// Records the end or the failure that proves it: the caller releases the submission, so a
    /// drain does not ask the driver about it.
    fn has_ended(&self, seq: u64) -> bool {
        match query(&*self.context.io, seq) {
            Ok(answer) if answer.status == WaitStatus::Completed => {
                if seq < self.failed_from.load(Ordering::Acquire) {
                    self.mark_done(&lock(&self.window), seq);
                }
                true
            }
            Ok(_) => false,
            Err(error) if is_end(&error) => {
                if seq < self.failed_from.load(Ordering::Acquire) {
                    self.fail(seq, &error);
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Releases what submissions up to `seq`, which have ended, held.
    fn release(&self, seq: u64) {
        self.release_after(seq, |_| ());
    }

    /// As [`release`](Self::release), and calls `record` first, with the window locked.
    fn release_after(&self, seq: u64, record: impl Fn(&Window)) {
        // Both are dropped after the guard below. An exported buffer calls export users, which may
        // wait for a thread in `reap`; that thread waits for the guard.
        let mut exported = Vec::new();
        let mut others = Vec::new();
        let releasing = self.releasing.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut held = [const { None }; RELEASED];
            let all = {
                let mut window = lock(&self.window);
                record(&window);
                window.take_held(seq, &mut held)
            };
            // Freeing memory calls the driver: not under the window's lock.
            for hold in held.iter_mut().map_while(Option::take) {
                match hold {
                    Hold::Other(other, seq) => others.push((other, seq)),
                    Hold::Memory(Memory::Device(buffer)) if buffer.has_windows() => exported.push(buffer),
                    _ => {}
                }
            }
            if all {
                break;
            }
        }
        drop(releasing);
        // A poll releases what the other queue held, exported buffers among it.
        for (other, seq) in others {
            // The part's failure is this submission's failure too, which its own waiter receives.
            let _ = other.poll(seq);
        }
    }

    /// Whether a submission has not ended. Never waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.reap();
        !lock(&self.window).entries.is_empty()
    }

    /// Returns this producer's monitor. One is enough: its waits execute one after another.
    ///
    /// # Errors
    /// `Busy`: every monitor is in use.
    pub(crate) fn monitor(&self) -> Result<u32> {
        if let Some(&monitor) = self.monitor.get() {
            return Ok(monitor);
        }
        let taken = self.context.monitors.take("Queue::wait")?;
        let monitor = *self.monitor.get_or_init(|| taken);
        if monitor != taken {
            self.context.monitors.release(taken);
        }
        Ok(monitor)
    }
}

impl ActiveQueue for Producer {
    /// Releases the objects of ended submissions, oldest first. Waits for other threads that
    /// release some of them.
    fn reap(&self) {
        loop {
            let Some(seq) = lock(&self.window).entries.front().map(|entry| entry.seq) else {
                break;
            };
            let has_ended = match self.poll(seq) {
                Ok(is_done) => is_done,
                // The error may be an earlier submission's.
                Err(_) => self.has_ended(seq),
            };
            if !has_ended {
                break;
            }
            self.release(seq);
        }
        drop(self.releasing.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reports an earlier failure again.
    fn drain(&self, deadline: Deadline) -> Result<()> {
        let newest = lock(&self.window).entries.back().map(|entry| entry.seq);
        match newest {
            Some(seq) => self.wait(seq, deadline),
            None => self.failure().map_or(Ok(()), Err),
        }
    }

    fn newest(&self) -> u64 {
        lock(&self.window).newest
    }

    fn holds(&self, generation: u64) -> usize {
        let window = lock(&self.window);
        let holds = window.entries.iter().flat_map(|entry| &entry.holds);
        holds
            .filter(
                |hold| matches!(hold, Hold::Memory(Memory::Device(held)) if held.generation() == generation),
            )
            .count()
    }
}

impl Window {
    /// Moves what submissions up to `seq` hold to `held`. Removes those that hold nothing more, and
    /// returns whether that is all of them.
    fn take_held(&mut self, seq: u64, held: &mut [Option<Hold>]) -> bool {
        let mut places = held.iter_mut();
        while let Some(entry) = self.entries.front_mut().filter(|entry| entry.seq <= seq) {
            while !entry.holds.is_empty() {
                let Some(place) = places.next() else { return false };
                *place = entry.holds.pop();
            }
            self.spare.push(std::mem::take(&mut entry.holds));
            self.entries.pop_front();
        }
        true
    }
}

/// Sleeps, and doubles the next sleep, up to a millisecond.
fn pause(nap: &mut Duration) {
    clock::sleep(*nap);
    *nap = (*nap * 2).min(Duration::from_millis(1));
}

impl Drop for Producer {
    fn drop(&mut self) {
        let context = Arc::clone(&self.context);
        context.live.queues.fetch_sub(1, Ordering::Relaxed);
        if context.owner.is_foreign() {
            return;
        }
        context.queues.record_dropped(self.newest());
        match self.drain(context.options.timeout.into()) {
            Ok(()) => {
                if let Some(&monitor) = self.monitor.get() {
                    context.monitors.release(monitor);
                }
            }
            // A monitor whose wait never ended may still fire: it is not used again.
            Err(error) => {
                self.reap();
                let entries = &mut exclusive(&mut self.window).entries;
                if !entries.is_empty() {
                    tracing::error!(
                        "device {}: {} submissions on queue {} have not ended: their command buffers ({:#x}) and sync objects stay \
                         allocated until the node closes, and their memory stays mapped until they have ended: {error}",
                        context.id,
                        entries.len(),
                        self.row.id,
                        self.ring.handle()
                    );
                    for Entry { seq, holds } in entries.drain(..) {
                        holds.iter().for_each(|hold| hold.outlive(seq));
                    }
                    // The engine may still fetch from the ring, so it is not destroyed. The driver
                    // frees it when the node closes.
                    return;
                }
            }
        }
        self.ring.destroy(&*context.io, context.id);
    }
}

impl Hold {
    /// Keeps the object from being reused before a submission has ended whose queue is dropped.
    fn outlive(&self, seq: u64) {
        match self {
            Self::Memory(Memory::Device(buffer)) => buffer.wait_for(seq),
            Self::Memory(Memory::Host(mapping)) => mapping.wait_for(seq),
            Self::Sob(sob) => sob.retire(),
            // The other queue releases what its part holds.
            Self::Other(..) => {}
        }
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} of {}", self.row.id, self.context.id)
    }
}
