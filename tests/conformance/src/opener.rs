//! The real driver's compute node, opened by a process of its own.
//!
//! At a hard reset the driver kills whoever opened the card, if they have not closed it after a second (common/device.c:1443). It knows
//! them by the opener's process number alone. So a process is there for the sake of opening: it passes the descriptor on, and takes the
//! kill. Who runs the cases lives, and sees what the driver answers to an open node of a card in reset, which is what a mock's user sees.

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

/// The system's calls, but for `open`, which a process of its own does each time.
#[derive(Debug, Default)]
pub(crate) struct Openers(Mutex<Vec<Child>>);

impl Openers {
    fn lock(&self) -> MutexGuard<'_, Vec<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the newest opener was killed by now.
    fn is_killed(&self) -> bool {
        let newest = self.lock().last_mut().map(Child::try_wait);
        matches!(newest, Some(Ok(Some(status))) if status.signal() == Some(SIGKILL))
    }

    /// Waits until the driver has killed the newest opener.
    pub(crate) fn wait_killed(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        while !self.is_killed() {
            if begin.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Ends the openers that are left; how many of them had been killed.
    pub(crate) fn retire(&self) -> usize {
        let ended = self.lock().drain(..).map(end).collect::<Vec<_>>();
        ended.into_iter().filter(|killed| *killed).count()
    }
}

/// Lets one end, which its standard input's end makes it do; whether it had been killed.
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
        let (ours, theirs) = UnixStream::pair().map_err(errno_of)?;
        // It lives until its standard input ends.
        let mut opener = Command::new("cat");
        opener
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let open_and_pass = move || {
            let node = open(path.as_c_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
            send_with_fds(&theirs, b"x", &[node.as_fd()])?;
            Ok(())
        };
        // SAFETY: the child makes three system calls on what was prepared before the fork; it allocates nothing and takes no lock.
        // Its copy of the node is closed by exec.
        unsafe { opener.pre_exec(open_and_pass) };
        // What the child's open was answered comes back as the answer of `spawn`.
        let child = opener.spawn().map_err(errno_of)?;
        self.lock().push(child);
        let (_, nodes) = receive_with_fds(&ours, &mut [0])?;
        nodes.into_iter().next().ok_or(Errno::EIO)
    }

    unsafe fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        // SAFETY: the caller's promise is passed on as it is.
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
    fn the_node_outlives_its_opener_and_a_refusal_comes_back() {
        let openers = Openers::default();
        let node = openers.open(Path::new("/dev/zero")).expect("it opens");
        assert!(!openers.is_killed(), "the opener waits");
        let opener = openers.lock().last().map(Child::id).expect("an opener");
        let mut held = std::fs::read_dir(format!("/proc/{opener}/fd"))
            .expect("it is there")
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        assert!(
            !held.any(|file| file == Path::new("/dev/zero")),
            "it has passed the node on"
        );
        let kill = openers.lock().last_mut().map(Child::kill);
        assert!(matches!(kill, Some(Ok(()))), "it can be killed: {kill:?}");
        assert!(openers.wait_killed(Duration::from_secs(60)), "that is seen");
        assert_eq!(
            nix::unistd::read(&node, &mut [1]),
            Ok(1),
            "the node is open still"
        );
        let refused = openers.open(Path::new("/nowhere/at/all"));
        assert_eq!(refused.map(drop), Err(Errno::ENOENT));
        assert_eq!(openers.retire(), 1, "one was killed, none other was there");
        openers.open(Path::new("/dev/null")).expect("it opens");
        assert_eq!(openers.retire(), 0, "this one just ends");
    }
}
