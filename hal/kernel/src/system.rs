//! The boundary to the system: the calls that the backend makes, and the real ones.

#![expect(unsafe_code, reason = "ioctl(2) is handed an address")]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gaudi_sys::{Errno, RawMapping, SysResult};
use gaudi_uapi::ioctl::Parts;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// The system calls that the backend makes. [`System`] makes them; a test records them.
pub trait Syscalls: Send + Sync + 'static {
    /// open(2), for reading and writing, close-on-exec.
    ///
    /// # Errors
    /// The errno of open(2).
    fn open(&self, path: &Path) -> SysResult<OwnedFd>;

    /// ioctl(2) with an argument buffer.
    ///
    /// # Errors
    /// The errno of ioctl(2).
    ///
    /// # Safety
    /// - `args` is at least as long as the size that the request number carries.
    /// - Every address in `args` that this request makes the kernel read or write during the call
    ///   is valid for it over the length that stands beside it; where the kernel writes, no
    ///   other code uses the memory.
    /// - Where the request makes a device use host memory after the call, the caller keeps the
    ///   promise of [`KernelIo::mem_map_host`](gaudi_seam::KernelIo::mem_map_host).
    unsafe fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()>;

    /// mmap(2), shared, for reading and writing.
    ///
    /// # Errors
    /// The errno of mmap(2).
    fn mmap(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping>;
}

/// The real system calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

#[cold]
fn last() -> Errno {
    Errno::last()
}

impl Syscalls for System {
    fn open(&self, path: &Path) -> SysResult<OwnedFd> {
        nix::fcntl::open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
    }

    #[inline]
    unsafe fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        debug_assert!(
            args.len() >= Parts::of(request).size,
            "{request:#x} of {} bytes",
            args.len()
        );
        // SAFETY: the kernel copies at most the size in the request number from and to `args`. By
        // contract `args` is long enough, and the addresses in it are valid.
        let result = unsafe { nix::libc::ioctl(fd.as_raw_fd(), request.into(), args.as_mut_ptr()) };
        if result == -1 { Err(last()) } else { Ok(()) }
    }

    fn mmap(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping> {
        RawMapping::of_fd(fd, offset, len)
    }
}
