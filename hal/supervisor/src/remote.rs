//! [`Remote`]: the memory of a process of the program.

use std::io::{IoSlice, IoSliceMut};

use gaudi_codec::UserMemory;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// The longest path (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// The memory of the process of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote(Pid);

fn place(address: u64, len: usize) -> Result<[RemoteIoVec; 1], Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    Ok([RemoteIoVec { base, len }])
}

impl Remote {
    pub(crate) fn of(tid: u32) -> Self {
        // Thread ids are positive and fit.
        Self(Pid::from_raw(tid as i32))
    }

    /// Reads as many bytes as are mapped.
    fn read_some(self, address: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let from = place(address, bytes.len())?;
        process_vm_readv(self.0, &mut [IoSliceMut::new(bytes)], &from)
    }

    /// Reads a path.
    pub(crate) fn path(self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut path = Vec::new();
        while path.len() < LONGEST_PATH {
            // Up to the end of a page: the next one may not be mapped.
            let at = address.checked_add(path.len() as u64).ok_or(Errno::EFAULT)?;
            let len = 256.min(gaudi_sys::PAGE - at % gaudi_sys::PAGE) as usize;
            let mut part = vec![0; len];
            let got = self.read_some(at, &mut part)?;
            let part = &part[..got];
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                path.extend_from_slice(&part[..end]);
                return Ok(path);
            }
            if got < len {
                return Err(Errno::EFAULT);
            }
            path.extend_from_slice(part);
        }
        Err(Errno::ENAMETOOLONG)
    }
}

impl UserMemory for Remote {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let len = bytes.len();
        match self.read_some(address, bytes)? {
            got if got == len => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = place(address, bytes.len())?;
        match process_vm_writev(self.0, &[IoSlice::new(bytes)], &to)? {
            done if done == bytes.len() => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    }
}
