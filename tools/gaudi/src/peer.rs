//! The second process of a command: the same program, joined by a socket at its standard input.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use gaudi::verbs::Stream as _;

/// A process of this program; it ends when its socket does.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts this program with the socket as its standard input, after `prepare` added arguments.
    pub(crate) fn spawn(socket: UnixStream, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program to start the other node")?;
        let mut command = Command::new(program);
        prepare(&mut command);
        command
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stdout(Stdio::null());
        Ok(Self(command.spawn().context("starting the other node")?))
    }

    /// Waits for its end. Returns its exit status if it failed.
    pub(crate) fn wait(&mut self) -> Option<String> {
        match self.0.wait() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // An early return has closed the socket; a process that still runs is stuck.
        if matches!(self.0.try_wait(), Ok(None)) {
            // It may have ended since.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Returns the socket at the standard input of a process that [`Peer::spawn`] started.
///
/// # Errors
/// Standard input is not a socket: the process was started by hand.
pub(crate) fn stdin_socket(command: &str) -> Result<UnixStream> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = UnixStream::from(stdin.context("standard input")?);
    socket.set_timeout(None).with_context(|| {
        format!("standard input is not a socket: this process is started by gaudi {command}, not by hand")
    })?;
    Ok(socket)
}
