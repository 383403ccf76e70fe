//! The hot path: submissions and waits.
//!
//! - *The plain case is built where the driver reads it*, in the words of the ioctl's argument, behind a few tests that are all false for
//!   it. Whatever else there is (other arguments than chunks, flags that this driver misreads, a control node, a fork child, a signal, an
//!   errno) goes through a function of its own, out of line.
//! - *A wait does not look at the clock* as long as its first ioctl is not over: see [`FIRST`].

#![expect(
    unsafe_code,
    reason = "submissions and some waits carry addresses that the kernel reads"
)]

use std::time::Duration;

use gaudi_seam::{
    CsAnswer, CsArgument, CsRequest, CsSeq, Error, ErrorKind, MultiWaitAnswer, Operation, Result, WaitAnswer,
    WaitStatus, rules,
};
use gaudi_sys::{Errno, SysResult};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, HlCsArgs, HlCsIn, HlCsInChunks};
use gaudi_uapi::limits::HL_MAX_JOBS_PER_CS;
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsStatus, WaitCsStatusFlags};

use crate::ioctl::{Kernel, address};
use crate::system::Syscalls;
use crate::wait::{Budget, first_us};

const SUBMIT: Operation = Operation::Submit;
const MOST_JOBS: usize = HL_MAX_JOBS_PER_CS as usize;

/// Flags that make the driver read engines' ids where chunks lie.
pub(crate) const ENGINE_FLAGS: u32 = CsFlags::ENGINE_CORE_COMMAND.0 | CsFlags::ENGINES_COMMAND.0;

/// The argument of a submission of chunks.
#[inline]
fn jobs(request: &CsRequest<'_>) -> HlCsIn {
    let (execute, restore) = (request.execute, request.restore);
    let mut input = HlCsIn {
        num_chunks_restore: restore.len() as u32,
        num_chunks_execute: execute.len() as u32,
        timeout: request.timeout_s,
        cs_flags: request.flags,
        ..HlCsIn::default()
    };
    input.set_chunks(HlCsInChunks {
        chunks_restore: address(restore),
        chunks_execute: address(execute),
    });
    input
}

