//! The atomics and locks of this crate: loom's under `cfg(loom)`, so that a model can try every
//! interleaving.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, fence},
    thread::yield_now,
};

use std::sync::PoisonError;

#[cfg(loom)]
pub(crate) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;
#[cfg(not(loom))]
pub(crate) type Guard<'a, T> = std::sync::MutexGuard<'a, T>;

// No ordering depends on a stamp, so it is not loom's.
pub(crate) use std::sync::atomic::AtomicU32 as Stamp;

/// Locks `mutex`, also after a panic: the guarded data is consistent between any two statements
/// under the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
