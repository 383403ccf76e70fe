//! Limits of the calling process (getrlimit(2)).

use std::fs::File;
use std::os::fd::AsRawFd as _;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::SysResult;
use crate::fd::errno_of;

/// A limit in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `RLIM_INFINITY`.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
}

/// Returns the memory that may be pinned (`RLIMIT_MEMLOCK`, the soft limit).
///
/// # Errors
/// getrlimit(2)'s.
pub fn memlock() -> SysResult<Limit> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    Ok(if soft == RLIM_INFINITY {
        Limit::Unlimited
    } else {
        Limit::Bytes(soft)
    })
}

/// Runs a call with `RLIMIT_NOFILE` so low that no descriptor can be opened: what the call opens
/// fails with `EMFILE`. The limit holds for all threads.
///
/// # Errors
/// getrlimit(2)'s and setrlimit(2)'s.
pub fn without_descriptors<T>(call: impl FnOnce() -> T) -> SysResult<T> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // The lowest number that is free is the first that the limit forbids; those below it are all
    // taken.
    let lowest = File::open("/dev/null").map_err(errno_of)?;
    // A descriptor is never negative.
    let limit = u64::try_from(lowest.as_raw_fd()).unwrap_or(soft);
    drop(lowest);
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard)?;
    // However the call ends: a panic in it must not leave the process without descriptors.
    let _restored = Restored { soft, hard };
    Ok(call())
}

struct Restored {
    soft: u64,
    hard: u64,
}

impl Drop for Restored {
    fn drop(&mut self) {
        // The soft limit may always be raised to what it was: the hard one was not touched.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, self.soft, self.hard);
    }
}