#[inline]
fn submitted(args: &HlCsArgs) -> CsAnswer {
    let answer = args.answer();
    CsAnswer {
        seq: CsSeq(answer.seq()),
        status: answer.status,
        sob_base_addr_offset: answer.sob_base_addr_offset,
        sob_count_before_submission: answer.sob_count_before_submission,
    }
}

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// `HL_IOCTL_CS`.
    #[inline]
    pub(crate) fn submit_to_driver(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let plain = matches!(request.argument, CsArgument::None)
            && request.flags.0 & self.dialect().not_plain == 0
            && request.execute.len() <= MOST_JOBS
            && request.restore.len() <= MOST_JOBS;
        if !plain || !self.is_served() {
            return self.submit_special(request);
        }
        let mut args = HlCsArgs::from(jobs(request));
        // SAFETY: the addresses are those of the request's slices, which the driver only reads, over the counts that stand beside them:
        // no flag makes it read anything else there.
        match unsafe { self.once(Ioctl::Cs, &mut args) } {
            Ok(()) => Ok(submitted(&args)),
            Err(errno) => self.submit_again(request, errno),
        }
    }

    /// After an errno: a signal makes no difference, since the driver has done nothing then.
    #[cold]
    #[inline(never)]
    fn submit_again(&self, request: &CsRequest<'_>, errno: Errno) -> Result<CsAnswer> {
        match errno {
            Errno::EINTR => self.submit_special(request),
            errno => Err(self.failed(SUBMIT, errno)),
        }
    }

    /// Any submission, and what is wrong with one that cannot be sent.
    #[inline(never)]
    fn submit_special(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.admit(SUBMIT, false)?;
        self.refuse_strange(SUBMIT, request.cs_flags())?;
        let input = self.cs_in(request)?;
        loop {
            let mut args = HlCsArgs::from(input);
            // SAFETY: the addresses are those of the request's slices, which the driver only reads, over the counts
            // that stand beside them: `cs_in` lets the flags and what lies there agree.
            match unsafe { self.once(Ioctl::Cs, &mut args) } {
                Ok(()) => return Ok(submitted(&args)),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.failed(SUBMIT, errno)),
            }
        }
    }

    /// The argument of a submission, whose first union holds what its flags make the driver read there.
    fn cs_in(&self, request: &CsRequest<'_>) -> Result<HlCsIn> {
        if !request.is_sound() {
            // The driver would read engine ids where chunks lie, or ids of the other kind.
            return Err(Error::from_errno(SUBMIT.kernel_name(), Errno::EINVAL)
                .on(self.node_ref().device)
                .because("the flags name another command to engines than the argument holds, or there are chunks too")
                .saw(request.flags, request.argument.flags()));
        }
        let lens = [request.execute.len(), request.restore.len()];
        if let Some(len) = lens.into_iter().find(|&len| len > MOST_JOBS) {
            return Err(self.refuse(SUBMIT, &rules::submit::TOO_MANY_CHUNKS).saw(len, "at most 512"));
        }
        let count = |ids: &[u32]| {
            u32::try_from(ids.len())
                .map_err(|_| self.invalid(SUBMIT, "too many engines in one command", ids.len(), "below 2^32"))
        };
        let mut input = match request.argument {
            CsArgument::EngineCores { cores, command } => {
                HlCsIn::engine_cores(address(cores), count(cores)?, command)
            }
            CsArgument::Engines { engines, command } => {
                HlCsIn::engines(address(engines), count(engines)?, command)
            }
            _ => jobs(request),
        };
        input.signal = [request.argument.word()];
        input.timeout = request.timeout_s;
        input.cs_flags = request.cs_flags();
        Ok(input)
    }

    /// A wait for as long as `timeout`, over signals and over times that the driver cannot count. `request` makes the argument for a number
    /// of microseconds, `told` what the caller is told.
    ///
    /// # Safety
    /// - Addresses in what `request` makes are as [`Syscalls::ioctl`] wants them.
    #[inline]
    pub(crate) unsafe fn wait<T>(
        &self,
        operation: Operation,
        timeout: Duration,
        request: impl Fn(u64) -> HlWaitCsIn,
        told: impl Fn(WaitStatus, &HlWaitCsOut) -> T,
    ) -> Result<T> {
        if !self.is_served() {
            return Err(self.not_admitted(operation));
        }
        let (us, _) = first_us(timeout);
        let mut args = HlWaitCsArgs::from(request(us));
        // SAFETY: the caller's promise.
        let first = unsafe { self.once(Ioctl::WaitCs, &mut args) };
        // The status and the flags are the first word: completed, and nothing more to say.
        const { assert!(WaitCsStatus::COMPLETED.0 == 0 && WaitCsStatusFlags::NONE.0 == 0) };
        if let (Ok(()), 0) = (first, args.0[0]) {
            let plain = HlWaitCsOut {
                cs_completion_map: args.answer().cs_completion_map,
                ..HlWaitCsOut::default()
            };
            return Ok(told(WaitStatus::Completed, &plain));
        }
        // By address: what only this path needs then takes no registers from the other.
        // SAFETY: the caller's promise.
        unsafe { self.wait_on(operation, &timeout, first, &mut args, &request, told) }
    }

    /// The rest of a wait, whose first ioctl did anything but complete and say nothing more.
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
        told: impl Fn(WaitStatus, &HlWaitCsOut) -> T,
    ) -> Result<T> {
        let (mut result, (_, mut all)) = (first, first_us(timeout));
        let mut budget = None;
        loop {
            let answer = args.answer();
            match result.map(|()| status_of(&answer)) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.failed(operation, errno)),
                Ok(Some(WaitStatus::Busy)) if !all => {}
                Ok(Some(status)) => return Ok(told(status, &answer)),
                Ok(None) => return Err(self.ended_badly(operation, answer.status)),
            }
            // After a signal the driver would start its clock anew: ask only for what is left.
            let budget = budget.get_or_insert_with(|| match result {
                Ok(()) => Budget::after_first(timeout),
                Err(_) => Budget::new(timeout),
            });
            let us;
            (us, all) = budget.next();
            *args = HlWaitCsArgs::from(request(us));
            // SAFETY: the caller's promise.
            result = unsafe { self.once(Ioctl::WaitCs, args) };
        }
    }

    #[cold]
    fn ended_badly(&self, operation: Operation, status: WaitCsStatus) -> Error {
        let error = |kind| Error::new(kind, operation.kernel_name()).on(self.node_ref().device);
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

    /// As [`wait`](Self::wait), for one thing.
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
        let told = |status, answer: &HlWaitCsOut| WaitAnswer {
            status,
            gone: answer.flags.contains(WaitCsStatusFlags::GONE),
            timestamp_ns: timestamp(answer),
        };
        // SAFETY: the caller's promise.
        unsafe { self.wait(operation, timeout, request, told) }
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
        let told = |status, answer: &HlWaitCsOut| MultiWaitAnswer {
            status,
            completion_map: answer.cs_completion_map,
            timestamp_ns: timestamp(answer),
        };
        // SAFETY: the caller's promise.
        unsafe { self.wait(operation, timeout, request, told) }
    }
}

/// The status of a wait that the driver called a success; nothing where it ended badly all the same. A wait for an interrupt reports an
/// abort this way (common/command_submission.c:3590).
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
