//! Submissions.
//!
//! The plain case is built where the driver reads it, in the words of the ioctl's argument, after a
//! few tests. Every other case goes through a function out of line: other arguments than chunks,
//! flags that this driver misreads, a control node, a fork child, a signal, an errno.

#![expect(unsafe_code, reason = "submissions carry addresses that the kernel reads")]

use gaudi_codec::{Wire as _, jobs};
use gaudi_seam::{CsAnswer, CsArgument, CsRequest, CsSeq, Error, Operation, Result, rules};
use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::HlCsArgs;
use gaudi_uapi::limits::HL_MAX_JOBS_PER_CS;

use crate::kernel::Kernel;
use crate::system::Syscalls;

const SUBMIT: Operation = Operation::Submit;
const MOST_JOBS: usize = HL_MAX_JOBS_PER_CS as usize;

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
    pub(crate) fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let plain = matches!(request.argument, CsArgument::None)
            && request.flags.0 & self.dialect.not_plain == 0
            && request.execute.len() <= MOST_JOBS
            && request.restore.len() <= MOST_JOBS;
        if !plain || !self.is_served() {
            return self.submit_special(request);
        }
        let mut args = HlCsArgs::from(jobs(request));
        // SAFETY: the addresses and counts are those of the request's slices, which the driver only
        // reads: no flag makes it read anything else there.
        match unsafe { self.once(Ioctl::Cs, &mut args) } {
            Ok(()) => Ok(submitted(&args)),
            Err(errno) => self.submit_again(request, errno),
        }
    }

    /// After an errno. A signal changes nothing: the driver has done nothing then.
    #[cold]
    #[inline(never)]
    fn submit_again(&self, request: &CsRequest<'_>, errno: Errno) -> Result<CsAnswer> {
        match errno {
            Errno::EINTR => self.submit_special(request),
            errno => Err(self.failed(SUBMIT, errno)),
        }
    }

    /// Any submission, with the checks of those that the driver would misread.
    #[inline(never)]
    fn submit_special(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.admit(SUBMIT, false)?;
        self.dialect.check_flags(&self.node, SUBMIT, request.cs_flags())?;
        self.check(request)?;
        let mut args = { request }.encode();
        // SAFETY: the addresses and counts are those of the request's slices, which the driver only
        // reads: `check` makes the flags and the union agree.
        match unsafe { self.again(Ioctl::Cs, &mut args) } {
            Ok(()) => Ok(submitted(&args)),
            Err(errno) => Err(self.failed(SUBMIT, errno)),
        }
    }

    /// Rejects a submission that the driver would misread.
    fn check(&self, request: &CsRequest<'_>) -> Result<()> {
        if !request.is_sound() {
            // The driver would read engine ids where chunks lie, or ids of the other kind.
            return Err(Error::from_errno(SUBMIT.kernel_name(), Errno::EINVAL)
                .on(self.node.device)
                .because("the flags name another command to engines than the argument holds, or there are chunks too")
                .saw(request.flags, request.argument.flags()));
        }
        let lens = [request.execute.len(), request.restore.len()];
        if let Some(len) = lens.into_iter().find(|&len| len > MOST_JOBS) {
            return Err(self
                .refused(SUBMIT, &rules::submit::TOO_MANY_CHUNKS)
                .saw(len, "at most 512"));
        }
        match request.argument {
            CsArgument::EngineCores { cores: ids, .. } | CsArgument::Engines { engines: ids, .. }
                if u32::try_from(ids.len()).is_err() =>
            {
                Err(self.invalid(SUBMIT, "too many engines in one command", ids.len(), "below 2^32"))
            }
            _ => Ok(()),
        }
    }
}
