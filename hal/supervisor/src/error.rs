//! [`Error`]: why a program cannot be supervised.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Why a program cannot be supervised.
#[derive(Debug)]
pub enum Error {
    /// The program could not be started.
    Spawn(io::Error),
    /// A system call failed. `EINVAL` of seccomp(2) means that the kernel lacks user notification.
    System(&'static str, Errno),
    /// A device spec does not open.
    Device(gaudi_hal::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawn(error) => write!(f, "cannot start the program: {error}"),
            Self::System(call, errno) => {
                write!(f, "{call} failed: {errno}")?;
                f.write_str(match (*call, *errno) {
                    ("seccomp(2)", Errno::EBUSY) => {
                        "; another supervisor, such as gaudi run, has this process: run outside of it"
                    }
                    ("seccomp(2)", Errno::EINVAL | Errno::ENOSYS) => {
                        "; the kernel lacks user notification: use Linux 5.14 or later"
                    }
                    _ => "",
                })
            }
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
