//! Waiting for submissions and interrupts (driver common/command_submission.c `hl_wait_ioctl`).

use std::sync::MutexGuard;
use std::time::Duration;

use gaudi_seam::{
    Clock, CsSeq, Errno, Error, ErrorKind, HostVa, InterruptId, InterruptWait, InterruptWord,
    MultiWaitAnswer, Operation, Order, Result, TimestampRegistration, WaitAnswer, WaitMultiCs, WaitStatus,
    rules,
};

use crate::buffers::Counter;
use crate::interrupt::Line;
use crate::open::Device;
use crate::state::State;
use crate::submissions::Seen;
use crate::time::nanoseconds;
use crate::uaccess;

const BUSY: WaitAnswer = WaitAnswer {
    status: WaitStatus::Busy,
    gone: false,
    timestamp_ns: None,
};

const INTERRUPT: Operation = Operation::WaitInterrupt;

/// The condition of a wait for an interrupt.
#[derive(Debug, Clone, Copy)]
enum Watched {
    /// A word of the user's.
    User(HostVa),
    /// A counter in a command buffer, which stays while it is watched.
    Counter(Counter),
}

/// The virtual time of a slice of unfinished work: an endless program runs into the driver's
/// timeout after a few slices.
const SLICE_NS: u64 = 1_000_000_000;

impl Device {
    /// A wait also needs a device that no reset is planned of (command_submission.c:hl_wait_ioctl).
    fn waitable(&self, state: &mut State, operation: Operation) -> Result<()> {
        self.operational(state, operation)?;
        match state.watchdog {
            None => Ok(()),
            Some(_) => Err(self.refuse(operation, &rules::wait::NOT_OPERATIONAL)),
        }
    }

