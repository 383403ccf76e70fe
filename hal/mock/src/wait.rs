//! Waiting for submissions and interrupts (driver common/command_submission.c `hl_wait_ioctl`).

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gaudi_seam::{
    Clock, CsSeq, Errno, Error, ErrorKind, InterruptWait, MultiWaitAnswer, Order, Result, WaitAnswer,
    WaitStatus,
};
use gaudi_uapi::wait::WaitCsFlags;

use crate::interrupt::Line;
use crate::open::{Device, State};
use crate::queue::Seen;
use crate::time::nanoseconds;
use crate::user;

const BUSY: WaitAnswer = WaitAnswer {
    status: WaitStatus::Busy,
    gone: false,
    timestamp_ns: None,
};

/// What a slice of work that did not end is in virtual time: a program without an end meets the driver's timeout after a few.
const SLICE_NS: u64 = 1_000_000_000;

impl Device {
    /// A wait also needs a device that no reset is planned of (command_submission.c:3732).
    fn waitable(&self, state: &mut State, operation: &'static str) -> Result<()> {
        self.operational(state, operation)?;
        match state.watchdog {
            None => Ok(()),
            Some(_) => Err(self
                .refusal(operation, Errno::EBUSY)
                .with_kind(ErrorKind::DeviceLost)
                .because("an error happened, and the device is reset once its user has gone")
                .helped_by("close it and open it again")),
        }
    }

    pub(crate) fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        const OP: &str = "HL_IOCTL_WAIT_CS";
        let mut state = self.lock();
        self.waitable(&mut state, OP)?;
        // What is done already is told without a look at the clock.
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
                return Err(self.gave_up(&state, OP, Errno::EIO));
            };
            let (done, gone, timestamp, error) = match context.submissions.look(seq.0) {
                Seen::Future => {
                    // context.c:348
                    return Err(self
                        .refusal(OP, Errno::EINVAL)
                        .because("no such submission has been made yet")
                        .saw(seq.0, format!("below {}", context.submissions.next)));
                }
                Seen::Gone { timestamp, error } => (true, timestamp == 0, timestamp, error),
                Seen::Done { timestamp, error } => (true, false, timestamp, error),
                Seen::Running => (false, false, 0, None),
            };
            if let Some(errno @ (Errno::ETIMEDOUT | Errno::EIO)) = error {
                return Err(self.gave_up(&state, OP, errno));
            }
            if done {
                let timestamp_ns = (timestamp != 0).then_some(timestamp);
                return Ok(WaitAnswer {
                    status: WaitStatus::Completed,
                    gone,
                    timestamp_ns,
                });
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

    /// Gaudi2 does not have it (gaudi2.c:4133), and the driver says so before it looks at the list (command_submission.c:3025).
    pub(crate) fn wait_multi_cs(&self) -> Result<MultiWaitAnswer> {
        const OP: &str = "HL_WAIT_CS_FLAGS_MULTI_CS";
        let mut state = self.lock();
        self.waitable(&mut state, OP)?;
        Err(self
            .refusal(OP, Errno::EPERM)
            .with_kind(ErrorKind::Unsupported)
            .because("this chip's driver does not wait for any of several submissions")
            .helped_by("wait for one after the other, or have a monitor watch them"))
    }

    pub(crate) fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        const OP: &str = "HL_WAIT_CS_FLAGS_INTERRUPT";
        let mut state = self.lock();
        self.waitable(&mut state, OP)?;
        let number = match request.interrupt {
            WaitCsFlags::ANY_CQ_INTERRUPT | WaitCsFlags::ANY_DEC_INTERRUPT => request.interrupt >> 20,
            number => number,
        };
        let Some(line) = u16::try_from(number).ok().and_then(Line::of) else {
            // command_submission.c:3677
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("there is no such interrupt")
                .saw(
                    request.interrupt,
                    "0 to 9, 48 to 111, or one of HL_WAIT_CS_FLAGS_ANY_*",
                ));
        };
        let reached = || match user::read_u64(request.address) {
            Ok(value) => Ok(value >= request.target),
            // command_submission.c:3548
            Err(errno) => Err(self
                .refusal(OP, errno)
                .because(format!("nothing can be read at {:#x}", request.address.0))),
        };
        let completed = |at_ns: u64| WaitAnswer {
            status: WaitStatus::Completed,
            gone: false,
            timestamp_ns: Some(i64::try_from(at_ns).unwrap_or(i64::MAX)),
        };
        let polls = request.timeout.is_zero();
        if polls && self.spec.order == Order::Stepped {
            state.step_once();
        }
        let mut seen = state.interrupts.mark(line);
        let mut timestamp_ns = None;
        let deadline = state.clock.now_ns().saturating_add(nanoseconds(request.timeout));
        // command_submission.c:3554: there was no interrupt, so it is done now.
        if reached()? {
            return Ok(completed(state.clock.now_ns()));
        }
        if polls {
            return Ok(BUSY);
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
                // command_submission.c:3584: the word is looked at after an interrupt and at no other time.
                if reached()? {
                    return Ok(completed(mark.at_ns));
                }
                if mark.aborted != seen.aborted {
                    // The driver answers a status here and no errno (command_submission.c:3594).
                    return Err(Error::new(ErrorKind::DeviceLost, OP)
                        .on(self.id)
                        .because("the wait was aborted by a reset"));
                }
                timestamp_ns = Some(i64::try_from(mark.at_ns).unwrap_or(i64::MAX));
                seen = mark;
                continue;
            }
            if let Some(error) = self.strict_stop(&state, OP) {
                return Err(error);
            }
            if state.clock.now_ns() >= deadline {
                return Ok(WaitAnswer { timestamp_ns, ..BUSY });
            }
            let next = state.next_deadline();
            let until = next.map_or(deadline, |next| next.min(deadline));
            state = self.pause(state, until, &mut spun);
        }
    }

    /// Lets time pass until something happens, at most until then. The first pause of a wait is a spin.
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
            // There is work to do instead of waiting; others have their turn at the device between two slices.
            drop(state);
            std::thread::yield_now();
            return self.lock();
        }
        if !*spun {
            *spun = true;
            drop(state);
            self.progress.spin();
            return self.lock();
        }
        let pause = Duration::from_nanos(until.saturating_sub(state.clock.now_ns()));
        self.progress.sleepers.fetch_add(1, Ordering::Relaxed);
        let state = match self.changed.wait_timeout(state, pause) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.progress.sleepers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// What ends a wait of a strict mock: a stream that stopped.
    fn strict_stop(&self, state: &State, operation: &'static str) -> Option<Error> {
        let stop = state.stops.back().filter(|_| self.spec.strict)?;
        Some(
            Error::new(ErrorKind::Hung, operation)
                .on(self.id)
                .because(format!("strict: {stop}")),
        )
    }

    /// The error of a submission that the driver ended (command_submission.c:3178).
    fn gave_up(&self, state: &State, operation: &'static str, errno: Errno) -> Error {
        let error = self.refusal(operation, errno);
        if errno != Errno::ETIMEDOUT {
            return error
                .with_kind(ErrorKind::DeviceLost)
                .because("a reset aborted the submission");
        }
        let error = error.with_kind(ErrorKind::Hung);
        match state.stops.back() {
            Some(stop) => error.because(format!(
                "the driver gave the submission up after its timeout; before, {stop}"
            )),
            None => error.because("the driver gave the submission up after its timeout"),
        }
    }
}
