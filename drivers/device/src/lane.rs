//! One producer on one hardware queue: a ring of command buffers, and the window of submissions in flight.
//!
//! A queue executes in order, so one increasing number answers "is it done?": what finished says that all before it did.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, CsSeq, DeviceVa, Errno, Error, ErrorKind, MmapRequest, QueueId,
    RawMapping, Result, WaitStatus,
};
use gaudi_spec::QueueRow;
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsChunk};
use gaudi_uapi::limits::HL_MAX_CB_SIZE;

use crate::asic;
use crate::buffer::Buffer;
use crate::context::{Context, lock};
use crate::deadline::Deadline;
use crate::location::Keep;
use crate::sync::{give_monitor, take_monitor};
use crate::unfinished::{has_ended, is_end};

const SUBMIT: &str = "HL_IOCTL_CS";
const WAIT: &str = "HL_IOCTL_WAIT_CS";
/// No submission failed.
const NONE: u64 = u64::MAX;

pub(crate) struct Lane {
    pub(crate) context: Arc<Context>,
    pub(crate) row: QueueRow,
    pub(crate) ring: Ring,
    window: Mutex<Window>,
    /// Shared by those who let go of what submissions held. What was found done may still be held by one of them, who waits for the
    /// driver; to have it alone is to know that nobody does.
    releasing: RwLock<()>,
    /// Every submission of this lane up to this one succeeded.
    done_through: AtomicU64,
    /// The first that failed. Every later one fails too: the driver aborts the whole context.
    failed_from: AtomicU64,
    failure: Mutex<Option<Error>>,
    monitor: OnceLock<u32>,
}

/// Command buffers: slots of one allocation that the device sees.
pub(crate) struct Ring {
    handle: CbHandle,
    pub(crate) map: RawMapping,
    va: DeviceVa,
    pub(crate) slot_bytes: usize,
    slots: usize,
}

struct Window {
    /// Oldest first; the nth from the back used the nth slot before `next`.
    entries: VecDeque<Entry>,
    /// Emptied lists, kept for their memory.
    spare: Vec<Vec<Keep>>,
    next: usize,
}

/// How one wait in the driver ended.
#[derive(PartialEq, Eq)]
enum Answer {
    Done,
    Busy,
    /// By a signal, before its time.
    Interrupted,
}

struct Entry {
    seq: u64,
    keeps: Vec<Keep>,
}

