//! Deliberate defects, each of which the checks must detect.

use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_seam::WaitCs;
use gaudi_seam::{
    AnyRequest, CsRequest, Errno, Error, ErrorKind, KernelIo, Layer, Operation, RawMapping, Request, Result,
    SharedIo, WaitStatus,
};
use gaudi_spec::gaudi2::packet::LinDma;

use crate::observed::Observed;

macro_rules! mutations {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// A deliberate defect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation {
            $($(#[$doc])* $variant,)*
        }

        impl Mutation {
            /// All mutations.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mutations! {
    /// The stack skips an unmapping.
    ForgetUnmap "forget-unmap",
    /// The stack does not destroy a command buffer.
    ForgetDestroy "forget-destroy",
    /// The stack frees twice.
    DoubleFree "double-free",
    /// The stack does not receive a completion.
    LoseCompletion "lose-completion",
    /// The stack receives a completion of work that still runs.
    EarlyCompletion "early-completion",
    /// The stack reports an errno other than the driver's.
    WrongErrno "wrong-errno",
    /// The stack reports a refused submission as accepted.
    SwallowRefusal "swallow-refusal",
    /// The stack submits fewer packets than requested.
    SkipPacket "skip-packet",
    /// The stack submits twice.
    SubmitTwice "submit-twice",
    /// The stack leaks a descriptor.
    LeakDescriptor "leak-descriptor",
    /// The stack leaks host memory.
    LeakMemory "leak-memory",
    /// The stack writes to memory of another user.
    Overrun "overrun",
    /// The fault layer ignores its rules.
    NoFaults "no-faults",
    /// The fault layer answers with an errno other than the plan's.
    OtherFault "other-fault",
    /// The driver reports running work as completed.
    FalseDone "false-done",
    /// The driver refuses with the wrong errno.
    DriverErrno "driver-errno",
    /// The driver does not release what the stack released.
    DriverKeeps "driver-keeps",
}

/// The position of a defect in the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Between the stack and the watcher of the fault layer: a defect of the stack.
    Stack,
    /// Between the fault layer and its watcher.
    Layer,
    /// Between the mock and its watcher.
    Driver,
}

impl Mutation {
    pub(crate) fn position(self) -> Option<Position> {
        match self {
            Self::Overrun | Self::NoFaults => None,
            Self::OtherFault => Some(Position::Layer),
            Self::FalseDone | Self::DriverErrno | Self::DriverKeeps => Some(Position::Driver),
            _ => Some(Position::Stack),
        }
    }
}

/// A layer with a defect.
pub(crate) struct Mutant {
    inner: SharedIo,
    mutation: Mutation,
    seen: AtomicU64,
    last: AtomicU64,
    /// The submission whose completion is not reported.
    unheard: AtomicU64,
}

impl Mutant {
    pub(crate) fn new(inner: SharedIo, mutation: Mutation) -> Self {
        Self {
            inner,
            mutation,
            seen: AtomicU64::new(0),
            last: AtomicU64::new(0),
            unheard: AtomicU64::new(0),
        }
    }

    /// Whether the defect applies to this operation: to every third of its kind.
    fn strikes(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed) % 3 == 1
    }
}

/// Answers `observed` in place of the driver, if `R` has such answers.
fn forged<R: Request>(
    next: &mut impl FnMut(&mut R) -> Result<R::Answer>,
    observed: Observed,
    request: &mut R,
) -> Result<R::Answer> {
    match observed.forge::<R>() {
        Some(answer) => Ok(answer),
        None => next(request),
    }
}

impl Layer for Mutant {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let operation = R::OPERATION;
        match self.mutation {
            Mutation::ForgetUnmap if operation == Operation::MemUnmap && self.strikes() => {
                forged(&mut next, Observed::Success, request)
            }
            Mutation::ForgetDestroy if operation == Operation::CbDestroy && self.strikes() => {
                forged(&mut next, Observed::Success, request)
            }
            Mutation::DoubleFree if operation == Operation::MemFree => {
                let answer = next(request);
                if answer.is_ok() {
                    let _ = next(request);
                }
                answer
            }
            Mutation::DriverKeeps if operation == Operation::MemUnmap && self.strikes() => {
                forged(&mut next, Observed::Success, request)
            }
            Mutation::LoseCompletion => {
                let AnyRequest::WaitCs(&WaitCs { seq, .. }) = request.view() else {
                    return next(request);
                };
                if self.unheard.load(Ordering::Relaxed) == 0 && self.strikes() {
                    self.unheard.store(seq.0, Ordering::Relaxed);
                }
                match self.unheard.load(Ordering::Relaxed) == seq.0 {
                    true => {
                        next(request)?;
                        forged(&mut next, Observed::Wait(WaitStatus::Busy), request)
                    }
                    false => next(request),
                }
            }
            Mutation::EarlyCompletion | Mutation::FalseDone if operation == Operation::WaitCs => {
                let answer = next(request);
                match Observed::of(&answer) {
                    Observed::Wait(WaitStatus::Busy) => {
                        forged(&mut next, Observed::Wait(WaitStatus::Completed), request)
                    }
                    _ => answer,
                }
            }
            Mutation::WrongErrno | Mutation::OtherFault | Mutation::DriverErrno => {
                next(request).map_err(|error| match error.errno() {
                    Some(errno) if errno != Errno::EAGAIN && errno != Errno::EINTR => {
                        Error::from_errno(operation.kernel_name(), Errno::EXDEV)
                    }
                    _ => error,
                })
            }
            Mutation::SwallowRefusal if operation == Operation::Submit => match next(request) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => forged(
                    &mut next,
                    Observed::Number(self.last.load(Ordering::Relaxed).max(1)),
                    request,
                ),
                answer => {
                    if let Observed::Number(seq) = Observed::of(&answer) {
                        self.last.store(seq, Ordering::Relaxed);
                    }
                    answer
                }
            },
            Mutation::SkipPacket => match request.view() {
                AnyRequest::Submit(submission) => match submission.execute {
                    [chunk] if chunk.cb_size as usize > 2 * LinDma::LEN => {
                        let mut chunk = *chunk;
                        chunk.cb_handle += LinDma::LEN as u64;
                        chunk.cb_size -= LinDma::LEN as u32;
                        let rest = CsRequest {
                            execute: &[chunk],
                            ..**submission
                        };
                        self.inner.submit(&rest).map(R::reply)
                    }
                    _ => next(request),
                },
                _ => next(request),
            },
            Mutation::SubmitTwice if operation == Operation::Submit && self.strikes() => {
                let _ = next(request);
                next(request)
            }
            Mutation::LeakDescriptor if operation == Operation::CbCreate => {
                if let Ok(fd) = gaudi_sys::fd::duplicate(std::io::stdin()) {
                    std::mem::forget(fd);
                }
                next(request)
            }
            Mutation::LeakMemory if operation == Operation::CbCreate => {
                std::mem::forget(RawMapping::anonymous(1 << 16, false));
                next(request)
            }
            _ => next(request),
        }
    }
}
