//! The kernel backend over the codec over another node: each request becomes the bytes of its ioctl
//! and is decoded from them, and so does each answer.

#![expect(unsafe_code, reason = "the argument of an ioctl is passed on")]

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use gaudi_codec::{OwnMemory, errno_of, serve};
use gaudi_kernel::{Driver, Syscalls};
use gaudi_seam::{KernelSelector, MmapRequest, Result, SharedIo};
use gaudi_sys::fd::errno_of as errno_of_io;
use gaudi_sys::{RawMapping, SysResult};

/// System calls on a node of seam 1. The descriptor is a substitute; closing it closes nothing.
struct Served(SharedIo);

impl Syscalls for Served {
    fn open(&self, _: &Path) -> SysResult<OwnedFd> {
        File::open("/dev/null").map(OwnedFd::from).map_err(errno_of_io)
    }

    unsafe fn ioctl(&self, _: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        // SAFETY: the caller promises what mapped host memory needs.
        unsafe { serve(&*self.0, request, args, &OwnMemory) }
    }

    fn mmap(&self, _: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping> {
        let mapped = self.0.mmap(MmapRequest { offset, len });
        mapped.map_err(|error| errno_of(&error))
    }
}

/// The kernel backend, whose driver is `io`.
pub(crate) fn over_bytes(io: SharedIo) -> Result<SharedIo> {
    let kind = io.node().kind;
    let driver = Driver::at("/nowhere", Arc::new(Served(io)));
    Ok(Arc::new(driver.open(KernelSelector::Index(0), kind)?))
}