impl Lane {
    pub(crate) fn new(context: &Arc<Context>, row: QueueRow) -> Result<Arc<Self>> {
        context.here("HL_CB_OP_CREATE")?;
        let (slots, slot_bytes) = (
            context.options.command_buffers,
            context.options.command_buffer_bytes,
        );
        let size = slots
            .checked_mul(slot_bytes)
            .filter(|&size| size > 0 && size <= HL_MAX_CB_SIZE);
        let Some(size) = size else {
            return Err(context
                .wrong("HL_CB_OP_CREATE", "the ring of command buffers has no right size")
                .saw(
                    format!("{slots} × {slot_bytes} bytes"),
                    format!("1 to {HL_MAX_CB_SIZE} bytes"),
                ));
        };
        let io = &context.io;
        let handle = io.cb_create(CbCreate {
            size,
            map_to_device: true,
        })?;
        let made = io.cb_info(handle, true).and_then(|info| {
            let va = info.device_va.ok_or_else(|| {
                Error::new(ErrorKind::Protocol, "HL_CB_OP_INFO")
                    .on(context.id)
                    .because("no device address for a mapped command buffer")
            })?;
            // The driver gives whole pages, and maps them whole or not at all (memory_mgr.c:253).
            let map = io.mmap(MmapRequest {
                offset: handle.0,
                len: (size as usize).next_multiple_of(PAGE as usize),
            })?;
            Ok((va, map))
        });
        let (va, map) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = io.cb_destroy(handle);
                return Err(error);
            }
        };
        let slots = slots as usize;
        let lane = Arc::new(Self {
            context: Arc::clone(context),
            row,
            ring: Ring {
                handle,
                map,
                va,
                slot_bytes: slot_bytes as usize,
                slots,
            },
            window: Mutex::new(Window {
                entries: VecDeque::with_capacity(slots),
                spare: Vec::with_capacity(slots + 1),
                next: 0,
            }),
            releasing: RwLock::default(),
            done_through: AtomicU64::new(0),
            failed_from: AtomicU64::new(NONE),
            failure: Mutex::new(None),
            monitor: OnceLock::new(),
        });
        context.live.queues.fetch_add(1, Ordering::Relaxed);
        context.enlist(&lane);
        Ok(lane)
    }

    /// A slot that no submission uses; waits for the oldest where all are used. `WouldBlock` where patience is zero.
    pub(crate) fn slot(&self, patience: Duration) -> Result<usize> {
        self.context.here(SUBMIT)?;
        let mut deadline = None;
        loop {
            let oldest = {
                let window = lock(&self.window);
                if window.entries.len() < self.ring.slots {
                    return Ok(window.next);
                }
                window.entries.front().map(|entry| entry.seq)
            };
            if let Some(seq) = oldest {
                // The clock is read where there is something to wait for, and not before.
                self.give_way(seq, *deadline.get_or_insert_with(|| patience.into()))
                    .map_err(|error| self.blocked(error, patience))?;
            }
        }
    }

    /// Submits `used` bytes of the slot that [`slot`](Self::slot) gave, and takes what they need.
    pub(crate) fn submit(&self, used: usize, keeps: &mut Vec<Keep>, patience: Duration) -> Result<u64> {
        let slot = lock(&self.window).next;
        let QueueId(queue) = self.row.id;
        let chunk = HlCsChunk::user(
            queue,
            // The ring's addresses do not wrap: the driver gave them as one range.
            self.ring.va.0.wrapping_add((slot * self.ring.slot_bytes) as u64),
            u32::try_from(used).unwrap_or(u32::MAX),
        );
        let request = CsRequest {
            execute: std::slice::from_ref(&chunk),
            flags: CsFlags::NONE,
            ..CsRequest::default()
        };
        if tracing::enabled!(target: asic::PACKETS, tracing::Level::TRACE) {
            self.log_packets(slot, used);
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
                    let deadline = *deadline.get_or_insert_with(|| patience.into());
                    self.make_room(deadline, &mut nap)
                        .map_err(|error| self.blocked(error, patience))?;
                }
                Err(error) if error.errno() == Some(Errno::EINTR) => {
                    // Every call may be interrupted, so the deadline ends the loop.
                    if deadline.get_or_insert_with(|| patience.into()).has_passed() {
                        return Err(self.blocked(Error::would_block(SUBMIT).on(self.context.id), patience));
                    }
                    pause(&mut nap);
                }
                Err(error) => return Err(error),
            }
        };
        self.context.saw_submission(seq);
        self.context.stats.submissions.add(1);
        let mut window = lock(&self.window);
        let spare = window.spare.pop().unwrap_or_default();
        window.entries.push_back(Entry {
            seq,
            keeps: std::mem::replace(keeps, spare),
        });
        window.next = (slot + 1) % self.ring.slots;
        Ok(seq)
    }

    #[cold]
    fn log_packets(&self, slot: usize, used: usize) {
        let mut bytes = vec![0; used];
        if self
            .ring
            .map
            .read(slot * self.ring.slot_bytes, &mut bytes)
            .is_ok()
        {
            asic::log_packets(self.context.id, self.row.id, &bytes);
        }
    }

    /// The driver has no room. Waits in the driver for the oldest of our own, else for whose slot we need; never spins.
    fn make_room(&self, deadline: Deadline, nap: &mut Duration) -> Result<()> {
        self.context.stats.full_waits.add(1);
        let own = lock(&self.window).entries.front().map(|entry| entry.seq);
        if let Some(seq) = own {
            return self.give_way(seq, deadline);
        }
        if deadline.has_passed() {
            return Err(Error::would_block(SUBMIT).on(self.context.id));
        }
        if let Some(seq) = self.context.oldest_in_flight() {
            let (left, _) = deadline.step();
            // Others' work: how it ends is told to them.
            if let Ok(answer) = self
                .context
                .io
                .wait_cs(CsSeq(seq), left.min(Duration::from_millis(20)))
            {
                if answer.status == WaitStatus::Busy {
                    return Ok(());
                }
            }
        }
        // That one is done and still there is no room: a full hardware queue, which nothing in the driver waits for.
        pause(nap);
        Ok(())
    }

    /// The error of a submission that the driver did not accept in time: `TimedOut`, with the
    /// submission that must end first. `WouldBlock` without a box if the caller does not wait at
    /// all.
    #[cold]
    fn blocked(&self, error: Error, patience: Duration) -> Error {
        // A wait that the driver refuses with EAGAIN is another error.
        let is_deadline = match error.kind() {
            ErrorKind::WouldBlock => error.operation() == SUBMIT,
            kind => kind == ErrorKind::TimedOut,
        };
        if patience.is_zero() || !is_deadline {
            return error;
        }
        let error = Error::timed_out(SUBMIT).on(self.context.id);
        let in_flight = |&seq: &u64| !has_ended(&*self.context.io, seq);
        let own = lock(&self.window).entries.front().map(|entry| entry.seq);
        match self.context.oldest_in_flight().filter(in_flight).or(own) {
            Some(seq) => error
                .because(format!(
                    "submission {seq} must end before the driver accepts another"
                ))
                .helped_by(
                    "submit what it waits for before other work, or wait longer (Queue::set_patience)",
                ),
            None => error,
        }
    }

    /// Waits for one of our own so that there is room; `WouldBlock` where the caller has no patience at all.
    fn give_way(&self, seq: u64, deadline: Deadline) -> Result<()> {
        if !deadline.has_passed() {
            return self.wait(seq, deadline);
        }
        if self.poll(seq)? {
            Ok(())
        } else {
            Err(Error::would_block(SUBMIT).on(self.context.id))
        }
    }

    /// What is known without asking.
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

    /// Whether a submission is done; asks the driver and does not wait.
    pub(crate) fn poll(&self, seq: u64) -> Result<bool> {
        self.context.here(WAIT)?;
        if let Some(answer) = self.known(seq) {
            return answer.map(|()| true);
        }
        Ok(self.ask(seq, Duration::ZERO)? == Answer::Done)
    }

    /// Waits for a submission.
    pub(crate) fn wait(&self, seq: u64, deadline: Deadline) -> Result<()> {
        self.context.here(WAIT)?;
        loop {
            if let Some(answer) = self.known(seq) {
                return answer;
            }
            let (left, last) = deadline.step();
            match self.ask(seq, left)? {
                Answer::Done => return Ok(()),
                // The answer counts and not this machine's clock: a virtual one may have passed the whole time at once.
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
                self.settle(seq);
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
                    // An earlier failure of the lane is the cause of this one, and every call
                    // reports the same error.
                    return Err(self.failure().unwrap_or(error));
                }
                Err(error)
            }
        }
    }

    /// Everything up to `seq` is done: lets go of what it held.
    fn settle(&self, seq: u64) {
        self.done_through.fetch_max(seq, Ordering::AcqRel);
        self.release(|entry| entry.seq <= seq);
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
            self.release(|entry| entry.seq <= seq);
        }
    }

    fn release(&self, done: impl Fn(&Entry) -> bool) {
        // Dropped after the guard below: keepers are called when an exported buffer is freed, and may wait for a thread that is in
        // `reap`, which waits for the guard.
        let mut exported = Vec::new();
        let mut others = Vec::new();
        let releasing = self.releasing.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut window = lock(&self.window);
            if !window.entries.front().is_some_and(&done) {
                break;
            }
            let Some(mut entry) = window.entries.pop_front() else {
                break;
            };
            drop(window);
            // Freeing memory asks the driver: not under the window's lock.
            for keep in entry.keeps.drain(..) {
                match keep {
                    Keep::Other(part) => others.push(part),
                    Keep::Device(buffer) if buffer.is_exported() => exported.push(buffer),
                    _ => {}
                }
            }
            lock(&self.window).spare.push(entry.keeps);
        }
        drop(releasing);
        // Each releases what its own queue held, exported buffers among it.
        for part in others {
            let _ = part.poll();
        }
    }

    /// Releases the objects of ended submissions, oldest first. Waits for other threads that release
    /// some of them.
    pub(crate) fn reap(&self) {
        loop {
            let Some(seq) = lock(&self.window).entries.front().map(|entry| entry.seq) else {
                break;
            };
            let has_ended = match self.poll(seq) {
                Ok(is_done) => is_done,
                // The error may be an earlier submission's.
                Err(_) => has_ended(&*self.context.io, seq),
            };
            if !has_ended {
                break;
            }
            self.release(|entry| entry.seq <= seq);
        }
        drop(self.releasing.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether a submission has not ended. Never waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.reap();
        !lock(&self.window).entries.is_empty()
    }

    /// Waits until nothing is in flight. Reports a failure again.
    pub(crate) fn drain(&self, deadline: Deadline) -> Result<()> {
        let newest = lock(&self.window).entries.back().map(|entry| entry.seq);
        match newest {
            Some(seq) => self.wait(seq, deadline),
            None => self.failure().map_or(Ok(()), Err),
        }
    }

    /// How many times submissions in flight hold a buffer.
    pub(crate) fn holds(&self, buffer: &Buffer) -> usize {
        let window = lock(&self.window);
        let keeps = window.entries.iter().flat_map(|entry| &entry.keeps);
        keeps
            .filter(|keep| matches!(keep, Keep::Device(held) if held.is_same(buffer)))
            .count()
    }

    /// The monitor of this producer: one is enough, because its waits come one after another.
    pub(crate) fn monitor(&self) -> Result<u32> {
        if let Some(&monitor) = self.monitor.get() {
            return Ok(monitor);
        }
        let taken = take_monitor(&self.context)?;
        let monitor = *self.monitor.get_or_init(|| taken);
        if monitor != taken {
            give_monitor(&self.context, taken);
        }
        Ok(monitor)
    }
}

