//! Command submission and waiting (driver common/command_submission.c).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gaudi_model::{Cb, Event};
use gaudi_seam::{CsAnswer, CsRequest, CsSeq, DeviceVa, Errno, Error, ErrorKind, QueueId, Result};
use gaudi_spec::asic::{QueueEngine, QueueType, VaRange};
use gaudi_spec::gaudi2;
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, CsStatus, HlCsChunk};
use gaudi_uapi::info::DeviceStatus;
use gaudi_uapi::limits::HL_MAX_JOBS_PER_CS;

use crate::interrupt::Line;
use crate::open::{Device, State};
use crate::signal::Sob;

const OP: &str = "HL_IOCTL_CS";
/// Submissions that the driver keeps a record of (gaudi2P.h `GAUDI2_MAX_PENDING_CS`).
const PENDING: usize = gaudi2::MAX_PENDING_CS as usize;
/// Outcomes of submissions with a timestamp that outlive their record (habanalabs.h `HL_CS_OUTCOME_HISTORY_LEN`).
const OUTCOMES: usize = 256;
/// Entries of a queue.
const DEPTH: u16 = gaudi2::QUEUE_DEPTH as u16;
/// The driver's own limit on a submission (habanalabs_drv.c `timeout_locked`, seconds).
const TIMEOUT_S: u64 = 30;
/// Packets and monitors in one slice of work, and pieces of 4 KiB that DMA engines move: what needs more goes on in waits, so that no
/// program holds the device for long.
const BUDGET: u64 = 1 << 16;
/// Bytes that they move in a slice of stepped work.
const BYTES: u64 = BUDGET * 4096;
/// How long a wait spins before it sleeps: longer than another thread's small copy, shorter than a wake-up.
const SPINS: u32 = 256;
/// What stopped streams, kept for people.
const STOPS: usize = 16;

/// The submissions of a context.
#[derive(Debug)]
pub(crate) struct Submissions {
    pub(crate) next: u64,
    /// No submission below this is unfinished.
    pub(crate) oldest: u64,
    records: [Option<Record>; PENDING],
    outcomes: VecDeque<(u64, i64, Option<Errno>)>,
    pub(crate) drops: Drops,
}

/// Submissions that were refused, by cause (`hl_cs_counters`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drops {
    pub(crate) parsing: u64,
    pub(crate) queue_full: u64,
    pub(crate) max_in_flight: u64,
    pub(crate) validation: u64,
}

impl Drops {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            parsing: self.parsing + other.parsing,
            queue_full: self.queue_full + other.queue_full,
            max_in_flight: self.max_in_flight + other.max_in_flight,
            validation: self.validation + other.validation,
        }
    }
}

/// `struct hl_fence` and what of `struct hl_cs` it needs.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    seq: u64,
    /// Jobs that have not ended.
    jobs: u32,
    /// Queues of the jobs that have, an entry a job.
    ended: Vec<QueueId>,
    pub(crate) done: bool,
    error: Option<Errno>,
    wants_timestamp: bool,
    timestamp: i64,
    /// Nanoseconds that it may take.
    limit: u64,
    pub(crate) deadline: Deadline,
    pub(crate) resets: bool,
    signals: bool,
    /// The sync object that it holds while it runs, and the value that it makes or waits for.
    pub(crate) sob: Option<(Sob, u32)>,
}

/// Of the submissions that run, the driver times the oldest alone (hw_queue.c:761, command_submission.c:549).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// An older one runs.
    Unset,
    /// When the driver's timer runs out.
    At(u64),
    /// It ran out, and nothing came of it.
    Past,
}

/// What a wait sees of a submission.
pub(crate) enum Seen {
    Future,
    /// Its outcome, where it was kept, and is told once.
    Gone {
        known: bool,
        timestamp: i64,
        error: Option<Errno>,
    },
    Running,
    Done {
        timestamp: i64,
        error: Option<Errno>,
    },
}

impl Submissions {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            oldest: 1,
            records: [const { None }; PENDING],
            outcomes: VecDeque::new(),
            drops: Drops::default(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.records
            .iter()
            .flatten()
            .filter(|record| !record.done)
            .count()
    }

