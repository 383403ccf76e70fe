//! Any ioctl's argument decoded, for a model of the driver and for traces.

use zerocopy::FromBytes;

use crate::cb::{HlCbArgs, HlCbIn};
use crate::cs::{HlCsArgs, HlCsIn};
use crate::debug::HlDebugArgs;
use crate::era::Ioctl;
use crate::info::HlInfoArgs;
use crate::memory::{HlMemArgs, HlMemIn};
use crate::nic::HlNicArgs;
use crate::wait::{HlWaitCsArgs, HlWaitCsIn};

/// A request of one of the driver's ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// INFO.
    Info(HlInfoArgs),
    /// CB.
    Cb(HlCbIn),
    /// CS.
    Cs(HlCsIn),
    /// WAIT_CS.
    WaitCs(HlWaitCsIn),
    /// MEMORY.
    Memory(HlMemIn),
    /// DEBUG.
    Debug(HlDebugArgs),
    /// NIC.
    Nic(HlNicArgs),
}

impl Request {
    /// Decodes an argument. Nothing when `bytes` is shorter than the ioctl's argument; more bytes
    /// are ignored.
    pub fn decode(ioctl: Ioctl, bytes: &[u8]) -> Option<Self> {
        fn front<T: FromBytes>(bytes: &[u8]) -> Option<T> {
            T::read_from_prefix(bytes).ok().map(|(value, _)| value)
        }
        Some(match ioctl {
            Ioctl::Info => Self::Info(front(bytes)?),
            Ioctl::Cb => Self::Cb(front::<HlCbArgs>(bytes)?.request()),
            Ioctl::Cs => Self::Cs(front::<HlCsArgs>(bytes)?.request()),
            Ioctl::WaitCs => Self::WaitCs(front::<HlWaitCsArgs>(bytes)?.request()),
            Ioctl::Memory => Self::Memory(front::<HlMemArgs>(bytes)?.request()),
            Ioctl::Debug => Self::Debug(front(bytes)?),
            Ioctl::Nic => Self::Nic(front(bytes)?),
        })
    }

    /// The ioctl that the request belongs to.
    pub fn ioctl(&self) -> Ioctl {
        match self {
            Self::Info(_) => Ioctl::Info,
            Self::Cb(_) => Ioctl::Cb,
            Self::Cs(_) => Ioctl::Cs,
            Self::WaitCs(_) => Ioctl::WaitCs,
            Self::Memory(_) => Ioctl::Memory,
            Self::Debug(_) => Ioctl::Debug,
            Self::Nic(_) => Ioctl::Nic,
        }
    }
}
