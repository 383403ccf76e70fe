//! The state of a fault layer: armed rules, lost submissions, the reset, and the log of faults.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gaudi_seam::fault::{ArmedRules, ChipRules, Hit, Met, Plan, Rule, RuleCount, Target, Verdict};
use gaudi_seam::{
    AnyAnswer, AnyRequest, CsRequest, CsSeq, DeviceId, Errno, Error, ErrorKind, Operation, Result,
};
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::cs::CsFlags;

use super::conditions::Conditions;
use super::verdict::{exhausted, happens_later, signal};
use crate::time::{Time, nanoseconds};

/// The events that are stored. Older ones are counted only.
const EVENTS: usize = 4096;
/// The lost submissions that are stored; beyond, the oldest is reported again. A driver has 64 in
/// flight.
const LOST: usize = 4096;
/// The longest wait that a rule cuts short: a wait without a timeout ends too.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// An injected fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultEvent {
    /// Counts from 1.
    pub number: u64,
    /// The rule. `None` if a lost submission ran into its timeout.
    pub rule: Option<Rule>,
    /// The operation.
    pub operation: Operation,
    /// The number of the operation among those that match the rule, from 1.
    pub occurrence: u64,
    /// The submission, if the fault concerns one.
    pub seq: Option<CsSeq>,
    /// The time in nanoseconds of the layer's clock.
    pub at_ns: u64,
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.operation)?;
        match self.rule {
            Some(rule) => write!(f, "number {}: {} by rule {rule}", self.occurrence, rule.verdict)?,
            None => f.write_str("saw a lost submission run into its timeout: reset")?,
        }
        self.seq
            .map_or(Ok(()), |seq| write!(f, " (submission {})", seq.0))
    }
}

/// The injected faults, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultLog {
    /// The newest 4096.
    pub events: Vec<FaultEvent>,
    /// The number of older ones, which are not stored.
    pub forgotten: u64,
}

/// The decision of the rules on an operation that is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Untouched,
    /// The device is in reset, but answers this operation.
    InReset,
    /// The submission's completion is lost, by this rule.
    Lose(Hit),
    /// The answer is corrupted, by this rule.
    Corrupt(Hit),
    /// The chip reports an error first, by this rule.
    Signal(Hit),
    /// The wait ends without a completion.
    Timeout,
}

/// The result of a wait for lost submissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// The submission is not lost: wait below.
    NotLost,
    /// The submission is lost, and the timeout has passed.
    Busy,
}

/// Hands the chip's rules to the backend, if it is open.
pub(super) struct Attach(pub(super) Box<HandOver>);

type HandOver = dyn FnOnce(&Arc<ChipRules>) + Send;

impl fmt::Debug for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attach")
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    device: DeviceId,
    /// Rules for events of the chip, which the chip counts.
    chip: Arc<ChipRules>,
    /// Hands them to the backend, before the first is armed: a chip without rules has no hooks.
    attach: Mutex<Option<Attach>>,
    time: Arc<dyn Time>,
    /// The operations that `state` affects, a bit each, and [`ENDED`]. Checked first, so that an
    /// idle layer costs one load, and an operation without a rule takes no lock.
    active: AtomicU64,
    /// Whether a rule needs to know what passed.
    observes: AtomicBool,
    /// The faults so far, for a reader without the lock.
    happened: AtomicU64,
    owner: OwnerProcess,
    /// Whether the layer is recorded, and its rules are counted for the process when it closes.
    recorded: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rules: ArmedRules,
    /// The end of each submission's timeout. `None` if it has none.
    lost: BTreeMap<CsSeq, Option<u64>>,
    in_reset: bool,
    is_removed: bool,
    conditions: Conditions,
    log: Log,
}

/// The newest injected faults.
#[derive(Debug, Default)]
struct Log {
    events: VecDeque<FaultEvent>,
    happened: u64,
}

