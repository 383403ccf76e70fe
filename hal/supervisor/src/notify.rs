//! [`Listener`]: receives system calls of the program and answers them (seccomp_unotify(2)).

#![expect(unsafe_code, reason = "ioctls of the listener take addresses")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout};

/// linux/seccomp.h: `SECCOMP_IOCTL_NOTIF_*`.
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const ID_VALID: libc::c_ulong = 0x4008_2102;
const ADD_FD: libc::c_ulong = 0x4018_2103;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`, Linux 6.6.
const SYNC_WAKE_UP: libc::c_ulong = 1;
/// `SECCOMP_ADDFD_FLAG_SEND`, Linux 5.14.
const ADD_AND_SEND: u32 = 1 << 1;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, Linux 5.5.
const CONTINUE: u32 = 1;

/// A system call of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    /// The thread, in this process's pid namespace.
    pub(crate) tid: u32,
    pub(crate) number: i32,
    pub(crate) arguments: [u64; 6],
}

/// How a system call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The kernel performs it.
    Continue,
    Value(i64),
    Errno(Errno),
    /// A descriptor was added, which ended the call.
    Sent,
}

impl From<Result<i64, Errno>> for Reply {
    fn from(result: Result<i64, Errno>) -> Self {
        result.map_or_else(Self::Errno, Self::Value)
    }
}

/// Receives the calls of the program and its descendants.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Whether `RECEIVE` ends with the last process that has the filter: Linux 6.11.
    ends: bool,
}

/// Whether a kernel's release is 6.11 or newer.
fn ends(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 11),
        _ => false,
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        // A kernel that hides its release is served with a poll before each call.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let listener = Self {
            fd,
            ends: ends(&release),
        };
        // Older kernels wake the supervisor on another processor, which only costs time.
        // SAFETY: the argument is a number.
        let _ = unsafe { libc::ioctl(listener.fd.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
        listener
    }

    /// Waits for a call. `None` if no process has the filter any more.
    pub(crate) fn receive(&self) -> Result<Option<Request>, Errno> {
        let mut polls = !self.ends;
        loop {
            if polls {
                let mut polled = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
                match nix::poll::poll(&mut polled, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
                let seen = polled[0].revents().unwrap_or(PollFlags::empty());
                if !seen.contains(PollFlags::POLLIN) {
                    if seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
                        return Ok(None);
                    }
                    continue;
                }
            }
            // SAFETY: all bytes zero are a valid notification, which the kernel requires.
            let mut seen: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes a notification of this size (RECEIVE has the size).
            let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), RECEIVE, &raw mut seen) };
            match Errno::result(answer) {
                Ok(_) => {
                    return Ok(Some(Request {
                        id: seen.id,
                        tid: seen.pid,
                        number: seen.data.nr,
                        arguments: seen.data.args,
                    }));
                }
                // Another thread received it, the caller died, or the last process ended. poll(2)
                // distinguishes these.
                Err(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN) => polls = true,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether no process has the filter any more. `false` on a kernel that does not report it
    /// (before Linux 5.9).
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.fd.as_fd(), PollFlags::empty())];
        // A failed poll(2) reports nothing.
        let _ = nix::poll::poll(&mut polled, PollTimeout::ZERO);
        let seen = polled[0].revents().unwrap_or(PollFlags::empty());
        seen.contains(PollFlags::POLLHUP)
    }

    /// Whether the call is still waiting: its thread is alive, and its id was not reused.
    pub(crate) fn is_valid(&self, request: &Request) -> bool {
        // SAFETY: the kernel reads 8 bytes.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), ID_VALID, &raw const request.id) };
        answer == 0
    }

    /// Ends a call.
    pub(crate) fn reply(&self, request: &Request, reply: Reply) {
        let (val, error, flags) = match reply {
            Reply::Continue => (0, 0, CONTINUE),
            Reply::Value(value) => (value, 0, 0),
            Reply::Errno(errno) => (0, -(errno as i32), 0),
            Reply::Sent => return,
        };
        let response = libc::seccomp_notif_resp {
            id: request.id,
            val,
            error,
            flags,
        };
        // The thread may have been killed meanwhile (ENOENT).
        // SAFETY: the kernel reads a response of this size.
        let _ = unsafe { libc::ioctl(self.fd.as_raw_fd(), SEND, &raw const response) };
    }

    /// Gives the program a duplicate of a descriptor, and returns its number there. With `ends` the
    /// call returns that number.
    pub(crate) fn add_fd(
        &self,
        request: &Request,
        fd: BorrowedFd<'_>,
        close_on_exec: bool,
        ends: bool,
    ) -> Result<i32, Errno> {
        let add = libc::seccomp_notif_addfd {
            id: request.id,
            flags: if ends { ADD_AND_SEND } else { 0 },
            // A descriptor of this process is not negative.
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads a struct of this size.
        Errno::result(unsafe { libc::ioctl(self.fd.as_raw_fd(), ADD_FD, &raw const add) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_compared_by_numbers() {
        for (release, expected) in [
            ("6.11.0", true),
            ("6.12-rc1-amd64\n", true),
            ("7.0.3", true),
            ("6.9.7-deb", false),
            ("5.10.0", false),
            ("", false),
        ] {
            assert_eq!(ends(release), expected, "{release:?}");
        }
    }
}
