//! Descriptors of other processes (pidfd_open(2), pidfd_getfd(2); Linux 5.6).

#![expect(unsafe_code, reason = "libc has no wrapper for these system calls")]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

use crate::{Errno, SysResult};

/// Returns a descriptor of a process, close-on-exec.
///
/// # Errors
/// - `ESRCH`: there is no process of that number.
/// - `EINVAL`: the number is 0 or too large.
pub fn open(pid: u32) -> SysResult<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::EINVAL)?;
    // SAFETY: takes two numbers and touches no memory.
    own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Returns a duplicate of descriptor `number` of that process, close-on-exec.
///
/// # Errors
/// - `EPERM`: ptrace(2) is not allowed.
/// - `EBADF`: the process has no such descriptor.
/// - `ESRCH`: the process has ended.
pub fn getfd(process: impl AsFd, number: u32) -> SysResult<OwnedFd> {
    let number = libc::c_int::try_from(number).map_err(|_| Errno::EBADF)?;
    let process = process.as_fd().as_raw_fd();
    // SAFETY: takes three numbers and touches no memory; the process's descriptor is open for the
    // whole call.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) })
}

fn own(answer: libc::c_long) -> SysResult<OwnedFd> {
    let number = libc::c_int::try_from(Errno::result(answer)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: a successful call returns a new descriptor that only this process owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memfd, fd::file_id};

    #[test]
    fn a_fetched_descriptor_is_the_same_file() {
        let file = Memfd::sparse(c"fetched", 4096).unwrap();
        let me = open(std::process::id()).unwrap();
        let number = u32::try_from(file.as_fd().as_raw_fd()).unwrap();
        // A container may forbid the call altogether (seccomp answers EPERM or ENOSYS): that is an
        // answer too, but no other.
        match getfd(&me, number) {
            Ok(fd) => assert_eq!(file_id(&fd), file_id(&file)),
            Err(errno) => assert!(matches!(errno, Errno::EPERM | Errno::ENOSYS), "{errno}"),
        }
        assert_eq!(open(u32::MAX).unwrap_err(), Errno::EINVAL);
        assert_eq!(open(0).unwrap_err(), Errno::EINVAL, "no process has number 0");
    }
}