impl Log {
    /// Records a fault. The first of a rule is logged as a warning, later ones at level `DEBUG`: a
    /// delay of every wait would flood the log.
    fn add(&mut self, mut event: FaultEvent, first: bool) {
        self.happened += 1;
        event.number = self.happened;
        let (number, at_ns) = (event.number, event.at_ns);
        if first {
            tracing::warn!(number, at_ns, "fault injected: {event}");
        } else {
            tracing::debug!(number, at_ns, "fault injected: {event}");
        }
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// Submissions are lost or aborted, or the device is in reset or removed.
const ENDED: u64 = 1 << 63;
const _: () = assert!(Operation::ALL.len() < 63, "a bit for each operation");

fn bit(operation: Operation) -> u64 {
    1 << operation as u64
}

impl State {
    fn active(&self) -> u64 {
        let is_ended = self.is_lost() || !self.lost.is_empty() || self.conditions.has_aborted();
        let operations = self.rules.rules().map(|rule| match rule.target {
            Target::Only(operation) => bit(operation),
            Target::Any => !ENDED,
            Target::Chip(_) | Target::Nic(_) => 0,
        });
        operations.fold(if is_ended { ENDED } else { 0 }, |all, bits| all | bits)
    }

    /// Whether the device is in reset or removed, until the node is closed.
    fn is_lost(&self) -> bool {
        self.in_reset || self.is_removed
    }

    /// Whether a rule needs to know what passed.
    fn observes(&self) -> bool {
        let needs = |rule: &Rule| rule.schedule.state.is_some() || rule.verdict == Verdict::ComputeReset;
        self.rules.rules().any(needs)
    }

    /// Records that a rule injected its fault.
    fn fire(&mut self, hit: Hit, operation: Operation, seq: Option<CsSeq>, at_ns: u64) {
        let first = self.rules.fire(hit);
        self.log.add(event(hit, operation, seq, at_ns), first);
    }

    /// Starts the reset if a lost submission's timeout has passed, and returns that submission.
    fn expire(&mut self, operation: Operation, now: u64) -> Option<CsSeq> {
        let late = |deadline: &Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let (&seq, _) = self.lost.iter().find(|(_, deadline)| late(deadline))?;
        self.lost.clear();
        self.in_reset = true;
        self.conditions.was_reset = true;
        let event = FaultEvent {
            number: 0,
            rule: None,
            operation,
            occurrence: 0,
            seq: Some(seq),
            at_ns: now,
        };
        self.log.add(event, true);
        Some(seq)
    }
}

impl Shared {
    pub(super) fn new(
        device: DeviceId,
        plan: &Plan,
        chip: Arc<ChipRules>,
        attach: Attach,
        time: Arc<dyn Time>,
    ) -> Self {
        let state = State {
            rules: ArmedRules::new(&plan.of(Target::is_operation)),
            ..State::default()
        };
        Self {
            device,
            chip,
            attach: Mutex::new(Some(attach)),
            time,
            active: AtomicU64::new(state.active()),
            observes: AtomicBool::new(state.observes()),
            happened: AtomicU64::new(0),
            owner: OwnerProcess::current(),
            recorded: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(super) fn record(&self) {
        self.recorded.store(true, Ordering::Relaxed);
    }

    /// The counts of each armed rule.
    pub(super) fn rules(&self) -> Vec<RuleCount> {
        if self.owner.is_foreign() {
            return Vec::new();
        }
        let mut counts = self.lock().rules.counts();
        counts.extend(self.chip.counts());
        counts
    }

    pub(super) fn chip(&self) -> &ChipRules {
        &self.chip
    }

    /// Hands the rules for the chip to the backend, once.
    pub(super) fn attach_chip(&self) {
        let attach = self.attach.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Attach(attach)) = attach {
            attach(&self.chip);
        }
    }

    /// Locks the state. A caller that changes it calls [`changed`](Self::changed).
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, state: &State) {
        self.happened.store(state.log.happened, Ordering::Relaxed);
        self.active.store(state.active(), Ordering::Relaxed);
        self.observes.store(state.observes(), Ordering::Relaxed);
    }

    /// Whether the layer affects any operation.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.affects(u64::MAX)
    }

    #[inline]
    fn affects(&self, bits: u64) -> bool {
        // In a fork child a thread of the parent may hold the lock. The node below rejects
        // everything.
        self.active.load(Ordering::Relaxed) & bits != 0 && !self.owner.is_foreign()
    }

    /// Applies the rules to an operation that is about to be performed. Sleeps their delays.
    pub(super) fn before(&self, request: AnyRequest<'_>) -> Result<Pass> {
        if self.affects(bit(request.operation()) | ENDED) {
            self.judge(request)
        } else {
            Ok(Pass::Untouched)
        }
    }

    #[cold]
    fn judge(&self, request: AnyRequest<'_>) -> Result<Pass> {
        let operation = request.operation();
        let now = self.time.now_ns();
        let mut met = Met::default();
        let mut state = self.lock();
        let before = state.log.happened;
        let mut is_changed = state.expire(operation, now).is_some();
        if !state.is_lost() {
            let State {
                rules,
                conditions,
                log,
                ..
            } = &mut *state;
            let is_state = |rule: &Rule| rule.schedule.state.is_none_or(|state| conditions.holds(state));
            met = rules.meet(
                |rule| is_state(rule) && rule.matches(self.device.index, request),
                happens_later,
                |hit, first| log.add(event(hit, operation, None, now), first),
            );
            match met.verdict() {
                Some(Verdict::Reset) => {
                    state.in_reset = true;
                    state.conditions.was_reset = true;
                }
                Some(Verdict::Remove) => state.is_removed = true,
                Some(Verdict::ComputeReset) => {
                    state.conditions.abort();
                    state.lost.clear();
                }
                _ => {}
            }
        }
        is_changed |= state.log.happened != before
            || matches!(
                met.verdict(),
                Some(Verdict::Reset | Verdict::Remove | Verdict::ComputeReset)
            );
        let (in_reset, is_removed) = (state.in_reset, state.is_removed);
        if is_changed {
            self.changed(&state);
        }
        drop(state);
        if !met.delay.is_zero() {
            self.time.sleep(met.delay);
        }
        let decided = met.decided.map(|hit| (hit.rule.verdict, hit));
        match decided {
            Some((Verdict::Error(errno), hit)) => return Err(self.refusal(operation, errno, hit.rule)),
            Some((Verdict::Full(resource), hit)) => {
                return Err(self.refusal(operation, exhausted(resource), hit.rule));
            }
            _ => {}
        }
        match decided {
            // habanalabs_ioctl.c:hl_ioctl
            _ if is_removed => Err(self.removed(operation)),
            // The driver answers queries in reset (habanalabs_ioctl.c:_hl_info_ioctl), and
            // unregisters an eventfd.
            _ if in_reset && matches!(operation, Operation::Info | Operation::UnregisterEvents) => {
                Ok(Pass::InReset)
            }
            _ if in_reset => Err(self.in_reset(operation)),
            Some((Verdict::ComputeReset, _)) => Err(self
                .ended(
                    operation,
                    Errno::EBUSY,
                    "the device is in a compute reset, by an injected fault",
                )
                .with_kind(ErrorKind::InReset)),
            Some((Verdict::Lose, hit)) => Ok(Pass::Lose(hit)),
            Some((Verdict::Short(_) | Verdict::Flip(_), hit)) => Ok(Pass::Corrupt(hit)),
            Some((Verdict::Timeout, _)) => {
                self.cut(request, 1);
                Ok(Pass::Timeout)
            }
            Some((Verdict::Eintr, hit)) => {
                self.cut(request, 2);
                Err(self.refusal(operation, Errno::EINTR, hit.rule))
            }
            Some((verdict, hit)) if signal(verdict).is_some() => Ok(Pass::Signal(hit)),
            _ => Ok(Pass::Untouched),
        }
    }

    /// Sleeps a part of the timeout of a wait.
    fn cut(&self, request: AnyRequest<'_>, parts: u32) {
        let timeout = match request {
            AnyRequest::WaitCs(wait) => wait.timeout,
            AnyRequest::WaitMultiCs(wait) => wait.timeout,
            AnyRequest::WaitInterrupt(wait) => wait.timeout,
            _ => return,
        };
        self.time.sleep(timeout.min(LONGEST_WAIT) / parts);
    }

    /// Records that a rule's fault happened while the operation was performed.
    pub(super) fn happened(&self, hit: Hit, operation: Operation) {
        let now = self.time.now_ns();
        let mut state = self.lock();
        if matches!(
            hit.rule.verdict,
            Verdict::Razwi | Verdict::FatalEcc | Verdict::Heartbeat
        ) {
            state.conditions.was_reset = true;
        }
        state.fire(hit, operation, None, now);
        self.changed(&state);
    }

    /// Whether [`observe`](Self::observe) needs every operation.
    pub(super) fn observes(&self) -> bool {
        self.observes.load(Ordering::Relaxed)
    }

    /// Records an operation that succeeded.
    pub(super) fn observe(&self, request: AnyRequest<'_>, answer: AnyAnswer<'_>) {
        self.lock().conditions.record(request, answer);
    }

    /// The error of a wait for submissions of which a compute reset aborted one.
    pub(super) fn check_aborted(&self, operation: Operation, seqs: &[CsSeq]) -> Result<()> {
        if !self.affects(ENDED) || !self.lock().conditions.is_aborted(seqs) {
            return Ok(());
        }
        Err(self.ended(operation, Errno::EIO, "a compute reset aborted the submission"))
    }

    fn refusal(&self, operation: Operation, errno: Errno, rule: Rule) -> Error {
        let name = operation.kernel_name();
        if errno == Errno::EAGAIN {
            return Error::would_block(name).on(self.device);
        }
        let mut cause = format!("injected by the fault rule {rule}");
        let conditions = gaudi_seam::Rule::fitting(operation, None, errno);
        if !conditions.is_empty() {
            cause = format!("{cause}, as if {}", gaudi_seam::Rule::conditions(&conditions));
        }
        self.ended(operation, errno, cause)
    }

    pub(super) fn in_reset(&self, operation: Operation) -> Error {
        self.ended(
            operation,
            Errno::EBUSY,
            "the device is in reset, by an injected fault",
        )
        .helped_by("close it and open it again")
    }

    fn removed(&self, operation: Operation) -> Error {
        self.ended(
            operation,
            Errno::ENODEV,
            "the device was removed, by an injected fault",
        )
    }

    /// Records an accepted submission as lost.
    pub(super) fn lose(&self, hit: Hit, request: &CsRequest<'_>, seq: CsSeq) {
        if !request.is_numbered() {
            return;
        }
        let now = self.time.now_ns();
        let seconds = request.driver_timeout_s();
        let resets = !request.flags.contains(CsFlags::SKIP_RESET_ON_TIMEOUT);
        let deadline = resets.then(|| now.saturating_add(seconds.saturating_mul(1_000_000_000)));
        let mut state = self.lock();
        if state.lost.len() == LOST {
            state.lost.pop_first();
        }
        state.lost.insert(seq, deadline);
        state.fire(hit, Operation::Submit, Some(seq), now);
        self.changed(&state);
    }

    /// Waits for submissions that are all lost. Returns at once if one is not.
    pub(super) fn wait(&self, operation: Operation, seqs: &[CsSeq], timeout: Duration) -> Result<Waited> {
        if !self.affects(ENDED) {
            return Ok(Waited::NotLost);
        }
        let end = self.time.now_ns().saturating_add(nanoseconds(timeout));
        loop {
            let mut state = self.lock();
            if state.is_removed {
                return Err(self.removed(operation));
            }
            if state.in_reset {
                return Err(self.ended(operation, Errno::EIO, "a reset aborted the submission"));
            }
            if !seqs.iter().all(|seq| state.lost.contains_key(seq)) {
                return Ok(Waited::NotLost);
            }
            let now = self.time.now_ns();
            if let Some(late) = state.expire(operation, now) {
                self.changed(&state);
                let (errno, why) = match seqs.contains(&late) {
                    true => (
                        Errno::ETIMEDOUT,
                        "the submission was lost by a fault rule and ran into its timeout",
                    ),
                    false => (Errno::EIO, "a reset aborted the submission"),
                };
                return Err(self.ended(operation, errno, why));
            }
            if now >= end {
                return Ok(Waited::Busy);
            }
            let next = state.lost.values().flatten().copied().min();
            drop(state);
            let until = next.map_or(end, |next| next.min(end));
            self.time.pause(Duration::from_nanos(until.saturating_sub(now)));
        }
    }

    fn ended(&self, operation: Operation, errno: Errno, why: impl Into<String>) -> Error {
        Error::from_errno(operation.kernel_name(), errno)
            .on(self.device)
            .with_kind(ErrorKind::of_operation(operation, errno))
            .because(why)
    }

    /// The submissions that are not lost, with their indices in `seqs`. `None` if none is lost.
    pub(super) fn without_lost(&self, seqs: &[CsSeq]) -> Option<(Vec<CsSeq>, Vec<u32>)> {
        if !self.affects(ENDED) {
            return None;
        }
        let state = self.lock();
        seqs.iter().find(|seq| state.lost.contains_key(seq))?;
        let seen = (0..).zip(seqs).filter(|(_, seq)| !state.lost.contains_key(seq));
        Some(seen.map(|(place, &seq)| (seq, place)).unzip())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A fork child counts nothing: a thread of the parent may hold the registry's lock.
        if !self.owner.is_foreign() && *self.recorded.get_mut() {
            super::registry::close(self.rules());
        }
    }
}

/// The record of a rule's fault.
fn event(hit: Hit, operation: Operation, seq: Option<CsSeq>, at_ns: u64) -> FaultEvent {
    FaultEvent {
        number: 0,
        rule: Some(hit.rule),
        operation,
        occurrence: hit.occurrence,
        seq,
        at_ns,
    }
}

/// The controls of a fault layer, for a test in the same process.
#[derive(Debug, Clone)]
pub struct FaultHandle(pub(super) Arc<Shared>);

impl FaultHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Arms a rule until the guard is dropped. Its operations are counted from now.
    #[must_use = "the rule is disarmed when the guard is dropped"]
    pub fn arm(&self, rule: Rule) -> ArmedFault {
        let shared = Arc::clone(&self.0);
        if rule.target.is_chip() {
            let id = shared.chip.arm(rule);
            shared.attach_chip();
            return ArmedFault {
                shared,
                id,
                in_chip: true,
            };
        }
        let mut state = self.0.lock();
        let id = state.rules.arm(rule);
        self.0.changed(&state);
        drop(state);
        ArmedFault {
            shared,
            id,
            in_chip: false,
        }
    }

