//! Files from Debian packages, unpacked into a cache without root and without changing the machine.
//!
//! - The cache is `${GAUDI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gaudi-hal}`, not `target/`: CI
//!   starts from a fresh clone. A tree lies under a SHA-256, and a later run needs no network.
//! - apt checks signatures and digests; it runs with its own state and configuration in the cache.
//! - If Debian no longer has a version, the nearest newer one is taken, and the run prints that.

mod apt;
mod bundle;
mod cache;
mod pins;
mod sources;
mod unpack;

pub(crate) use self::bundle::{Bundle, Pin, RELEASE, Release, Slice};
pub(crate) use self::cache::Cache;
pub(crate) use self::pins::{Headers, Judge, Pins};
