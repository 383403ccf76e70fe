//! Operations as types: each request names its operation and its answer.
//!
//! - *One row an operation*, in `request.rs`: it makes the method of [`KernelIo`](crate::KernelIo),
//!   its path through a [`Layer`](crate::Layer), [`Operation`], [`Request`] and [`AnyRequest`].
//! - *[`AnyRequest`] and [`AnyAnswer`] are views* for code that treats operations differently. In a
//!   generic function over a request their variant is known when the function is compiled.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;

use crate::request::*;

/// One operation of the driver with its arguments.
pub trait Request {
    /// What a success returns.
    type Answer: Answer;
    /// Which operation it is.
    const OPERATION: Operation;

    /// The arguments, for code that treats operations differently.
    fn view(&self) -> AnyRequest<'_>;

    /// The caller's buffer that the driver fills. Empty for operations without one.
    fn output(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Returns `answer` as the answer of this request, for a layer that answers in place of the
    /// driver.
    ///
    /// # Panics
    /// If the operation has another type of answer.
    fn reply<T: Answer>(answer: T) -> Self::Answer {
        Self::Answer::of(answer)
            .unwrap_or_else(|| unreachable!("an answer of another operation than {}", Self::OPERATION))
    }
}

/// What an operation returns.
pub trait Answer: Any + Sized {
    /// The value, for code that treats answers differently.
    fn view(&self) -> AnyAnswer<'_>;

    /// Returns `value` as this type. `None` if it has another type.
    fn of<T: Any>(value: T) -> Option<Self> {
        let mut value = Some(value);
        let same: &mut Option<Self> = (&mut value as &mut dyn Any).downcast_mut()?;
        same.take()
    }
}

macro_rules! requests {
    ($(
        $(#[$attribute:meta])*
        $variant:ident $kernel:literal [$($fn:tt)+] $method:ident($($arg:ident: $type:ty),*) -> $answer:ty,
            $request:ty = $build:expr $(, |$below:ident, $seen:ident| $call:expr)? $(, output $output:ident)?;
    )*) => {
        /// A method of [`KernelIo`](crate::KernelIo).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $(#[doc = concat!("[`", $kernel, "`](crate::KernelIo::", stringify!($method), ").")] $variant,)*
        }

        impl Operation {
            /// Every operation, in the seam's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            const NAMES: &'static [(&'static str, &'static str)] = &[$((stringify!($method), $kernel)),*];
        }

        /// The arguments of an operation.
        #[derive(Debug, Clone, Copy)]
        pub enum AnyRequest<'a> {
            $(#[doc = concat!("Of [`", $kernel, "`](crate::KernelIo::", stringify!($method), ").")]
            $variant(&'a $request),)*
        }

        impl AnyRequest<'_> {
            /// Which operation it is.
            pub const fn operation(&self) -> Operation {
                match self {
                    $(Self::$variant(_) => Operation::$variant,)*
                }
            }
        }

        $(
            impl<'a> Request for $request {
                type Answer = $answer;
                const OPERATION: Operation = Operation::$variant;

                #[inline]
                fn view(&self) -> AnyRequest<'_> {
                    AnyRequest::$variant(self)
                }

                $(
                    #[inline]
                    fn output(&mut self) -> &mut [u8] {
                        self.$output
                    }
                )?
            }
        )*
    };
}
operations!(requests);

impl Operation {
    /// The method's name: `mem_alloc`.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// The name in the kernel's headers, which errors contain: `HL_MEM_OP_ALLOC`.
    pub const fn kernel_name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The operation whose method has this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|operation| operation.name() == name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

macro_rules! answers {
    ($($(#[$doc:meta])* $variant:ident $type:ty;)*) => {
        /// What an operation returned.
        #[derive(Debug, Clone, Copy)]
        pub enum AnyAnswer<'a> {
            /// Success, without a value.
            None,
            $($(#[$doc])* $variant(&'a $type),)*
        }

        $(
            impl Answer for $type {
                #[inline]
                fn view(&self) -> AnyAnswer<'_> {
                    AnyAnswer::$variant(self)
                }
            }
        )*
    };
}

impl Answer for () {
    #[inline]
    fn view(&self) -> AnyAnswer<'_> {
        AnyAnswer::None
    }
}

answers! {
    /// The argument word of INFO as the driver left it.
    Word u32;
    /// A new command buffer.
    CbHandle CbHandle;
    /// The state of a command buffer.
    CbInfo CbInfo;
    /// A submission.
    Cs CsAnswer;
    /// The end of a wait.
    Wait WaitAnswer;
    /// The end of a wait for several submissions.
    MultiWait MultiWaitAnswer;
    /// An allocation of device memory.
    MemHandle MemHandle;
    /// The start of a mapping.
    DeviceVa DeviceVa;
    /// A new timestamps buffer.
    TsHandle TsHandle;
    /// How to mmap a block.
    Block BlockMapping;
    /// A dma-buf.
    Dmabuf OwnedFd;
    /// Mapped memory.
    Mapping RawMapping;
}
