//! Defects made on purpose, to see that each is caught.

use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_seam::operation::WaitCs;
use gaudi_seam::{
    AnyRequest, CsRequest, Errno, Error, ErrorKind, KernelIo, Layer, Operation, RawMapping, Request, Result,
    SharedIo, WaitStatus,
};
use gaudi_spec::gaudi2::packet::LinDma;

use crate::observed::Observed;

macro_rules! mutations {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// A rule that is broken on purpose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation {
            $($(#[$doc])* $variant,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// As the command line says it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mutations! {
    /// The stack forgets an unmapping.
    ForgetUnmap "forget-unmap",
    /// The stack forgets to destroy a command buffer.
    ForgetDestroy "forget-destroy",
    /// The stack frees twice.
    DoubleFree "double-free",
    /// The stack never hears of a completion.
    LoseCompletion "lose-completion",
    /// The stack hears of a completion that was none.
    EarlyCompletion "early-completion",
    /// The stack turns one errno into another.
    WrongErrno "wrong-errno",
    /// The stack says of a submission that was refused that it was taken.
    SwallowRefusal "swallow-refusal",
    /// The stack submits less than was requested.
    SkipPacket "skip-packet",
    /// The stack submits twice.
    SubmitTwice "submit-twice",
    /// The stack keeps a descriptor.
    LeakDescriptor "leak-descriptor",
    /// The stack keeps host memory.
    LeakMemory "leak-memory",
    /// The stack writes over memory of others.
    Overrun "overrun",
    /// The fault layer forgets its rules.
    NoFaults "no-faults",
    /// The fault layer answers another errno than the plan's.
    OtherFault "other-fault",
    /// The driver says of work that goes on that it is done.
    FalseDone "false-done",
    /// The driver refuses with another errno.
    DriverErrno "driver-errno",
    /// The driver keeps what the stack released.
    DriverKeeps "driver-keeps",
}

/// Where a defect sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Between the stack and the watcher of the fault layer: the stack's own defects.
    Stack,
    /// Between the fault layer and its watcher.
    Layer,
    /// Between the mock and its watcher.
    Driver,
}

impl Mutation {
    pub(crate) fn place(self) -> Option<Place> {
        match self {
            Self::Overrun | Self::NoFaults => None,
            Self::OtherFault => Some(Place::Layer),
            Self::FalseDone | Self::DriverErrno | Self::DriverKeeps => Some(Place::Driver),
            _ => Some(Place::Stack),
        }
    }
}

/// A layer with a defect.
pub(crate) struct Mutant {
    inner: SharedIo,
    mutation: Mutation,
    met: AtomicU64,
    last: AtomicU64,
    /// The submission that nobody hears of.
    deaf: AtomicU64,
}

impl Mutant {
    pub(crate) fn new(inner: SharedIo, mutation: Mutation) -> Self {
        Self {
            inner,
            mutation,
            met: AtomicU64::new(0),
            last: AtomicU64::new(0),
            deaf: AtomicU64::new(0),
        }
    }

    /// Whether this is one that the defect strikes: every third of its kind.
    fn strikes(&self) -> bool {
        self.met.fetch_add(1, Ordering::Relaxed) % 3 == 1
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
                if self.deaf.load(Ordering::Relaxed) == 0 && self.strikes() {
                    self.deaf.store(seq.0, Ordering::Relaxed);
                }
                match self.deaf.load(Ordering::Relaxed) == seq.0 {
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
