//! Waits: for submissions and for interrupts.
//!
//! A wait reads no clock until its first ioctl has used up its time: see [`FIRST`].

#![expect(unsafe_code, reason = "some waits carry addresses that the kernel reads")]

use std::time::Duration;

use gaudi_seam::{Error, ErrorKind, MultiWaitAnswer, Operation, Result, WaitAnswer, WaitStatus};
use gaudi_sys::{Deadline, Errno, SysResult};
use gaudi_uapi::Ioctl;
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsStatus, WaitCsStatusFlags};

use crate::kernel::Kernel;
use crate::system::Syscalls;

/// The longest time of one ioctl, in microseconds: an hour.
///
/// The 7.3 driver passes `timeout_us` to `usecs_to_jiffies`, whose parameter has 32 bits
/// (common/command_submission.c:hl_wait_for_fence): above 71 minutes it waits for the low 32 bits
/// only.
const LONGEST_US: u64 = 3_600_000_000;

/// The longest time of a wait's first ioctl. A wait that ends within it reads no clock, which costs
/// more than the rest of a wait in user mode. So a wait that signals interrupt may last too long,
/// by the time before the first signal: by this time at most, and never by more than its own
/// timeout.
const FIRST: Duration = Duration::from_millis(100);

/// The time of the first ioctl in microseconds, rounded up so that no wait becomes a poll; and
/// whether it is the whole time, so that "busy" is final.
#[inline]
fn first_us(timeout: Duration) -> (u64, bool) {
    // In this order a poll and a wait of seconds, the common calls, do no arithmetic.
    match (timeout.as_secs(), timeout.subsec_nanos()) {
        (1.., _) => (FIRST.as_micros() as u64, false),
        (0, 0) => (0, true),
        (0, nanos) if nanos > FIRST.subsec_nanos() => (FIRST.as_micros() as u64, false),
        #[expect(
            clippy::manual_div_ceil,
            reason = "this form is one multiplication, without a remainder"
        )]
        (0, nanos) => (u64::from((nanos + 999) / 1000), true),
    }
}

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// Waits for at most `timeout`, across signals and across times that the driver cannot count.
    /// `request` makes the argument for a number of microseconds, `answer` makes the caller's
    /// answer.
    ///
    /// # Safety
    /// - Addresses in what `request` makes are as [`Syscalls::ioctl`] wants them.
    #[inline]
    pub(crate) unsafe fn wait<T>(
        &self,
        operation: Operation,
        timeout: Duration,
        request: impl Fn(u64) -> HlWaitCsIn,
        answer: impl Fn(WaitStatus, &HlWaitCsOut) -> T,
    ) -> Result<T> {
        if !self.is_served() {
            return Err(self.not_admitted(operation));
        }
        let (us, _) = first_us(timeout);
        let mut args = HlWaitCsArgs::from(request(us));
        // SAFETY: the caller's promise.
        let first = unsafe { self.once(Ioctl::WaitCs, &mut args) };
        // The status and the flags are the first word: 0 is completed without flags.
        const { assert!(WaitCsStatus::COMPLETED.0 == 0 && WaitCsStatusFlags::NONE.0 == 0) };
        if let (Ok(()), 0) = (first, args.0[0]) {
            let plain = HlWaitCsOut {
                cs_completion_map: args.answer().cs_completion_map,
                ..HlWaitCsOut::default()
            };
            return Ok(answer(WaitStatus::Completed, &plain));
        }
        // By address: so the other path loses no registers to this one.
        // SAFETY: the caller's promise.
        unsafe { self.wait_on(operation, &timeout, first, &mut args, &request, answer) }
    }

    /// The rest of a wait, unless its first ioctl completed without flags.
    ///
    /// # Safety
    /// - As [`wait`](Self::wait).
    #[inline(never)]
    unsafe fn wait_on<T>(
        &self,
        operation: Operation,
        &timeout: &Duration,
        first: SysResult<()>,
        args: &mut HlWaitCsArgs,
        request: &impl Fn(u64) -> HlWaitCsIn,
        answer: impl Fn(WaitStatus, &HlWaitCsOut) -> T,
    ) -> Result<T> {
        let (mut result, (_, mut all)) = (first, first_us(timeout));
        let mut deadline = None;
        loop {
            let out = args.answer();
            match result.map(|()| status_of(&out)) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.failed(operation, errno)),
                Ok(Some(WaitStatus::Busy)) if !all => {}
                Ok(Some(status)) => return Ok(answer(status, &out)),
                Ok(None) => return Err(self.ended_badly(operation, out.status)),
            }
            // After a signal the driver starts its clock again: ask only for what is left.
            let deadline = deadline.get_or_insert_with(|| rest(timeout, result.is_ok()));
            let us;
            (us, all) = slice(deadline.remaining(Duration::MAX));
            *args = HlWaitCsArgs::from(request(us));
            // SAFETY: the caller's promise.
            result = unsafe { self.once(Ioctl::WaitCs, args) };
        }
    }

    #[cold]
    fn ended_badly(&self, operation: Operation, status: WaitCsStatus) -> Error {
        let error = |kind| Error::new(kind, operation.kernel_name()).on(self.node.device);
        match status {
            WaitCsStatus::TIMEDOUT => {
                error(ErrorKind::Hung).because("the submission ran into its timeout on the device")
            }
            WaitCsStatus::ABORTED => error(ErrorKind::DeviceLost).because("the wait was aborted by a reset"),
            status => error(ErrorKind::Io)
                .because("the driver answered with a status that this program does not know")
                .saw(status, "COMPLETED or BUSY"),
        }
    }

    /// As [`wait`](Self::wait), for one object.
    ///
    /// # Safety
    /// - As [`wait`](Self::wait).
    #[inline]
    pub(crate) unsafe fn wait_one(
        &self,
        operation: Operation,
        timeout: Duration,
        request: impl Fn(u64) -> HlWaitCsIn,
    ) -> Result<WaitAnswer> {
        let answer = |status, out: &HlWaitCsOut| WaitAnswer {
            status,
            gone: out.flags.contains(WaitCsStatusFlags::GONE),
            timestamp_ns: timestamp(out),
        };
        // SAFETY: the caller's promise.
        unsafe { self.wait(operation, timeout, request, answer) }
    }

    /// As [`wait`](Self::wait), for any of several submissions.
    ///
    /// # Safety
    /// - As [`wait`](Self::wait).
    pub(crate) unsafe fn wait_many(
        &self,
        operation: Operation,
        timeout: Duration,
        request: impl Fn(u64) -> HlWaitCsIn,
    ) -> Result<MultiWaitAnswer> {
        let answer = |status, out: &HlWaitCsOut| MultiWaitAnswer {
            status,
            completion_map: out.cs_completion_map,
            timestamp_ns: timestamp(out),
        };
        // SAFETY: the caller's promise.
        unsafe { self.wait(operation, timeout, request, answer) }
    }
}

