//! The atomics, locks and thread locals of this crate: loom's under `cfg(loom)`, so that a model
//! can try every order of them.

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

// A number that no order depends on: not loom's there either.
pub(crate) use std::sync::atomic::AtomicU32 as Stamp;

/// What the lock guards is whole between any two statements under it, so that a panic elsewhere is
/// no reason to stop.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
