//! Locks whose data stays valid when a thread panics.
//!
//! A mutex is poisoned when a thread panics while it holds the lock. Every critical section of this
//! workspace leaves its data whole between any two statements, so the poison carries no
//! information.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// The guard or value of a lock operation, poisoned or not: for `RwLock`, `Condvar`, `get_mut` and
/// `into_inner`.
pub trait IgnorePoison<T> {
    /// Returns the guard or value.
    fn ignore_poison(self) -> T;
}

impl<T> IgnorePoison<T> for LockResult<T> {
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_works_after_a_panic() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let panicked = scope.spawn(|| {
                let _guard = mutex.lock();
                panic!("with the lock held");
            });
            panicked.join().unwrap_err();
        });
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 1);
    }
}
