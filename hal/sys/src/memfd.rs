//! Anonymous files in memory (memfd_create(2)): the mock's device memory and stand-ins for dma-bufs.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::{Errno, SysResult};

/// A sparse file in memory whose size never changes: sealed against shrinking and growing, as udmabuf(4) asks.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: u64,
}

impl Memfd {
    /// A file of `len` bytes that reads as zeros and takes memory only where it is written.
    pub fn sparse(name: &CStr, len: u64) -> SysResult<Self> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, i64::try_from(len).map_err(|_| Errno::EFBIG)?)?;
        let _ = fcntl(
            &fd,
            FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW),
        )?;
        Ok(Self { fd, len })
    }

    /// Takes a file that somebody else made and sealed, of `len` bytes. Where it is not so, whoever uses it gets an error of the kernel's.
    pub fn of_sealed(fd: OwnedFd, len: u64) -> Self {
        Self { fd, len }
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory of a byte range back; it reads as zeros afterwards.
    pub fn punch_hole(&self, offset: u64, len: u64) -> SysResult<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (
            i64::try_from(offset).map_err(|_| Errno::EINVAL)?,
            i64::try_from(len).map_err(|_| Errno::EINVAL)?,
        );
        fallocate(&self.fd, flags, offset, len)
    }

    /// Bytes of memory that the file takes now (`st_blocks`).
    pub fn resident(&self) -> SysResult<u64> {
        let blocks = nix::sys::stat::fstat(&self.fd)?.st_blocks;
        Ok(u64::try_from(blocks).unwrap_or(0) * 512)
    }
}

/// Whether a file can never get shorter: only then a mapping of somebody else's file cannot end in SIGBUS.
pub fn never_shrinks(file: impl AsFd) -> bool {
    fcntl(file.as_fd(), FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK))
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
