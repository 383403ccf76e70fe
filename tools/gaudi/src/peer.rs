//! The second process of a command: the same program, joined by a socket at its standard input.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use gaudi::verbs::Stream as _;

use crate::common::Common;
use crate::exit::Judged;

/// A process of this program; it ends when its socket is closed.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts this program with the socket as its standard input: a command's words, the verbosity
    /// of this process, and the arguments that `prepare` adds.
    pub(crate) fn spawn(
        socket: UnixStream,
        words: &[&str],
        common: &Common,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program to start the other node")?;
        let mut command = Command::new(program);
        command.args(words).args(vec!["-v"; common.verbose.into()]);
        prepare(&mut command);
        command
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stdout(Stdio::null());
        Ok(Self(command.spawn().context("starting the other node")?))
    }

    /// Waits for the process's end. Adds its failure to an error of this process that is not a
    /// verdict.
    pub(crate) fn finish<T>(mut self, name: &str, done: Result<T>) -> Result<T> {
        let how = match self.0.wait() {
            Ok(status) if status.success() => return done,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        done.map_err(|error| match error.is::<Judged>() {
            true => error,
            false => error.context(format!("{name} ended ({how})")),
        })
    }
}

/// Returns the options of the other process, which writes a trace of its own.
pub(crate) fn common_of_peer(common: &Common, suffix: &str) -> Common {
    let mut of_peer = common.clone();
    if let Some(trace) = &mut of_peer.trace {
        trace.as_mut_os_string().push(suffix);
    }
    of_peer
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
