//! Memory files with the seals of one's choice, and udmabuf asked with any descriptor: for
//! refusals.

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the struct is plain data and lives across the call"
)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use gaudi_sys::{Errno, SysResult};
use gaudi_uapi::dmabuf::{UdmabufCreate, UdmabufFlags};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

mod raw {
    use gaudi_uapi::dmabuf::UdmabufCreate;
    nix::ioctl_write_ptr!(udmabuf_create, b'u', 0x42, UdmabufCreate);
}

/// Makes a memfd of `len` bytes with exactly these seals.
///
/// # Errors
/// The errno of memfd_create(2), ftruncate(2) or fcntl(2).
pub fn sealed(len: u64, seals: SealFlag) -> SysResult<OwnedFd> {
    let fd = memfd_create(c"lab", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&fd, i64::try_from(len).map_err(|_| Errno::EFBIG)?)?;
    let _ = fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

/// `UDMABUF_CREATE` on any descriptor; `gaudi_sys::dmabuf` offers it on well-sealed files only.
///
/// # Errors
/// The errno of the ioctl; `EBADF` for a negative descriptor.
pub fn udmabuf(device: impl AsFd, memfd: impl AsFd, offset: u64, size: u64) -> SysResult<OwnedFd> {
    let argument = UdmabufCreate {
        memfd: u32::try_from(memfd.as_fd().as_raw_fd()).map_err(|_| Errno::EBADF)?,
        flags: UdmabufFlags::CLOEXEC,
        offset,
        size,
    };
    // SAFETY: both fds are open for the whole call and the argument is a live `struct
    // udmabuf_create`.
    let fd = unsafe { raw::udmabuf_create(device.as_fd().as_raw_fd(), &argument) }?;
    // SAFETY: a successful UDMABUF_CREATE returns a new descriptor, owned by no other object.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
