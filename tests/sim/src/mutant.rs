//! Defects made on purpose, to see that each is caught.

use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_layers::Operation;
use gaudi_seam::{Errno, Error, ErrorKind, RawMapping, Result, WaitStatus};
use gaudi_spec::gaudi2::packet::LinDma;

use crate::call::{Call, Tell, Told, Watch};

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
    /// The stack submits less than it was told to.
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
    /// The driver keeps what it was told to give back.
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
#[derive(Debug)]
pub(crate) struct Mutant {
    mutation: Mutation,
    met: AtomicU64,
    last: AtomicU64,
    /// The submission that nobody hears of.
    deaf: AtomicU64,
}

impl Mutant {
    pub(crate) fn new(mutation: Mutation) -> Self {
        Self {
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

impl Watch for Mutant {
    fn around<T: Tell>(&self, call: Call, go: &mut dyn FnMut(Call) -> Result<T>) -> Result<T> {
        let operation = call.operation();
        let forged = |told, call, go: &mut dyn FnMut(Call) -> Result<T>| match T::forged(told) {
            Some(answer) => Ok(answer),
            None => go(call),
        };
        match self.mutation {
            Mutation::ForgetUnmap if operation == Operation::MemUnmap && self.strikes() => {
                forged(Told::Nothing, call, go)
            }
            Mutation::ForgetDestroy if operation == Operation::CbDestroy && self.strikes() => {
                forged(Told::Nothing, call, go)
            }
            Mutation::DoubleFree if operation == Operation::MemFree => {
                let answer = go(call);
                if answer.is_ok() {
                    let _ = go(call);
                }
                answer
            }
            Mutation::DriverKeeps if operation == Operation::MemUnmap && self.strikes() => {
                forged(Told::Nothing, call, go)
            }
            Mutation::LoseCompletion => {
                let Call::WaitCs(seq, _) = call else {
                    return go(call);
                };
                if self.deaf.load(Ordering::Relaxed) == 0 && self.strikes() {
                    self.deaf.store(seq.0, Ordering::Relaxed);
                }
                match self.deaf.load(Ordering::Relaxed) == seq.0 {
                    true => {
                        go(call)?;
                        forged(Told::Wait(WaitStatus::Busy), call, go)
                    }
                    false => go(call),
                }
            }
            Mutation::EarlyCompletion | Mutation::FalseDone if operation == Operation::WaitCs => {
                match go(call) {
                    Ok(answer) if answer.tell() == Told::Wait(WaitStatus::Busy) => {
                        forged(Told::Wait(WaitStatus::Completed), call, go)
                    }
                    answer => answer,
                }
            }
            Mutation::WrongErrno | Mutation::OtherFault | Mutation::DriverErrno => {
                go(call).map_err(|error| match error.errno() {
                    Some(errno) if errno != Errno::EAGAIN && errno != Errno::EINTR => {
                        Error::from_errno(operation.kernel_name(), Errno::EXDEV)
                    }
                    _ => error,
                })
            }
            Mutation::SwallowRefusal if operation == Operation::Submit => match go(call) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    forged(Told::Number(self.last.load(Ordering::Relaxed).max(1)), call, go)
                }
                answer => {
                    if let Ok(Told::Number(seq)) = answer.as_ref().map(Tell::tell) {
                        self.last.store(seq, Ordering::Relaxed);
                    }
                    answer
                }
            },
            Mutation::SkipPacket => match call {
                Call::Submit(mut submission) if submission.chunk.cb_size as usize > 2 * LinDma::LEN => {
                    submission.chunk.cb_handle += LinDma::LEN as u64;
                    submission.chunk.cb_size -= LinDma::LEN as u32;
                    go(Call::Submit(submission))
                }
                _ => go(call),
            },
            Mutation::SubmitTwice if operation == Operation::Submit && self.strikes() => {
                let _ = go(call);
                go(call)
            }
            Mutation::LeakDescriptor if operation == Operation::CbCreate => {
                if let Ok(fd) = gaudi_sys::fd::duplicate(std::io::stdin()) {
                    std::mem::forget(fd);
                }
                go(call)
            }
            Mutation::LeakMemory if operation == Operation::CbCreate => {
                std::mem::forget(RawMapping::anonymous(1 << 16, false));
                go(call)
            }
            _ => go(call),
        }
    }
}
