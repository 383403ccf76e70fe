//! Starts the program with the filter.

#![expect(unsafe_code, reason = "code that runs between fork(2) and execve(2)")]

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use nix::libc;

use crate::error::Error;
use crate::filter::Filter;
use crate::notify::Listener;

/// Starts the program. It is killed when this thread ends.
pub(crate) fn spawn(mut command: Command) -> Result<(Child, Listener), Error> {
    let filter = Filter::new();
    let (ours, theirs) = UnixStream::pair().map_err(Error::Spawn)?;
    let prepare = move || -> io::Result<()> {
        // SAFETY: takes numbers. nix's wrapper is behind a feature.
        let answer = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
        nix::errno::Errno::result(answer)?;
        let listener = filter.install()?;
        send_with_fds(&theirs, b"l", &[listener.as_fd()])?;
        Ok(())
    };
    // SAFETY: the closure makes system calls on data prepared before the fork. It does not allocate
    // and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(Error::Spawn)?;
    // The socket's end of the child is closed with `command`, so a missing message is detected.
    drop(command);
    let (_, fds) = receive_with_fds(&ours, &mut [0]).map_err(|errno| Error::System("recvmsg(2)", errno))?;
    let listener = fds.into_iter().next();
    let listener = listener.ok_or(Error::System("seccomp(2)", nix::errno::Errno::EBADF))?;
    Ok((child, Listener::new(listener)))
}
