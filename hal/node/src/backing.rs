//! [`Backing`]: what stands behind a program's descriptor, and how its release is detected.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use gaudi_hal::ProgramFile;
use gaudi_sys::fd::{self, FileId, errno_of, file_id};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, SysResult, lock, poll};

/// The part of the file of buffers that the program's descriptor locks. No buffer lies there.
const HELD: Window = Window { offset: 0, len: 1 };

/// What this process has of a program's descriptor.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The mock's file of buffers.
    Buffers(Arc<Memfd>),
    /// The other end of the program's socket.
    Socket(UnixStream),
    /// The driver's file, of which the open node has a descriptor.
    Driver(DriverFile),
}

impl Backing {
    /// Makes the descriptor for a program.
    pub(crate) fn of(file: ProgramFile) -> SysResult<(Self, OwnedFd)> {
        match file {
            ProgramFile::Buffers(buffers) => {
                let fd = standin::export(&buffers, HELD)?;
                Ok((Self::Buffers(buffers), fd))
            }
            ProgramFile::Driver(fd) => Ok((Self::Driver(DriverFile::new(file_id(&fd)?)), fd)),
            ProgramFile::None => {
                let (own, program) = UnixStream::pair().map_err(errno_of)?;
                // A read of the program ends at once.
                own.shutdown(Shutdown::Write).map_err(errno_of)?;
                Ok((Self::Socket(own), program.into()))
            }
        }
    }

    /// Whether the program has no descriptor left.
    pub(crate) fn is_released(&self) -> SysResult<bool> {
        match self {
            Self::Buffers(buffers) => standin::is_exported(buffers, HELD).map(|held| !held),
            Self::Socket(own) => poll::is_hung_up(own),
            Self::Driver(file) => file.is_released(),
        }
    }
}

/// The files of the driver behind the nodes of this process.
static DRIVER_FILES: Mutex<Vec<FileId>> = Mutex::new(Vec::new());

/// A descriptor of the driver that an open node has. The program's is a duplicate, which a lock
/// cannot tell from it, so the descriptors of the process are counted.
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

    /// Control nodes of one device have one file: none counts as released before all are.
    fn is_released(&self) -> SysResult<bool> {
        let files = lock(&DRIVER_FILES);
        let own = files.iter().filter(|&&id| id == self.id).count();
        Ok(fd::count_of(self.id)? <= own)
    }
}

impl Drop for DriverFile {
    fn drop(&mut self) {
        // In a fork child another thread of the parent may have had the lock.
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

    /// The descriptor of an open node, and one for a program.
    fn driver(of: &Memfd) -> (OwnedFd, Backing, OwnedFd) {
        let own = fd::duplicate(of).unwrap();
        let (backing, program) = Backing::of(ProgramFile::Driver(fd::duplicate(of).unwrap())).unwrap();
        (own, backing, program)
    }

    #[test]
    fn drivers_descriptors_are_counted() {
        let node = Memfd::sparse(c"node", 4096).unwrap();
        let (own, backing, program) = driver(&node);
        // The test's own is not a node's.
        drop(node);
        let twin = fd::duplicate(&program).unwrap();
        drop(program);
        assert_eq!(backing.is_released(), Ok(false));
        drop(twin);
        assert_eq!(backing.is_released(), Ok(true));
        let id = file_id(&own).unwrap();
        drop(backing);
        assert!(!lock(&DRIVER_FILES).contains(&id), "no record is left");
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
