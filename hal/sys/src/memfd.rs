//! Anonymous files in memory (memfd_create(2)): the mock's device memory and stand-ins for
//! dma-bufs.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::{Errno, SysResult};

/// A sparse file in memory whose size and seals never change.
///
/// It has `F_SEAL_SHRINK`, without which udmabuf refuses a file, `F_SEAL_GROW`, and `F_SEAL_SEAL`:
/// a process that holds a descriptor of it cannot add `F_SEAL_FUTURE_WRITE`, which would prevent
/// its owner from mapping it again and from punching holes (fcntl(2)).
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: u64,
}

impl Memfd {
    /// Creates a file of `len` bytes that reads as zeros and takes memory only where it is written.
    ///
    /// # Errors
    /// memfd_create(2)'s and ftruncate(2)'s.
    pub fn sparse(name: &CStr, len: u64) -> SysResult<Self> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, i64::try_from(len).map_err(|_| Errno::EFBIG)?)?;
        // All at once: after F_SEAL_SEAL no seal can be added, and a write seal would make udmabuf
        // refuse the file.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let _ = fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self { fd, len })
    }

    /// Takes a file of `len` bytes that another program made and sealed. The caller checks both: if
    /// they are wrong, the kernel refuses the later calls.
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

    /// Frees the memory of a byte range; the range then reads as zeros.
    ///
    /// # Errors
    /// fallocate(2)'s.
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

    /// Returns the bytes of memory that the file takes now (`st_blocks`).
    ///
    /// # Errors
    /// fstat(2)'s.
    pub fn resident(&self) -> SysResult<u64> {
        let blocks = nix::sys::stat::fstat(&self.fd)?.st_blocks;
        // `st_blocks` is never negative.
        Ok(u64::try_from(blocks).unwrap_or(0) * 512)
    }
}

/// Whether a mapping of a foreign file can be accessed without a SIGBUS, whatever its owner does.
///
/// - The file is sealed against shrinking: every page lies before its end.
/// - It is of tmpfs, which allocates a missing page, so that a punched hole reads as zeros. A memfd
///   of huge pages (`MFD_HUGETLB`) is rejected: its pages come from a pool that may be empty, and a
///   hole frees even pages that a mapping had reserved (fs/hugetlbfs/inode.c
///   `hugetlbfs_punch_hole`). Only `F_SEAL_WRITE` forbids holes, and it forbids use.
///
/// An access still fails if the machine has no memory for a page, as with anonymous memory.
pub fn is_lasting(file: impl AsFd) -> bool {
    let file = file.as_fd();
    let sealed = fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK));
    sealed && fstatfs(file).is_ok_and(|stat| stat.filesystem_type() == TMPFS_MAGIC)
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(flags: MFdFlags) -> SysResult<OwnedFd> {
        let fd = memfd_create(
            c"peer",
            flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        nix::unistd::ftruncate(&fd, 2 << 20)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        Ok(fd)
    }

    #[test]
    fn sparse_file_refuses_seals_and_resizing() {
        let file = Memfd::sparse(c"sealed", 8192).unwrap();
        let peer = crate::fd::duplicate(&file).unwrap();
        for seal in [
            SealFlag::F_SEAL_FUTURE_WRITE,
            SealFlag::F_SEAL_WRITE,
            SealFlag::F_SEAL_SEAL,
        ] {
            let added = fcntl(&peer, FcntlArg::F_ADD_SEALS(seal));
            assert_eq!(added, Err(Errno::EPERM), "{seal:?}");
        }
        for len in [0, 4096, 1 << 20] {
            assert_eq!(nix::unistd::ftruncate(&peer, len), Err(Errno::EPERM), "{len}");
        }
        let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS).unwrap());
        assert!(
            !seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE),
            "udmabuf refuses a file that is sealed against writes: {seals:?}"
        );
        file.punch_hole(0, 4096).unwrap();
        crate::RawMapping::of_fd(&file, 0, 8192).unwrap();
    }

    #[test]
    fn only_sealed_files_of_tmpfs_last() {
        assert!(is_lasting(sealed(MFdFlags::empty()).unwrap()));
        let open = memfd_create(c"peer", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(!is_lasting(&open), "it can get shorter");
        assert!(!is_lasting(std::fs::File::open("/proc/self/exe").unwrap()));
        match sealed(MFdFlags::MFD_HUGETLB) {
            Ok(huge) => assert!(!is_lasting(&huge), "its pages may not be there"),
            Err(errno) => gaudi_harness::skip_named(
                "sys.memfd.huge",
                &format!("memfd_create with MFD_HUGETLB, which fails with {errno} here"),
            ),
        }
    }
}
