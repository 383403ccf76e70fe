//! `synStatus`

use nix::errno::Errno;

/// `synStatus`: the status codes that the shim returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum SynStatus {
    /// `synSuccess`
    Success = 0,
    /// `synInvalidArgument`
    InvalidArgument = 1,
    /// `synOutOfHostMemory`
    OutOfHostMemory = 3,
    /// `synOutOfDeviceMemory`
    OutOfDeviceMemory = 4,
    /// `synCommandSubmissionFailure`
    CommandSubmissionFailure = 7,
    /// `synNoDeviceFound`
    NoDeviceFound = 8,
    /// `synDeviceReset`
    DeviceReset = 17,
    /// `synUnsupported`
    Unsupported = 18,
    /// `synDeviceAlreadyAcquired`
    DeviceAlreadyAcquired = 20,
    /// `synBusy`
    Busy = 22,
    /// `synFail`
    Fail = 26,
    /// `synUninitialized`
    Uninitialized = 28,
    /// `synMappingNotFound`
    MappingNotFound = 34,
}

impl From<Errno> for SynStatus {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENODEV | Errno::ENOENT | Errno::ENXIO => Self::NoDeviceFound,
            Errno::EBUSY | Errno::EAGAIN => Self::Busy,
            Errno::EINVAL => Self::InvalidArgument,
            Errno::ENOMEM => Self::OutOfHostMemory,
            _ => Self::Fail,
        }
    }
}

/// Prints the cause of a failure to standard error.
pub(crate) fn report(why: impl std::fmt::Display) {
    eprintln!("libSynapse.so (shim of gaudi-hal): {why}");
}