    pub(crate) fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        const OP: Operation = Operation::WaitCs;
        let mut state = self.lock();
        self.waitable(&mut state, OP)?;
        // A wait for a completed submission does not read the clock.
        let works = self.spec.order == Order::Stepped || state.unfinished;
        let mut end = works.then(|| state.clock.now_ns().saturating_add(nanoseconds(timeout)));
        let mut spun = false;
        loop {
            if self.spec.order == Order::Stepped {
                state.progress(seq, timeout.is_zero());
            } else if state.unfinished {
                state.advance();
            }
            state.expire();
            let Some(context) = state.context.as_mut() else {
                return Err(self.ended(&state, OP, Errno::EIO));
            };
            match context.submissions.look(seq.0) {
                Seen::Future => {
                    let wanted = format!("below {}", context.submissions.next);
                    return Err(self.refuse(OP, &rules::wait::FUTURE).saw(seq.0, wanted));
                }
                Seen::Ended {
                    error: Some(errno @ (Errno::ETIMEDOUT | Errno::EIO)),
                    ..
                } => return Err(self.ended(&state, OP, errno)),
                Seen::Ended { gone, timestamp, .. } => {
                    return Ok(WaitAnswer {
                        status: WaitStatus::Completed,
                        gone,
                        timestamp_ns: (timestamp != 0).then_some(timestamp),
                    });
                }
                Seen::Running => {}
            }
            if let Some(error) = self.strict_stop(&state, OP) {
                return Err(error);
            }
            let now = state.clock.now_ns();
            let deadline = *end.get_or_insert(now.saturating_add(nanoseconds(timeout)));
            if now >= deadline {
                return Ok(BUSY);
            }
            let next = state.next_deadline();
            let until = next.map_or(deadline, |next| next.min(deadline));
            state = self.pause(state, until, &mut spun);
        }
    }

    /// Rejects the wait: Gaudi2 does not support it (gaudi2.c:gaudi2_sw_init). The driver checks
    /// that before it reads the list (command_submission.c:hl_multi_cs_wait_ioctl).
    pub(crate) fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        const OP: Operation = Operation::WaitMultiCs;
        // A list that is too long is not an answer of the driver: a backend of the kernel refuses
        // it too.
        self.check_rules(&WaitMultiCs { seqs, timeout }, None)?;
        let mut state = self.lock();
        self.waitable(&mut state, OP)?;
        Err(self.refuse(OP, &rules::wait::MULTI_UNSUPPORTED))
    }

    /// The line of an interrupt that can be waited for.
    fn line(&self, state: &State, operation: Operation, id: InterruptId) -> Result<Line> {
        // command_submission.c `hl_interrupt_wait_ioctl`
        let line = state.interrupts.line(id);
        line.ok_or_else(|| {
            self.refuse(operation, &rules::wait::UNKNOWN_INTERRUPT)
                .showing(id.0)
        })
    }

    pub(crate) fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        const OP: Operation = Operation::RegisterTimestamp;
        let mut guard = self.lock();
        self.waitable(&mut guard, OP)?;
        let line = self.line(&guard, OP, request.interrupt)?;
        self.check_rules(&request, Some(&guard))?;
        let now = guard.clock.now_ns();
        let (context, engine) = guard.parts();
        // command_submission.c:_hl_interrupt_ts_reg_ioctl
        let registered = context.buffers.register(request, line, engine, now);
        // The user may have unmapped a destroyed buffer since the check.
        registered.ok_or_else(|| self.refuse(OP, &rules::wait::TIMESTAMP_COUNTERS))
    }

    pub(crate) fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        let mut state = self.lock();
        self.waitable(&mut state, INTERRUPT)?;
        let line = self.line(&state, INTERRUPT, request.interrupt)?;
        let watched = match request.word {
            InterruptWord::User(address) => Watched::User(address),
            InterruptWord::KernelCq(counter) => match state.context().buffers.watch(counter) {
                Some(counter) => Watched::Counter(counter),
                None => {
                    self.check_rules(&request, Some(&state))?;
                    // The user unmapped a destroyed buffer in between.
                    return Err(self.refuse(INTERRUPT, &rules::wait::UNKNOWN_COUNTERS));
                }
            },
        };
        let (mut state, answer) = self.wait_at(state, line, watched, request);
        if let Watched::Counter(counter) = watched {
            let State { context, engine, .. } = &mut *state;
            if let Some(context) = context.as_mut() {
                context.buffers.unwatch(counter, &mut **engine);
            }
        }
        answer
    }

    /// Whether what is watched is there.
    fn reached(&self, state: &State, watched: Watched, target: u64) -> Result<bool> {
        match watched {
            Watched::User(address) => match uaccess::read_u64(address) {
                Ok(value) => Ok(value >= target),
                // command_submission.c:_hl_interrupt_wait_ioctl_user_addr
                Err(_) => Err(self
                    .refuse(INTERRUPT, &rules::wait::WORD)
                    .showing(format!("{:#x}", address.0))),
            },
            Watched::Counter(counter) => {
                let context = state.context.as_ref();
                Ok(context.is_some_and(|context| context.buffers.count(counter) >= target))
            }
        }
    }

    fn wait_at<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        line: Line,
        watched: Watched,
        request: &InterruptWait,
    ) -> (MutexGuard<'a, State>, Result<WaitAnswer>) {
        macro_rules! answer {
            ($answer:expr) => {
                return (state, $answer)
            };
        }
        macro_rules! reached {
            () => {
                match self.reached(&state, watched, request.target) {
                    Ok(reached) => reached,
                    Err(error) => answer!(Err(error)),
                }
            };
        }
        let at = |status, at_ns: u64| {
            Ok(WaitAnswer {
                status,
                gone: false,
                timestamp_ns: i64::try_from(at_ns).ok().filter(|&at_ns| at_ns != 0),
            })
        };
        let of_driver = matches!(watched, Watched::Counter(_));
        let polls = request.timeout.is_zero();
        if polls && self.spec.order == Order::Stepped {
            state.step_once();
        }
        let mut seen = state.interrupts.mark(line);
        let mut woken_ns = 0;
        let now = state.clock.now_ns();
        let deadline = now.saturating_add(nanoseconds(request.timeout));
        // command_submission.c:_hl_interrupt_wait_ioctl: there was no interrupt, so it is done now.
        if reached!() {
            answer!(at(WaitStatus::Completed, now));
        }
        if polls {
            // command_submission.c `_hl_interrupt_wait_ioctl`: a poll of the driver's own counter
            // reports the time in any case.
            answer!(at(WaitStatus::Busy, if of_driver { now } else { 0 }));
        }
        let mut spun = false;
        loop {
            if self.spec.order == Order::Stepped {
                state.step_while(|state| state.interrupts.mark(line) == seen);
            } else if state.unfinished {
                state.advance();
            }
            state.expire();
            let mark = state.interrupts.mark(line);
            if mark != seen {
                // command_submission.c:_hl_interrupt_wait_ioctl: an aborted fence of the driver's
                // own is not looked at again.
                let aborted = mark.aborted != seen.aborted;
                if of_driver && aborted && mark.raised == seen.raised {
                    answer!(Err(self.refuse(INTERRUPT, &rules::wait::COUNTER_ABORTED)));
                }
                // command_submission.c:_hl_interrupt_wait_ioctl_user_addr,
                // irq.c:handle_user_interrupt_ts_list: the word is looked at after an interrupt and
                // at no other time.
                if reached!() {
                    answer!(at(WaitStatus::Completed, mark.at_ns));
                }
                if mark.aborted != seen.aborted {
                    let error = Error::new(ErrorKind::DeviceLost, INTERRUPT.kernel_name())
                        .on(self.id)
                        .because("the wait was aborted by a reset");
                    // For a word of the user's the driver answers a status and no errno
                    // (command_submission.c:_hl_interrupt_wait_ioctl_user_addr).
                    answer!(Err(match of_driver {
                        true => self.refuse(INTERRUPT, &rules::wait::COUNTER_ABORTED),
                        false => error,
                    }));
                }
                // A waiter for the driver's counter sleeps on.
                woken_ns = if of_driver { 0 } else { mark.at_ns };
                seen = mark;
                continue;
            }
            if let Some(error) = self.strict_stop(&state, INTERRUPT) {
                answer!(Err(error));
            }
            if state.clock.now_ns() >= deadline {
                answer!(at(WaitStatus::Busy, woken_ns));
            }
            let next = state.next_deadline();
            let until = next.map_or(deadline, |next| next.min(deadline));
            state = self.pause(state, until, &mut spun);
        }
    }

    /// Lets time pass until something happens, at most until then. The first pause of a wait is a
    /// spin.
    fn pause<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: u64,
        spun: &mut bool,
    ) -> MutexGuard<'a, State> {
        if self.spec.clock == Clock::Virtual {
            let soonest = state.clock.now_ns().saturating_add(SLICE_NS);
            let then = if state.unfinished {
                until.min(soonest)
            } else {
                until
            };
            state.clock.jump_to(then);
            return state;
        }
        if state.unfinished {
            // There is work to do instead of waiting; others have their turn at the device between
            // two slices.
            drop(state);
            std::thread::yield_now();
            return self.lock();
        }
        if !*spun {
            *spun = true;
            drop(state);
            self.wakeups.spin();
            return self.lock();
        }
        let pause = Duration::from_nanos(until.saturating_sub(state.clock.now_ns()));
        self.wakeups.sleep(state, pause)
    }

    /// What ends a wait of a strict mock: a stream that stopped.
    fn strict_stop(&self, state: &State, operation: Operation) -> Option<Error> {
        let stop = state.stops.back().filter(|_| self.spec.strict)?;
        Some(
            Error::new(ErrorKind::Hung, operation.kernel_name())
                .on(self.id)
                .because(format!("strict: {stop}")),
        )
    }

    /// The error of a submission that the driver ended (command_submission.c:hl_cs_wait_ioctl).
    fn ended(&self, state: &State, operation: Operation, errno: Errno) -> Error {
        if errno != Errno::ETIMEDOUT {
            return self.refuse(operation, &rules::wait::ABORTED);
        }
        let error = self.refuse(operation, &rules::wait::TIMEOUT);
        match state.stops.back() {
            Some(stop) => error.showing(stop),
            None => error,
        }
    }
}
