//! Limits of the calling process (getrlimit(2)).

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::SysResult;

/// A limit in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `RLIM_INFINITY`.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
}

/// Memory that may be pinned (`RLIMIT_MEMLOCK`, the soft limit).
pub fn memlock() -> SysResult<Limit> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    Ok(if soft == RLIM_INFINITY {
        Limit::Unlimited
    } else {
        Limit::Bytes(soft)
    })
}
