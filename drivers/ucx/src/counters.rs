//! What the plugin did, which `UCX_GAUDI_STATS=y` prints when the process ends.
//!
//! A transfer without a copy exports a dma-buf and copies nothing.

#![allow(unsafe_code, reason = "a function in the section of finalizers")]

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::cards::cards;
use crate::memory;
use crate::status::caught;

static IS_WANTED: AtomicBool = AtomicBool::new(false);
static COPIES: AtomicU64 = AtomicU64::new(0);
static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);
static STAGED_BYTES: AtomicU64 = AtomicU64::new(0);
static EXPORTS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The process prints its counters when it ends.
pub(crate) fn print_at_end() {
    IS_WANTED.store(true, Relaxed);
}

/// A copy of UCX or Open MPI to or from device memory succeeded. The bytes of a staged one passed
/// through host memory of the plugin.
pub(crate) fn copied(bytes: u64, is_staged: bool) {
    COPIES.fetch_add(1, Relaxed);
    COPIED_BYTES.fetch_add(bytes, Relaxed);
    if is_staged {
        STAGED_BYTES.fetch_add(bytes, Relaxed);
    }
}

/// The numbers of copies, copied bytes and staged bytes.
#[cfg(test)]
pub(crate) fn copies() -> [u64; 3] {
    [&COPIES, &COPIED_BYTES, &STAGED_BYTES].map(|number| number.load(Relaxed))
}

/// UCX takes a dma-buf.
pub(crate) fn exported() {
    EXPORTS.fetch_add(1, Relaxed);
}

/// Device memory is allocated.
pub(crate) fn allocated() {
    ALLOCATIONS.fetch_add(1, Relaxed);
}

/// The dynamic loader calls it when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINALIZER: extern "C" fn() = finalize;

extern "C" fn finalize() {
    if !IS_WANTED.load(Relaxed) {
        return;
    }
    caught("statistics", || {
        let line = format!(
            "libuct_gaudi: stats pid={} copies={} copied_bytes={} staged_bytes={} exports={} allocations={} nodes={} live={}\n",
            std::process::id(),
            COPIES.load(Relaxed),
            COPIED_BYTES.load(Relaxed),
            STAGED_BYTES.load(Relaxed),
            EXPORTS.load(Relaxed),
            ALLOCATIONS.load(Relaxed),
            cards().iter().filter(|card| card.is_open()).count(),
            memory::all().len(),
        );
        // The process ends, and a failed write cannot be reported.
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}
