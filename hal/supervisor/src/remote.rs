//! [`Remote`] and [`Space`]: the memory of a process of the program.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};

use gaudi_codec::UserMemory;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, pread, process_vm_readv, process_vm_writev, pwrite};
use nix::unistd::Pid;

/// The longest path (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// The memory of the process of a thread. The id can belong to another process once the call that
/// the thread makes has ended, and the process can execute another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote(Pid);

/// An address space: the memory that a process has when this value is created. After an exec(2) or
/// the end of the process, each access fails.
#[derive(Debug)]
pub(crate) struct Space {
    process: Remote,
    memory: File,
}

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

/// Returns whether all bytes of an access to `/proc/PID/mem` were copied. It copies none after the
/// end of the address space.
fn whole(copied: Result<usize, Errno>, len: usize) -> Result<(), Errno> {
    match copied {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) | Err(Errno::EIO) => Err(Errno::EFAULT),
        Err(errno) => Err(errno),
    }
}

impl Space {
    /// Returns the address space of a process. The caller then checks that the id is still that of
    /// the process.
    pub(crate) fn of(process: u32) -> Result<Self, Errno> {
        let path = format!("/proc/{process}/mem");
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let memory = opened.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        Ok(Self {
            process: Remote::of(process),
            memory,
        })
    }

    /// Returns whether a process has this address space, which is mapped at an address.
    ///
    /// A process that shared it by vfork(2) and has left it is not detected.
    pub(crate) fn is_of(&self, process: u32, address: u64) -> bool {
        self.process == Remote::of(process) && self.check(address).is_ok()
    }

    /// Returns an error if the address space has ended, or is not mapped at an address.
    pub(crate) fn check(&self, address: u64) -> Result<(), Errno> {
        let mut byte = [0];
        whole(pread(&self.memory, &mut byte, address as i64), byte.len())
    }

    /// Reads what the process has at an address. The caller calls [`check`](Self::check) afterwards
    /// if it uses the bytes: they are those of another program after an exec(2). For 64 KiB,
    /// `/proc/PID/mem` takes half as much time again.
    pub(crate) fn read_unchecked(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.process.read(address, bytes)
    }

    /// Writes to the address space.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        whole(pwrite(&self.memory, bytes, address as i64), bytes.len())
    }
}
