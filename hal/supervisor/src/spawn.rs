//! Starts the program with the filter.

#![expect(unsafe_code, reason = "code that runs between fork(2) and execve(2)")]

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use nix::errno::Errno;
use nix::libc;

use crate::error::Error;
use crate::filter::Filter;
use crate::notify::Listener;

/// The child's message if it has no filter. Otherwise, the message has the descriptor.
const NO_FILTER: &[u8; 1] = b"n";

/// Starts the program. It is killed when this thread ends.
pub(crate) fn spawn(mut command: Command) -> Result<(Child, Listener), Error> {
    let filter = Filter::new();
    let (ours, theirs) = UnixStream::pair().map_err(Error::Spawn)?;
    let parent = std::process::id();
    let prepare = move || -> io::Result<()> {
        // SAFETY: takes numbers. nix's wrapper is behind a feature.
        let answer = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
        Errno::result(answer)?;
        // The signal is not sent if the parent ended before the request.
        if std::os::unix::process::parent_id() != parent {
            return Err(Errno::ESRCH.into());
        }
        let listener = match filter.install() {
            Ok(listener) => listener,
            Err(errno) => {
                let _ = send_with_fds(&theirs, NO_FILTER, &[]);
                return Err(errno.into());
            }
        };
        send_with_fds(&theirs, b"l", &[listener.as_fd()])?;
        Ok(())
    };
    // SAFETY: the closure makes system calls on data prepared before the fork. It does not allocate
    // and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let spawned = command.spawn();
    // The socket's end of the child is closed with `command`, so a missing message is detected.
    drop(command);
    let child = match spawned {
        Ok(child) => child,
        Err(error) => {
            let mut message = [0];
            let received = receive_with_fds(&ours, &mut message);
            return Err(match (received, error.raw_os_error()) {
                (Ok((1, _)), Some(raw)) if message == *NO_FILTER => {
                    Error::System("seccomp(2)", Errno::from_raw(raw))
                }
                _ => Error::Spawn(error),
            });
        }
    };
    let (_, fds) = receive_with_fds(&ours, &mut [0]).map_err(|errno| Error::System("recvmsg(2)", errno))?;
    let listener = fds.into_iter().next();
    let listener = listener.ok_or(Error::System("seccomp(2)", Errno::EBADF))?;
    Ok((child, Listener::new(listener)))
}