/// The status of a wait that the driver called a success; nothing where it ended badly all the
/// same. A wait for an interrupt reports an abort this way
/// (common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr).
#[inline]
fn status_of(answer: &HlWaitCsOut) -> Option<WaitStatus> {
    match answer.status {
        WaitCsStatus::COMPLETED => Some(WaitStatus::Completed),
        WaitCsStatus::BUSY => Some(WaitStatus::Busy),
        _ => None,
    }
}

#[inline]
fn timestamp(answer: &HlWaitCsOut) -> Option<i64> {
    answer
        .flags
        .contains(WaitCsStatusFlags::TIMESTAMP_VLD)
        .then_some(answer.timestamp_nsec)
}

/// The end of a wait after its first ioctl, which a signal interrupted or which used up its time.
fn rest(timeout: Duration, used: bool) -> Deadline {
    timeout
        .saturating_sub(if used { FIRST } else { Duration::ZERO })
        .into()
}

/// The time of an ioctl, as [`first_us`].
fn slice(left: Duration) -> (u64, bool) {
    // In 64 bits: a division of 128 would cost more than the rest of a poll.
    let part = u64::from(left.subsec_nanos().div_ceil(1000));
    let us = left.as_secs().saturating_mul(1_000_000).saturating_add(part);
    (us.min(LONGEST_US), us <= LONGEST_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up_and_cap_at_hour() {
        assert_eq!(slice(Duration::ZERO), (0, true), "zero polls");
        assert_eq!(
            slice(Duration::from_nanos(1)),
            (1, true),
            "a nanosecond is a wait, not a poll"
        );
        assert_eq!(slice(Duration::from_millis(5)), (5000, true));
        assert_eq!(
            slice(Duration::from_secs(3600)),
            (LONGEST_US, true),
            "an hour is asked for at once"
        );
        assert_eq!(
            slice(Duration::from_secs(4295)),
            (LONGEST_US, false),
            "more than 2^32 us goes in slices"
        );
        assert_eq!(
            slice(Duration::MAX),
            (LONGEST_US, false),
            "for ever goes in slices"
        );
    }

    #[test]
    fn the_first_time_is_short_or_whole() {
        assert_eq!(first_us(Duration::ZERO), (0, true), "zero polls");
        assert_eq!(
            first_us(Duration::from_nanos(1)),
            (1, true),
            "a nanosecond is a wait, not a poll"
        );
        assert_eq!(first_us(FIRST), (100_000, true), "all of it");
        let longer = FIRST + Duration::from_nanos(1);
        assert_eq!(first_us(longer), (100_000, false), "busy is not final");
        assert_eq!(first_us(Duration::MAX), (100_000, false));
        let left = |used| slice(rest(Duration::from_secs(1), used).remaining(Duration::MAX));
        let (us, all) = left(true);
        assert!(
            all && us <= 900_000,
            "the first ioctl used its time up, saw {us} us"
        );
        let started = std::time::Instant::now();
        let (us, all) = left(false);
        let passed = started.elapsed().as_micros() as u64 + 1;
        assert!(
            all && us <= 1_000_000 && us + passed >= 1_000_000,
            "a signal used nothing up, and time passes: saw {us} us after {passed} us"
        );
        assert_eq!(
            slice(rest(Duration::ZERO, true).remaining(Duration::MAX)),
            (0, true),
            "past the deadline a wait polls once more"
        );
    }
}
