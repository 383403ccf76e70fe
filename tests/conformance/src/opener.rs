//! Opens the real driver's compute node in a separate process.
//!
//! At a hard reset the driver kills the process that opened the card if it does not close it within
//! a second (common/device.c:device_kill_open_processes). It knows that process by its number
//! alone. So a helper process opens the node, passes the descriptor on, and is killed. The runner
//! survives and observes the driver's answers on an open node of a card in reset.

#![expect(
    unsafe_code,
    reason = "a child opens the node between fork and exec; the system's calls are passed on"
)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gaudi_kernel::{Syscalls, System};
use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use gaudi_sys::{Errno, RawMapping, SysResult};
use nix::fcntl::{OFlag, open};
use nix::libc::SIGKILL;
use nix::sys::stat::Mode;

/// The system's calls; each `open` runs in a process of its own.
#[derive(Debug, Default)]
pub(crate) struct Openers(Mutex<Vec<Child>>);

impl Openers {
    fn lock(&self) -> MutexGuard<'_, Vec<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the newest opener was killed.
    fn is_killed(&self) -> bool {
        let newest = self.lock().last_mut().map(Child::try_wait);
        matches!(newest, Some(Ok(Some(status))) if status.signal() == Some(SIGKILL))
    }

    /// Waits until the driver has killed the newest opener.
    pub(crate) fn wait_killed(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        while !self.is_killed() {
            if begin.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Opens a node in a new opener and receives it.
    fn pass(
        &self,
        open_node: impl Fn() -> nix::Result<OwnedFd> + Send + Sync + 'static,
    ) -> SysResult<OwnedFd> {
        let (ours, theirs) = UnixStream::pair().map_err(errno_of)?;
        // `cat` lives until its standard input ends.
        let mut opener = Command::new("cat");
        opener
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let open_and_pass = move || {
            let node = open_node()?;
            send_with_fds(&theirs, b"x", &[node.as_fd()])?;
            Ok(())
        };
        // SAFETY: the child makes three system calls on data prepared before the fork. It does not
        // allocate and takes no lock. exec closes its copy of the node.
        unsafe { opener.pre_exec(open_and_pass) };
        // An error of the child's open is returned by `spawn`.
        let mut child = opener.spawn().map_err(errno_of)?;
        // The command owns this process's copy of `theirs`. While that copy is open, a receive from
        // an opener that was killed before it sent the node never ends.
        drop(opener);
        let received = receive_with_fds(&ours, &mut [0]);
        match received.map(|(_, nodes)| nodes.into_iter().next()) {
            Ok(Some(node)) => {
                self.lock().push(child);
                Ok(node)
            }
            Err(errno) => {
                end(child);
                Err(errno)
            }
            Ok(None) => match child.wait() {
                // The driver kills the process of a node that was opened as a reset began, perhaps
                // before it has sent the node.
                Ok(status) if status.signal() == Some(SIGKILL) => Err(Errno::EAGAIN),
                status => {
                    eprintln!("the opener ended before it sent the node: {status:?}");
                    Err(Errno::EIO)
                }
            },
        }
    }

    /// Ends the remaining openers. Returns the number of those that had been killed.
    pub(crate) fn retire(&self) -> usize {
        let ended = self.lock().drain(..).map(end).collect::<Vec<_>>();
        ended.into_iter().filter(|killed| *killed).count()
    }
}

/// Ends an opener by closing its standard input. Returns whether it had been killed.
fn end(mut child: Child) -> bool {
    // `wait` closes standard input first.
    matches!(child.wait(), Ok(status) if status.signal() == Some(SIGKILL))
}

impl Drop for Openers {
    fn drop(&mut self) {
        self.retire();
    }
}

fn errno_of(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl Syscalls for Openers {
    fn open(&self, path: &Path) -> SysResult<OwnedFd> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.pass(move || open(path.as_c_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()))
    }

    unsafe fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        // SAFETY: the caller meets the same contract.
        unsafe { System.ioctl(fd, request, args) }
    }

    fn mmap(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping> {
        System.mmap(fd, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_outlives_its_opener() {
        let openers = Openers::default();
        let node = openers.open(Path::new("/dev/zero")).expect("it opens");
        assert!(!openers.is_killed(), "the opener is alive");
        let opener = openers.lock().last().map(Child::id).expect("an opener");
        let mut held = std::fs::read_dir(format!("/proc/{opener}/fd"))
            .expect("its directory in /proc")
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        assert!(
            !held.any(|file| file == Path::new("/dev/zero")),
            "the opener's own copy of the node is still open"
        );
        let kill = openers.lock().last_mut().map(Child::kill);
        assert!(
            matches!(kill, Some(Ok(()))),
            "the opener could not be killed: {kill:?}"
        );
        assert!(
            openers.wait_killed(Duration::from_secs(60)),
            "the kill was not detected"
        );
        assert_eq!(
            nix::unistd::read(&node, &mut [1]),
            Ok(1),
            "the node is still open"
        );
        let refused = openers.open(Path::new("/nowhere/at/all"));
        assert_eq!(refused.map(drop), Err(Errno::ENOENT));
        assert_eq!(openers.retire(), 1, "the number of killed openers");
        let dead = openers.pass(|| std::process::abort());
        assert_eq!(
            dead.map(drop),
            Err(Errno::EIO),
            "an opener that died before it sent the node"
        );
        let killed = openers.pass(|| {
            // SAFETY: the call has no memory, and the child ends in it.
            unsafe { nix::libc::raise(SIGKILL) };
            Err(Errno::EPERM)
        });
        assert_eq!(
            killed.map(drop),
            Err(Errno::EAGAIN),
            "the driver kills in a reset"
        );
        openers.open(Path::new("/dev/null")).expect("it opens");
        assert_eq!(
            openers.retire(),
            0,
            "an opener that was not killed is not counted"
        );
    }
}