    pub(crate) fn slot(seq: u64) -> usize {
        usize::try_from(seq % PENDING as u64).unwrap_or_default()
    }

    pub(crate) fn record(&mut self, seq: u64) -> Option<&mut Record> {
        self.records[Self::slot(seq)]
            .as_mut()
            .filter(|record| record.seq == seq)
    }

    pub(crate) fn is_signal(&mut self, seq: u64) -> bool {
        self.record(seq).is_some_and(|record| record.signals)
    }

    fn is_running(&mut self, seq: u64) -> bool {
        self.record(seq).is_some_and(|record| !record.done)
    }

    /// What a wait finds (command_submission.c:2656, context.c:343); an outcome is told once.
    pub(crate) fn look(&mut self, seq: u64) -> Seen {
        if seq >= self.next {
            return Seen::Future;
        }
        match self.record(seq) {
            Some(record) if record.done => Seen::Done {
                timestamp: record.timestamp,
                error: record.error,
            },
            Some(_) => Seen::Running,
            None => match self.outcomes.iter().position(|outcome| outcome.0 == seq) {
                Some(at) => {
                    let (_, timestamp, error) = self.outcomes.remove(at).unwrap_or_default();
                    Seen::Gone {
                        known: true,
                        timestamp,
                        error,
                    }
                }
                None => Seen::Gone {
                    known: false,
                    timestamp: 0,
                    error: None,
                },
            },
        }
    }

    /// `now` is asked for where a timestamp is wanted.
    pub(crate) fn finish(&mut self, seq: u64, now: impl FnOnce() -> u64, error: Option<Errno>) {
        let Some(record) = self.record(seq).filter(|record| !record.done) else {
            return;
        };
        record.done = true;
        record.error = error;
        let wants_timestamp = record.wants_timestamp;
        if wants_timestamp {
            // command_submission.c:795: the time of the last job's end, which what was refused or given up never had.
            let timestamp = match error {
                None => i64::try_from(now()).unwrap_or(i64::MAX),
                Some(_) => 0,
            };
            record.timestamp = timestamp;
            if self.outcomes.len() == OUTCOMES {
                self.outcomes.pop_front();
            }
            self.outcomes.push_back((seq, timestamp, error));
        }
    }

    /// Starts the timer of the oldest submission that runs, if it is not running.
    fn time_the_oldest(&mut self, now: impl FnOnce() -> u64) {
        while self.oldest < self.next && !self.is_running(self.oldest) {
            self.oldest += 1;
        }
        let oldest = self.oldest;
        if let Some(record) = self
            .record(oldest)
            .filter(|record| record.deadline == Deadline::Unset)
        {
            record.deadline = Deadline::At(now().saturating_add(record.limit));
        }
    }

    /// When the driver's timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let record = self.records[Self::slot(self.oldest)].as_ref();
        match record
            .filter(|record| record.seq == self.oldest && !record.done)?
            .deadline
        {
            Deadline::At(then) => Some(then),
            _ => None,
        }
    }
}

/// Counts changes, so that a wait can spin on them without the lock; and who sleeps, so that nobody is woken in vain: that is a system
/// call.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    changes: AtomicU32,
    /// Changed under the device's lock only.
    pub(crate) sleepers: AtomicU32,
}

