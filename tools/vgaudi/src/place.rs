//! Where a server listens: sockets in the file system, which outlive whoever made them unless they
//! are removed.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gaudi_seam::Errno;
use gaudi_sys::fd::file_id;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

/// Why nobody can listen there.
#[derive(Debug)]
pub(crate) enum Error {
    /// Somebody does already.
    Taken,
    /// The file exists and is not a socket.
    NoSocket,
    /// The system says no.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("another server does"),
            Self::NoSocket => f.write_str("it exists and is not a socket"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The sockets of this process; they are removed with it.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Vec<Place>>);

/// A socket of this process. The descriptor keeps its inode number from being used again.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    socket: OwnedFd,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            socket: open_path(path)?,
        })
    }

    /// Whether the path still names this process's socket: a server that started later may have
    /// replaced it.
    fn is_own(&self) -> bool {
        let there = open_path(&self.path).ok();
        there.is_some_and(|there| file_id(there.as_fd()) == file_id(self.socket.as_fd()))
    }
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(AT_FDCWD, path, flags, Mode::empty())?)
}

impl Places {
    /// Listens; a socket that a server before left behind is replaced, one that a server listens on
    /// and any other file are not.
    pub(crate) fn listen(&self, path: &Path) -> Result<UnixListener, Error> {
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(Error::NoSocket);
            }
            if is_taken(path)? {
                return Err(Error::Taken);
            }
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.push(Place::of(path)?);
        Ok(listener)
    }

    /// Removes the sockets of this process, and no socket that another server bound at their paths
    /// since.
    pub(crate) fn remove(&self) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for place in paths.drain(..) {
            if place.is_own() {
                // Another process may have removed it.
                let _ = fs::remove_file(&place.path);
            }
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.remove();
    }
}

// Whether a socket belongs to a process. To connect as a guest would be to be one, and to end a
// server of one guest: a socket of another kind is refused either way, and told apart
// (net/unix/af_unix.c `unix_find_bsd`).
fn is_taken(path: &Path) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ECONNREFUSED as i32) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::EPROTOTYPE as i32) => Ok(true),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

/// Whether two paths name one place, whatever way they take there.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    };
    one == other || place(one).is_some_and(|place_one| place(other) == Some(place_one))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn socket_of_a_successor_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("card");
        let (first, second) = (Places::default(), Places::default());
        drop(first.listen(&path).expect("free"));
        // The first server has closed its socket and not yet removed it when the second one starts.
        let _listener = second.listen(&path).expect("no process listens there");
        first.remove();
        UnixStream::connect(&path).expect("the second server listens");
        second.remove();
        assert!(!path.exists(), "a server removes its own socket");
    }
}
