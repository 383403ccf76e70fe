//! The sockets that a server listens on. A socket file outlives its process unless it is removed.

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

/// The reason why a socket cannot be created at a path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another server listens there.
    #[error("another server does")]
    Taken,
    /// The file exists and is not a socket.
    #[error("it exists and is not a socket")]
    NotASocket,
    /// The system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The sockets of this process, removed on drop.
#[derive(Debug, Default)]
pub(crate) struct Sockets(Mutex<Vec<Socket>>);

/// A socket of this process. The descriptor prevents reuse of its inode number.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    socket: OwnedFd,
}

impl Socket {
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

impl Sockets {
    /// Listens at `path`. Replaces a socket that an earlier server left, but neither a socket in
    /// use nor another file.
    pub(crate) fn listen(&self, path: &Path) -> Result<UnixListener, Error> {
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(Error::NotASocket);
            }
            if is_taken(path)? {
                return Err(Error::Taken);
            }
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.push(Socket::of(path)?);
        Ok(listener)
    }

    /// Removes the sockets of this process, but no socket that another server bound at their paths
    /// later.
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

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

// Whether a process listens on the socket. A stream connection would count as a guest and end a
// server with --once. A datagram connection is refused in both cases, with different errnos
// (net/unix/af_unix.c `unix_find_bsd`).
fn is_taken(path: &Path) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ECONNREFUSED as i32) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::EPROTOTYPE as i32) => Ok(true),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

/// Whether two paths name the same file.
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
        let (first, second) = (Sockets::default(), Sockets::default());
        drop(first.listen(&path).expect("free"));
        // The first server has closed its socket and not yet removed it when the second one starts.
        let _listener = second.listen(&path).expect("no process listens there");
        first.remove();
        UnixStream::connect(&path).expect("the second server listens");
        second.remove();
        assert!(!path.exists(), "a server removes its own socket");
    }
}
