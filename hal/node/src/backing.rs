//! [`Backing`]: the file behind a program's descriptor, and how its release is detected.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use gaudi_hal::ProgramFile;
use gaudi_sys::fd::{self, FileId, errno_of, file_id};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, SysResult, lock, poll};

/// The range of the buffer file that the program's descriptor locks. No buffer uses it.
const HELD: Window = Window { offset: 0, len: 1 };

/// This process's reference to the file behind a program's descriptor.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The mock's buffer file.
    Buffers(Arc<Memfd>),
    /// The peer of the program's socket.
    Socket(UnixStream),
    /// The driver's file. The open node holds another descriptor of it.
    Driver(DriverFile),
}

impl Backing {
    /// Creates the program's descriptor.
    pub(crate) fn of(file: ProgramFile) -> SysResult<(Self, OwnedFd)> {
        match file {
            ProgramFile::Buffers(buffers) => {
                let fd = standin::export(&buffers, HELD)?;
                Ok((Self::Buffers(buffers), fd))
            }
            ProgramFile::Driver(fd) => Ok((Self::Driver(DriverFile::new(file_id(&fd)?)), fd)),
            ProgramFile::None => {
                let (own, program) = UnixStream::pair().map_err(errno_of)?;
                // The program's read(2) returns end-of-file instead of blocking.
                own.shutdown(Shutdown::Write).map_err(errno_of)?;
                Ok((Self::Socket(own), program.into()))
            }
        }
    }

    /// Returns whether every descriptor of the program is closed.
    pub(crate) fn is_released(&self) -> SysResult<bool> {
        match self {
            Self::Buffers(buffers) => standin::is_exported(buffers, HELD).map(|held| !held),
            Self::Socket(own) => poll::is_hung_up(own),
            Self::Driver(file) => file.is_released(),
        }
    }
}

/// The driver files behind the nodes of this process, one entry per node.
static DRIVER_FILES: Mutex<Vec<FileId>> = Mutex::new(Vec::new());

/// A node's descriptor of the driver's file. The program's descriptor is a duplicate, which shares
/// its locks; release is detected by counting the descriptors of this process instead.
#[derive(Debug)]
pub(crate) struct DriverFile {
    id: FileId,
    owner: OwnerProcess,
}

impl DriverFile {
    fn new(id: FileId) -> Self {
        lock(&DRIVER_FILES).push(id);
        Self {
            id,
            owner: OwnerProcess::current(),
        }
    }

    /// Control nodes of one device share one file: they count as released together.
    fn is_released(&self) -> SysResult<bool> {
        let files = lock(&DRIVER_FILES);
        let own = files.iter().filter(|&&id| id == self.id).count();
        Ok(fd::count_of(self.id)? <= own)
    }
}

impl Drop for DriverFile {
    fn drop(&mut self) {
        // Another thread of the parent may have held the lock when it forked.
        if self.owner.is_foreign() {
            return;
        }
        let mut files = lock(&DRIVER_FILES);
        if let Some(at) = files.iter().position(|&id| id == self.id) {
            files.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a node's descriptor, its backing, and a program's descriptor.
    fn driver(of: &Memfd) -> (OwnedFd, Backing, OwnedFd) {
        let own = fd::duplicate(of).unwrap();
        let (backing, program) = Backing::of(ProgramFile::Driver(fd::duplicate(of).unwrap())).unwrap();
        (own, backing, program)
    }

    #[test]
    fn driver_descriptors_are_counted() {
        let node = Memfd::sparse(c"node", 4096).unwrap();
        let (own, backing, program) = driver(&node);
        // The test's descriptor does not belong to a node.
        drop(node);
        let twin = fd::duplicate(&program).unwrap();
        drop(program);
        assert_eq!(backing.is_released(), Ok(false));
        drop(twin);
        assert_eq!(backing.is_released(), Ok(true));
        let id = file_id(&own).unwrap();
        drop(backing);
        assert!(!lock(&DRIVER_FILES).contains(&id), "the entry is removed");
    }

    #[test]
    fn nodes_of_one_file_are_released_together() {
        let node = Memfd::sparse(c"node", 4096).unwrap();
        let (_own, first, program) = driver(&node);
        let (_second_own, second, second_program) = driver(&node);
        drop(node);
        drop(program);
        assert_eq!(first.is_released(), Ok(false));
        drop(second_program);
        assert_eq!([first.is_released(), second.is_released()], [Ok(true); 2]);
    }
}
