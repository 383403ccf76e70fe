//! Starts a program under the tracer from its first instruction: the child waits between fork(2)
//! and execve(2) until the tracer has attached.

#![expect(unsafe_code, reason = "code that runs between fork(2) and execve(2)")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::unistd::pipe2;

use crate::error::{Error, ErrorKind};
use crate::process;

/// Starts `command`. Calls `follow` with the child's id before the program runs, then runs
/// `prepare` in the child.
///
/// `prepare` runs after fork(2) in a process with threads, so it must be async-signal-safe.
pub(crate) fn spawn(
    mut command: Command,
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    follow: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<Child, Error> {
    let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|errno| Error::system("pipe2(2)", errno));
    let (ready, in_child) = pipe()?;
    let (wait, go) = pipe()?;
    let go_number = go.as_raw_fd();
    let gate = move || {
        // Close this copy: otherwise the pipe stays open when the tracer dies, and the child waits
        // forever.
        // SAFETY: the descriptor is the child's own copy, and nothing else uses it.
        unsafe { libc::close(go_number) };
        hand_over(&in_child, &wait)?;
        prepare()
    };
    // SAFETY: the closure only makes system calls and does not allocate.
    unsafe { command.pre_exec(gate) };
    // `Command::spawn` returns after execve(2), so it is called on another thread.
    let (started, starter) = mpsc::channel();
    thread::spawn(move || {
        let child = command.spawn();
        let pid = child.as_ref().ok().map(Child::id);
        // The receiver waits for this message.
        started.send(child).unwrap_or(());
        // The program's parent is this thread: if the thread ended first, the program would get its
        // parent death signal (PR_SET_PDEATHSIG, prctl(2)).
        if let Some(pid) = pid {
            process::wait_for_end(pid);
        }
    });
    let mut pid = [0; 4];
    let followed = match File::from(ready).read_exact(&mut pid) {
        Ok(()) => follow(u32::from_ne_bytes(pid)),
        // The child died before it reported its id; `spawn` returns the cause.
        Err(_) => Ok(()),
    };
    let mut go = File::from(go);
    if followed.is_ok() {
        // If the child is already dead, `spawn` reports it.
        go.write_all(b"g").unwrap_or(());
    }
    drop(go);
    let started = starter
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("Command::spawn panicked")));
    followed?;
    started.map_err(|error| Error::new(ErrorKind::Spawn, error))
}

/// Reports the child's id, and waits until the tracer has attached. Runs in the child.
fn hand_over(ready: &OwnedFd, wait: &OwnedFd) -> io::Result<()> {
    let pid = std::process::id().to_ne_bytes();
    nix::unistd::write(ready, &pid)?;
    let mut byte = [0];
    loop {
        match nix::unistd::read(wait, &mut byte) {
            Ok(1) => return Ok(()),
            // The tracer could not attach, or died.
            Ok(_) => return Err(io::Error::from(Errno::ECANCELED)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