/// Sleeps, each time twice as long, up to a millisecond.
fn pause(nap: &mut Duration) {
    thread::sleep(*nap);
    *nap = (*nap * 2).min(Duration::from_millis(1));
}

impl Drop for Lane {
    fn drop(&mut self) {
        let context = Arc::clone(&self.context);
        context.live.queues.fetch_sub(1, Ordering::Relaxed);
        if context.owner.is_foreign() {
            return;
        }
        let answer = self.drain(context.options.patience.into());
        if let Err(error) = answer.as_ref() {
            self.reap();
            let window = self.window.get_mut().unwrap_or_else(PoisonError::into_inner);
            if !window.entries.is_empty() {
                tracing::error!(
                    "device {}: {} submissions on queue {} have not ended: their command buffers ({:#x}) and sync objects stay \
                     allocated until the node closes, and their memory stays mapped until they have ended: {error}",
                    context.id,
                    window.entries.len(),
                    self.row.id,
                    self.ring.handle.0
                );
                for Entry { seq, keeps } in window.entries.drain(..) {
                    for keep in keeps {
                        match &keep {
                            Keep::Device(buffer) => buffer.wait_for(seq),
                            Keep::Sob { sob } => sob.retire(),
                            Keep::Host { mapping } => mapping.wait_for(seq),
                            // Its own queue releases it.
                            Keep::Other(_) => {}
                        }
                    }
                }
                // The engine may still fetch from the ring: it stays mapped. The driver frees it when the node closes.
                return;
            }
        } else if let Some(&monitor) = self.monitor.get() {
            // A monitor whose wait never ended may still fire: it is not given to another.
            give_monitor(&context, monitor);
        }
        if let Err(error) = context.io.cb_destroy(self.ring.handle) {
            tracing::warn!(
                "device {}: command buffer {:#x} was not destroyed: {error}",
                context.id,
                self.ring.handle.0
            );
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane(queue {} on {})", self.row.id, self.context.id)
    }
}
