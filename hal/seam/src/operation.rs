//! Operations as types: each request names its operation and its answer.
//!
//! - *One row an operation*: the table below makes [`Operation`], [`Request`] and [`AnyRequest`].
//! - *A layer implements one method*, [`Layer::around`](crate::Layer), for all of them.
//! - *[`AnyRequest`] and [`AnyAnswer`] are views* for code that treats operations differently. In a
//!   generic function over a request their variant is known when the function is compiled.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;

use crate::request::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, ExportRequest,
    InfoRequest, InterruptWait, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, MultiWaitAnswer,
    NicRequest, RegisterDmabuf, TimestampRegistration, TsHandle, WaitAnswer,
};

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

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $method:ident $kernel:literal
        $request:ty => $answer:ty $(, output $output:ident)?;)*) => {
        /// A method of [`KernelIo`](crate::KernelIo).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[$doc])* $variant,)*
        }

        impl Operation {
            /// Every operation, in the seam's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The method's name: `mem_alloc`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($method),)*
                }
            }

            /// The name in the kernel's headers, which errors contain: `HL_MEM_OP_ALLOC`.
            pub const fn kernel_name(self) -> &'static str {
                match self {
                    $(Self::$variant => $kernel,)*
                }
            }
        }

        /// The arguments of an operation.
        #[derive(Debug, Clone, Copy)]
        pub enum AnyRequest<'a> {
            $($(#[$doc])* $variant(&'a $request),)*
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

operations! {
    /// `info`.
    Info info "HL_IOCTL_INFO" Info<'a> => u32, output answer;
    /// `cb_create`.
    CbCreate cb_create "HL_CB_OP_CREATE" CbCreate => CbHandle;
    /// `cb_destroy`.
    CbDestroy cb_destroy "HL_CB_OP_DESTROY" CbDestroy => ();
    /// `cb_info`.
    CbInfo cb_info "HL_CB_OP_INFO" CbQuery => CbInfo;
    /// `submit`.
    Submit submit "HL_IOCTL_CS" &'a CsRequest<'a> => CsAnswer;
    /// `wait_cs`.
    WaitCs wait_cs "HL_IOCTL_WAIT_CS" WaitCs => WaitAnswer;
    /// `wait_multi_cs`.
    WaitMultiCs wait_multi_cs "HL_WAIT_CS_FLAGS_MULTI_CS" WaitMultiCs<'a> => MultiWaitAnswer;
    /// `wait_interrupt`.
    WaitInterrupt wait_interrupt "HL_WAIT_CS_FLAGS_INTERRUPT" &'a InterruptWait => WaitAnswer;
    /// `register_timestamp`.
    RegisterTimestamp register_timestamp "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" &'a TimestampRegistration => ();
    /// `mem_alloc`.
    MemAlloc mem_alloc "HL_MEM_OP_ALLOC" MemAlloc => MemHandle;
    /// `mem_free`.
    MemFree mem_free "HL_MEM_OP_FREE" MemFree => ();
    /// `mem_map_device`.
    MemMapDevice mem_map_device "HL_MEM_OP_MAP" MapDevice => DeviceVa;
    /// `mem_map_host`.
    MemMapHost mem_map_host "HL_MEM_OP_MAP (HL_MEM_USERPTR)" MapHost => DeviceVa;
    /// `mem_unmap`.
    MemUnmap mem_unmap "HL_MEM_OP_UNMAP" MemUnmap => ();
    /// `ts_alloc`.
    TsAlloc ts_alloc "HL_MEM_OP_TS_ALLOC" TsAlloc => TsHandle;
    /// `map_block`.
    MapBlock map_block "HL_MEM_OP_MAP_BLOCK" MapBlock => BlockMapping;
    /// `export_dmabuf`.
    ExportDmabuf export_dmabuf "HL_MEM_OP_EXPORT_DMABUF_FD" ExportRequest => OwnedFd;
    /// `register_dmabuf`.
    RegisterDmabuf register_dmabuf "HL_MEM_OP_REG_DMABUF_FD" RegisterDmabuf<'a> => DeviceVa;
    /// `debug`.
    Debug debug "HL_IOCTL_DEBUG" DebugRequest<'a> => (), output output;
    /// `nic`.
    Nic nic "HL_IOCTL_NIC" NicRequest<'a> => (), output output;
    /// `mmap`.
    Mmap mmap "mmap" MmapRequest => RawMapping;
    /// `register_events`.
    RegisterEvents register_events "HL_INFO_REGISTER_EVENTFD" RegisterEvents<'a> => ();
    /// `unregister_events`.
    UnregisterEvents unregister_events "HL_INFO_UNREGISTER_EVENTFD" UnregisterEvents => ();
}

impl Operation {
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

/// [`KernelIo::info`](crate::KernelIo::info).
#[derive(Debug)]
pub struct Info<'a> {
    /// The operation and its argument word.
    pub request: InfoRequest,
    /// The buffer for the struct that the driver returns.
    pub answer: &'a mut [u8],
}

/// [`KernelIo::cb_destroy`](crate::KernelIo::cb_destroy).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbDestroy(pub CbHandle);

/// [`KernelIo::cb_info`](crate::KernelIo::cb_info).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbQuery {
    /// The command buffer.
    pub handle: CbHandle,
    /// `HL_CB_FLAGS_GET_DEVICE_VA`: ask for the device address instead of the usage count.
    pub device_va: bool,
}

/// [`KernelIo::wait_cs`](crate::KernelIo::wait_cs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitCs {
    /// The submission.
    pub seq: CsSeq,
    /// The longest wait. Zero polls.
    pub timeout: Duration,
}

/// [`KernelIo::wait_multi_cs`](crate::KernelIo::wait_multi_cs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitMultiCs<'a> {
    /// Up to 32 submissions.
    pub seqs: &'a [CsSeq],
    /// The longest wait. Zero polls.
    pub timeout: Duration,
}

/// [`KernelIo::mem_free`](crate::KernelIo::mem_free).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemFree(pub MemHandle);

/// [`KernelIo::mem_unmap`](crate::KernelIo::mem_unmap).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemUnmap(pub DeviceVa);

/// [`KernelIo::ts_alloc`](crate::KernelIo::ts_alloc), with the number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TsAlloc(pub u32);

/// [`KernelIo::map_block`](crate::KernelIo::map_block), with the block's address on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapBlock(pub u64);

/// [`KernelIo::register_events`](crate::KernelIo::register_events), with the eventfd.
#[derive(Debug, Clone, Copy)]
pub struct RegisterEvents<'a>(pub BorrowedFd<'a>);

/// [`KernelIo::unregister_events`](crate::KernelIo::unregister_events).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnregisterEvents;

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
