//! Helpers for shared state: locks and reference counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not: each critical section of this crate leaves its value whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for the only owner. It works in a fork child too, where another thread may have
/// held the lock at the fork.
pub(crate) fn exclusive<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value of the last reference, or the reference and the number of others.
///
/// The others are counted once: they may be dropped at any time.
pub(crate) fn unwrap_last<T>(mut shared: Arc<T>) -> Result<T, (Arc<T>, usize)> {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(value) => return Ok(value),
            Err(still) => shared = still,
        }
        match Arc::strong_count(&shared) - 1 {
            0 => {}
            others => return Err((shared, others)),
        }
    }
}