impl Progress {
    pub(crate) fn mark(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn spin(&self) {
        let seen = self.changes.load(Ordering::Acquire);
        for _ in 0..SPINS {
            if self.changes.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

impl Device {
    /// Every operation but information needs an operational device (device.c `hl_device_operational`).
    pub(crate) fn operational(&self, state: &mut State, operation: &'static str) -> Result<()> {
        state.settle();
        if state.status == DeviceStatus::OPERATIONAL && state.context.is_some() && !state.closed {
            return Ok(());
        }
        Err(self
            .refusal(operation, Errno::EBUSY)
            .with_kind(ErrorKind::DeviceLost)
            .because(format!("the device is {}", state.status))
            .helped_by("close it and open it again: the reset comes when its user is gone"))
    }

    pub(crate) fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let flags = request.cs_flags();
        if !request.is_sound() {
            // No driver's answer: such a request cannot be told to one.
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("the flags name another command to engines than the argument holds, or there are chunks too")
                .saw(request.flags, request.argument.flags()));
        }
        self.sane(request)?;
        // command_submission.c:1700: the chip has no context to switch, so that a restore phase is run where it is asked for only.
        if flags.contains(CsFlags::FORCE_RESTORE) && !request.restore.is_empty() {
            let restore = CsRequest {
                execute: request.restore,
                ..CsRequest::default()
            };
            let seq = self.execute(&mut guard, &restore)?.seq;
            drop(guard);
            let limit = Duration::from_secs(TIMEOUT_S);
            // command_submission.c:1752
            self.wait_cs(seq, limit).map_err(|error| {
                self.refusal(OP, Errno::ENOEXEC)
                    .because(format!("the restore phase failed: {error}"))
            })?;
            guard = self.lock();
            self.operational(&mut guard, OP)?;
        }
        let state = &mut *guard;
        let nothing = CsAnswer {
            seq: CsSeq(u64::MAX),
            status: CsStatus::SUCCESS,
            sob_base_addr_offset: 0,
            sob_count_before_submission: 0,
        };
        match flags.0 & TYPE_MASK {
            0 => self.execute(state, request),
            kind if kind & SYNC_STREAM != 0 => self.submit_signal_or_wait(state, request),
            kind if kind == CsFlags::RESERVE_SIGNALS_ONLY.0 => {
                self.reserve_signals(state, request.argument.word())
            }
            kind if kind == CsFlags::UNRESERVE_SIGNALS_ONLY.0 => {
                self.unreserve_signals(state, request.argument.word())
            }
            // command_submission.c:2561: a read of a register, which has nothing to wait for here.
            kind if kind == CsFlags::FLUSH_PCI_HBW_WRITES.0 => Ok(nothing),
            _ => self.command_engines(request.argument).map(|()| nothing),
        }
    }

    /// Jobs that the user wrote (command_submission.c:1465 `cs_ioctl_default`).
    fn execute(&self, state: &mut State, request: &CsRequest<'_>) -> Result<CsAnswer> {
        // command_submission.c:1390, :1413
        if request.execute.is_empty() || request.execute.len() > HL_MAX_JOBS_PER_CS as usize {
            // The driver counts too many as a refusal (:1415); a backend of the kernel does not ask it.
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a submission has 1 to 512 chunks")
                .saw(request.execute.len(), "1 to 512"));
        }
        let jobs = u32::try_from(request.execute.len()).unwrap_or(u32::MAX);
        let seq = self.begin(state, request, jobs)?;
        // All chunks are looked at before any is queued; a refused submission has used up its number (command_submission.c:1562).
        let refused = request.execute.iter().find_map(|chunk| self.check(chunk).err());
        if let Some((error, parsing)) = refused {
            if let Some(context) = state.context.as_mut() {
                context.submissions.drops.parsing += u64::from(parsing);
                context.submissions.drops.validation += u64::from(!parsing);
            }
            return Err(self.give_up(state, seq, error));
        }
        self.queue(state, seq, request.execute)?;
        Ok(CsAnswer {
            seq: CsSeq(seq),
            status: CsStatus::SUCCESS,
            sob_base_addr_offset: 0,
            sob_count_before_submission: 0,
        })
    }

    /// A number and a record (command_submission.c:896 `allocate_cs`).
    pub(crate) fn begin(&self, state: &mut State, request: &CsRequest<'_>, jobs: u32) -> Result<u64> {
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        let submissions = &mut context.submissions;
        // command_submission.c:956
        let seq = submissions.next;
        let slot = Submissions::slot(seq);
        if submissions.records[slot]
            .as_ref()
            .is_some_and(|record| !record.done)
        {
            submissions.drops.max_in_flight += 1;
            return Err(Error::would_block(OP).on(self.id));
        }
        let timeout_s = match request.flags.contains(CsFlags::CUSTOM_TIMEOUT) {
            true => u64::from(request.timeout_s),
            false => TIMEOUT_S,
        };
        submissions.next += 1;
        submissions.records[slot] = Some(Record {
            seq,
            jobs,
            ended: Vec::new(),
            done: false,
            error: None,
            wants_timestamp: request.flags.contains(CsFlags::TIMESTAMP),
            timestamp: 0,
            limit: timeout_s.saturating_mul(1_000_000_000),
            deadline: Deadline::Unset,
            resets: !request.flags.contains(CsFlags::SKIP_RESET_ON_TIMEOUT),
            signals: request.flags.contains(CsFlags::SIGNAL),
            sob: None,
        });
        Ok(seq)
    }

    /// Ends a submission that was begun and cannot be queued.
    pub(crate) fn give_up(&self, state: &mut State, seq: u64, error: Error) -> Error {
        let State { context, clock, .. } = state;
        if let Some(context) = context {
            context
                .submissions
                .finish(seq, || clock.now_ns(), Some(Errno::EBUSY));
        }
        error
    }

    /// Refuses a submission with `EAGAIN` if its queue has no free entry.
    pub(crate) fn has_room(&self, state: &mut State, seq: u64, queue: QueueId) -> Result<()> {
        match state.queued.get(queue.0 as usize) {
            Some(&taken) if taken < DEPTH => Ok(()),
            _ => Err(self.queue_full(state, seq)),
        }
    }

    fn queue_full(&self, state: &mut State, seq: u64) -> Error {
        if let Some(context) = state.context.as_mut() {
            context.submissions.drops.queue_full += 1;
        }
        self.give_up(state, seq, Error::would_block(OP).on(self.id))
    }

    /// Queues a submission's jobs, whole or not at all (hw_queue.c:219), and starts them.
    pub(crate) fn queue(&self, state: &mut State, seq: u64, jobs: &[HlCsChunk]) -> Result<()> {
        if !take_entries(&mut state.queued[..], jobs) {
            return Err(self.queue_full(state, seq));
        }
        for job in jobs {
            let cb = Cb {
                va: DeviceVa(job.cb_handle),
                len: job.cb_size,
                tag: seq,
            };
            if let Err(error) = state.chip.push_cb(QueueId(job.queue_index), cb) {
                let error = self.refusal(OP, Errno::EINVAL).because(error.to_string());
                return Err(self.give_up(state, seq, error));
            }
        }
        self.set_off(state);
        // After the run: what was done in it needs no timer, and the clock is not read for it.
        let State { context, clock, .. } = state;
        if let Some(context) = context {
            context.submissions.time_the_oldest(|| clock.now_ns());
        }
        Ok(())
    }

    /// command_submission.c:1347 `hl_cs_sanity_checks`
    fn sane(&self, request: &CsRequest<'_>) -> Result<()> {
        if request.cs_flags().contains(CsFlags::STAGED_SUBMISSION) {
            // command_submission.c:1366; Gaudi2 does not have it.
            return Err(self
                .refusal(OP, Errno::EPERM)
                .with_kind(ErrorKind::Unsupported)
                .because("this chip's driver takes no submissions in stages"));
        }
        let kinds = request.cs_flags().0 & TYPE_MASK;
        if kinds.count_ones() > 1 {
            // command_submission.c:1375
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a submission has one kind")
                .saw(request.cs_flags(), "one of its kinds"));
        }
        let chunks = request.execute.len();
        if kinds == 0 && chunks == 0 {
            // command_submission.c:1390
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a submission has 1 to 512 chunks")
                .saw(chunks, "1 to 512"));
        }
        if kinds & SYNC_STREAM != 0 && chunks != 1 {
            // command_submission.c:1394
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a signal or a wait for one has one chunk")
                .saw(chunks, 1));
        }
        Ok(())
    }

    /// One chunk (command_submission.c:1203 `validate_queue_index`, gaudi2.c:7132); with the error, whether it counts as a parsing one.
    fn check(&self, chunk: &HlCsChunk) -> std::result::Result<(), (Error, bool)> {
        let refuse = |errno, why: String| self.refusal(OP, errno).because(why);
        let queue = QueueId(chunk.queue_index);
        let row = match (gaudi2::ASIC.queue)(queue) {
            None => return Err((refuse(Errno::EINVAL, format!("there is no queue {queue}")), false)),
            Some(row) if row.kind != QueueType::Hardware => {
                return Err((
                    refuse(Errno::EINVAL, format!("queue {queue} is the driver's own")),
                    false,
                ));
            }
            Some(row) => row,
        };
        if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
            let error = refuse(
                Errno::EINVAL,
                format!("queue {queue} takes no command buffer of the kernel"),
            )
            .helped_by("pass its device address with HL_CS_CHUNK_FLAGS_USER_ALLOC_CB");
            return Err((error, false));
        }
        if !row.user {
            return Err((
                refuse(Errno::EINVAL, format!("queue {queue} is not enabled")),
                true,
            ));
        }
        let (va, size) = (DeviceVa(chunk.cb_handle), u64::from(chunk.cb_size));
        let known = size > 0
            && command_buffer_ranges()
                .iter()
                .any(|range| range.contains(va, size));
        if !known {
            let error = refuse(
                Errno::EFAULT,
                format!("no command buffer can lie at {va} + {size}"),
            );
            return Err((error, true));
        }
        Ok(())
    }

    /// To be called after a change under the device's lock: who sleeps counted himself under it before.
    pub(crate) fn wake(&self) {
        self.progress.mark();
        if self.progress.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// `HL_CS_FLAGS_TYPE_MASK` (command_submission.c:17).
const TYPE_MASK: u32 = CsFlags::SIGNAL.0
    | CsFlags::WAIT.0
    | CsFlags::COLLECTIVE_WAIT.0
    | CsFlags::RESERVE_SIGNALS_ONLY.0
    | CsFlags::UNRESERVE_SIGNALS_ONLY.0
    | CsFlags::ENGINE_CORE_COMMAND.0
    | CsFlags::ENGINES_COMMAND.0
    | CsFlags::FLUSH_PCI_HBW_WRITES.0;

/// Those that the driver writes the packets of.
const SYNC_STREAM: u32 = CsFlags::SIGNAL.0 | CsFlags::WAIT.0 | CsFlags::COLLECTIVE_WAIT.0;

/// Where a command buffer may lie (gaudi2.c:7144): the driver looks at ranges only, not at what is mapped in them.
fn command_buffer_ranges() -> [VaRange; 5] {
    let physical = |base: u64, size: u64| VaRange {
        start: DeviceVa(base),
        end: DeviceVa(base + size),
        page: 4096,
    };
    [
        physical(gaudi2::SRAM_BASE.0, gaudi2::SRAM_SIZE),
        physical(gaudi2::ASIC.dram_user_base().0, gaudi2::ASIC.dram_user_size()),
        gaudi2::DRAM_VA,
        gaudi2::HOST_VA,
        gaudi2::HOST_HUGE_VA,
    ]
}

/// Entries taken of each queue before anybody submits: the driver's test of a queue takes one and nobody gives it back
/// (gaudi2/gaudi2.c:7440; `hl_hw_queue_inc_ci_kernel` is not called for it). It tests those of users but the EDMAs'.
pub(crate) fn untouched() -> [u16; gaudi2::queue::COUNT as usize] {
    std::array::from_fn(|id| {
        let row = gaudi2::queue::row(QueueId(id as u32));
        row.is_some_and(|row| row.user && row.engine != QueueEngine::Edma)
            .into()
    })
}

/// Takes an entry of its queue for each chunk, or none at all: whether there was room.
fn take_entries(queued: &mut [u16], chunks: &[HlCsChunk]) -> bool {
    for (index, chunk) in chunks.iter().enumerate() {
        match queued.get_mut(chunk.queue_index as usize) {
            Some(taken) if *taken < DEPTH => *taken += 1,
            _ => {
                for chunk in &chunks[..index] {
                    queued[chunk.queue_index as usize] -= 1;
                }
                return false;
            }
        }
    }
    true
}

/// Frees an entry of a queue.
fn free_entry(queued: &mut [u16], queue: QueueId) {
    if let Some(taken) = queued.get_mut(queue.0 as usize) {
        *taken = taken.saturating_sub(1);
    }
}

impl State {
    /// Executes until every stream is idle or blocked, or for one slice, and books what was done.
    pub(crate) fn advance(&mut self) {
        self.unfinished = self.chip.run(BUDGET) == gaudi_model::RunOutcome::Budget;
        self.book();
    }

    /// Executes one packet, if any stream can.
    pub(crate) fn step_once(&mut self) -> bool {
        let stepped = self.chip.step().is_some();
        self.book();
        stepped
    }

    /// Executes packets as long as there are any and it is told to go on.
    pub(crate) fn step_while(&mut self, go_on: impl Fn(&Self) -> bool) {
        self.unfinished = false;
        let end = self.chip.counters().bytes() + BYTES;
        for _ in 0..BUDGET {
            if !go_on(self) || !self.step_once() {
                return;
            }
            if self.chip.counters().bytes() >= end {
                break;
            }
        }
        self.unfinished = true;
    }

    /// When the driver's next timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.context.as_ref()?.submissions.next_deadline()
    }

    /// Stepped order: executes one packet for a poll, and as many as it takes for a wait.
    pub(crate) fn progress(&mut self, seq: CsSeq, once: bool) {
        self.unfinished = false;
        let end = self.chip.counters().bytes() + BYTES;
        for _ in 0..BUDGET {
            let stepped = self.step_once();
            let running = self
                .context
                .as_mut()
                .is_some_and(|context| context.submissions.is_running(seq.0));
            if once || !stepped || !running {
                return;
            }
            if self.chip.counters().bytes() >= end {
                break;
            }
        }
        self.unfinished = true;
    }

    fn book(&mut self) {
        while let Some(event) = self.chip.next_event() {
            self.capture(&event);
            match event {
                Event::CbDone { queue, tag } => {
                    let (Some(context), clock) = (self.context.as_mut(), &self.clock) else {
                        continue;
                    };
                    let Some(record) = context.submissions.record(tag) else {
                        // It was aborted, and a younger one has its record.
                        free_entry(&mut self.queued[..], queue);
                        continue;
                    };
                    record.jobs = record.jobs.saturating_sub(1);
                    if record.jobs > 0 {
                        record.ended.push(queue);
                    } else {
                        // irq.c `cs_finish`: the entries of all jobs at once.
                        free_entry(&mut self.queued[..], queue);
                        for queue in std::mem::take(&mut record.ended) {
                            free_entry(&mut self.queued[..], queue);
                        }
                        let sob = record.sob;
                        context.submissions.finish(tag, || clock.now_ns(), None);
                        context.submissions.time_the_oldest(|| clock.now_ns());
                        if let Some((sob, _)) = sob {
                            self.put_sob(sob);
                        }
                    }
                }
                Event::Stop(stop) => self.keep(stop.to_string()),
                Event::PageFault(fault) => self.keep(format!(
                    "queue {} met {:?} of {}, which is not mapped, at offset {:#x} of command buffer {}",
                    fault.queue, fault.access, fault.address, fault.offset, fault.tag
                )),
                Event::MonitorFault {
                    monitor,
                    address,
                    cause,
                    ..
                } => {
                    self.keep(format!(
                        "monitor {monitor} could not write to {address}: {cause:?}"
                    ));
                }
                Event::Unsupported { address, value, what } => {
                    self.keep(format!("{what} was asked for by writing {value:#x} to {address}"));
                }
                Event::Interrupt { vector } => {
                    let now = self.clock.now_ns();
                    self.stamp(vector, now);
                    if let Some(alarm) = self.interrupts.raise(vector, now) {
                        self.alarm(alarm);
                    }
                }
                _ => {}
            }
        }
    }

    /// Writes the times that are registered at the lines of a vector: that of the common line is never set (irq.c:429).
    fn stamp(&mut self, vector: u16, now: u64) {
        let Some(([own, common], context)) = Line::stamped_by(vector).zip(self.context.as_mut()) else {
            return;
        };
        context.buffers.stamp_reached(common, &mut self.chip, 0);
        context.buffers.stamp_reached(own, &mut self.chip, now);
    }

    pub(crate) fn keep(&mut self, stop: String) {
        if self.stops.len() == STOPS {
            self.stops.pop_front();
        }
        self.stops.push_back(stop);
    }
}
