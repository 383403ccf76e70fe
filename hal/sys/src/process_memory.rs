//! Copies from and to this process's memory by address, as the kernel's `copy_from_user` and
//! `copy_to_user` do (process_vm_readv(2)).
//!
//! The kernel copies, so an address that is not mapped is `EFAULT` and not a fault.

use std::io::{IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::{Errno, SysResult};

fn remote(address: u64, len: usize) -> SysResult<[RemoteIoVec; 1]> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    Ok([RemoteIoVec { base, len }])
}

fn whole(copied: usize, len: usize) -> SysResult<()> {
    if copied == len { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies the bytes at `address` into `bytes`.
///
/// # Errors
/// - `EFAULT`: some byte is not readable.
/// - `EPERM`, `ENOSYS`: a sandbox forbids process_vm_readv(2).
pub fn read(address: u64, bytes: &mut [u8]) -> SysResult<()> {
    let len = bytes.len();
    let from = remote(address, len)?;
    whole(
        process_vm_readv(Pid::this(), &mut [IoSliceMut::new(bytes)], &from)?,
        len,
    )
}

/// Copies `bytes` to `address`.
///
/// The memory belongs to a caller that passed its address for this purpose, as to a system call.
///
/// # Errors
/// - `EFAULT`: some byte is not writable.
/// - `EPERM`, `ENOSYS`: a sandbox forbids process_vm_writev(2).
pub fn write(address: u64, bytes: &[u8]) -> SysResult<()> {
    let to = remote(address, bytes.len())?;
    whole(
        process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &to)?,
        bytes.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawMapping;

    #[test]
    fn copies_reach_this_process() {
        let word = 0x0123_4567_89ab_cdef_u64;
        let at = std::ptr::from_ref(&word).expose_provenance() as u64;
        let mut seen = [0; 8];
        read(at, &mut seen).expect("the word is readable");
        assert_eq!(u64::from_ne_bytes(seen), word);
        let memory = RawMapping::anonymous(4096, true).expect("a page");
        write(memory.as_ptr().as_ptr().expose_provenance() as u64 + 8, &seen).expect("the page is writable");
        let mut written = [0; 8];
        memory.read(8, &mut written).expect("within the page");
        assert_eq!(written, seen);
    }

    #[test]
    fn hole_in_memory_faults() {
        for hole in [0, 8, u64::MAX - 3, u64::MAX] {
            assert_eq!(read(hole, &mut [0; 8]), Err(Errno::EFAULT), "read at {hole:#x}");
            assert_eq!(write(hole, &[0; 8]), Err(Errno::EFAULT), "write at {hole:#x}");
        }
        static CONSTANT: [u8; 64] = [7; 64];
        let constant = CONSTANT.as_ptr().expose_provenance() as u64;
        assert_eq!(write(constant, &[0; 8]), Err(Errno::EFAULT), "read-only memory");
        let memory = RawMapping::anonymous(4096, true).expect("a page");
        let end = memory.as_ptr().as_ptr().expose_provenance() as u64 + 4096;
        drop(memory);
        assert_eq!(
            read(end - 4096, &mut [0; 8]),
            Err(Errno::EFAULT),
            "unmapped memory"
        );
        assert_eq!(read(0, &mut []), Ok(()), "no bytes are readable anywhere");
    }
}
