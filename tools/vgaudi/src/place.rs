//! Where a server listens: sockets in the file system, which outlive whoever made them unless they are removed.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gaudi_seam::Errno;

/// Why nobody can listen there.
#[derive(Debug)]
pub(crate) enum Error {
    /// Somebody does already.
    Taken,
    /// A file is there that is no socket.
    NoSocket,
    /// The system says no.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("another server does"),
            Self::NoSocket => f.write_str("it is there and is no socket"),
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
pub(crate) struct Places(Mutex<Vec<PathBuf>>);

impl Places {
    /// Listens; a socket that a server before left behind is replaced, one that a server listens on and any other file are not.
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
        paths.push(path.to_owned());
        Ok(listener)
    }

    /// Removes the sockets.
    pub(crate) fn remove(&self) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths.drain(..) {
            let _ = fs::remove_file(path); // somebody else may have
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.remove();
    }
}

// Whether a socket belongs to a process. To connect as a guest would be to be one, and to end a server of one guest: a socket of another kind
// is refused either way, and told apart (net/unix/af_unix.c `unix_find_bsd`).
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