    /// The faults so far.
    pub fn log(&self) -> FaultLog {
        let state = self.0.lock();
        FaultLog {
            events: state.log.events.iter().cloned().collect(),
            forgotten: state.log.happened - state.log.events.len() as u64,
        }
    }

    /// Returns the stored faults with a number above `number`.
    pub(crate) fn since(&self, number: u64) -> Vec<FaultEvent> {
        let state = self.0.lock();
        if state.log.happened <= number {
            return Vec::new();
        }
        let newer = state.log.events.iter().filter(|event| event.number > number);
        newer.cloned().collect()
    }

    /// Returns the number of faults so far: those of the [`log`](Self::log), in their order.
    pub fn happened(&self) -> u64 {
        self.0.happened.load(Ordering::Relaxed)
    }

    /// Returns the counts of each armed rule, in the plan's order.
    pub fn rules(&self) -> Vec<RuleCount> {
        self.0.rules()
    }

    /// Returns the armed rules that have injected nothing. A test that expects a fault checks that
    /// this is empty.
    pub fn unfired(&self) -> Vec<Rule> {
        let rules = self.rules().into_iter();
        rules
            .filter(|count| count.fired == 0)
            .map(|count| count.rule)
            .collect()
    }

    /// Whether a rule put the device into reset.
    pub fn is_in_reset(&self) -> bool {
        self.0.lock().in_reset
    }
}

/// Disarms its rule when dropped.
#[derive(Debug)]
pub struct ArmedFault {
    shared: Arc<Shared>,
    id: u64,
    in_chip: bool,
}

impl ArmedFault {
    /// Returns the number of operations that matched the rule.
    pub fn seen(&self) -> u64 {
        self.count(|count| count.seen)
    }

    /// Returns the number of faults that the rule has injected.
    pub fn fired(&self) -> u64 {
        self.count(|count| count.fired)
    }

    fn count(&self, of: impl FnOnce(RuleCount) -> u64) -> u64 {
        let counted = match self.in_chip {
            true => self.shared.chip.count_of(self.id),
            false => self.shared.lock().rules.count_of(self.id),
        };
        counted.map_or(0, of)
    }
}

impl Drop for ArmedFault {
    fn drop(&mut self) {
        if self.in_chip {
            return self.shared.chip.disarm(self.id);
        }
        let mut state = self.shared.lock();
        state.rules.disarm(self.id);
        self.shared.changed(&state);
    }
}
