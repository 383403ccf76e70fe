//! Reads a word of this process's memory, as the driver's `copy_from_user` does.

use std::io::IoSliceMut;

use gaudi_seam::{Errno, HostVa};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Returns the 64-bit word at an address; `EFAULT` if it is not readable. The kernel copies it, so
/// that an invalid address is safe.
pub(crate) fn read_u64(address: HostVa) -> Result<u64, Errno> {
    let base = usize::try_from(address.0).map_err(|_| Errno::EFAULT)?;
    let mut word = [0; 8];
    let remote = RemoteIoVec {
        base,
        len: word.len(),
    };
    match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut word)], &[remote]) {
        Ok(8) => Ok(u64::from_le_bytes(word)),
        _ => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hole_in_user_memory_faults() {
        let word = 0x0123_4567_89ab_cdef_u64;
        let at = HostVa(std::ptr::from_ref(&word).expose_provenance() as u64);
        assert_eq!(read_u64(at), Ok(word), "the word at its own address");
        for hole in [0, 8, u64::MAX - 3, u64::MAX] {
            assert_eq!(
                read_u64(HostVa(hole)),
                Err(Errno::EFAULT),
                "nothing can be read at {hole:#x}"
            );
        }
    }
}
