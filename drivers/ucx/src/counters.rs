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

/// UCX or Open MPI moves bytes to or from device memory with a copy.
pub(crate) fn copied(bytes: u64) {
    COPIES.fetch_add(1, Relaxed);
    COPIED_BYTES.fetch_add(bytes, Relaxed);
}

/// Bytes of a copy pass through pinned memory of the plugin.
pub(crate) fn staged(bytes: u64) {
    STAGED_BYTES.fetch_add(bytes, Relaxed);
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
