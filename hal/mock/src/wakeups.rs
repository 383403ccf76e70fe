//! Waking of waiters.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, MutexGuard};
use std::time::Duration;

/// How long a wait spins before it sleeps: longer than another thread's small copy, shorter than a
/// wake-up.
const SPINS: u32 = 256;

/// A condition variable whose waiters spin without the lock first, and whose wakers make no system
/// call if no waiter sleeps.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    changed: Condvar,
    /// Changed under the device's lock only.
    changes: AtomicU32,
    /// Changed under the device's lock only.
    sleepers: AtomicU32,
}

impl Wakeups {
    /// Wakes waiters after a change, with the device's lock. A waiter increments `sleepers` under
    /// this lock before it sleeps, so a waker that reads 0 need not notify.
    pub(crate) fn wake(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes waiters that sleep, with the lock or after it: a waiter that sleeps incremented
    /// `sleepers` before the caller took the lock.
    pub(crate) fn wake_all(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Spins for a short time, at most until the next change.
    pub(crate) fn spin(&self) {
        let seen = self.changes.load(Ordering::Acquire);
        for _ in 0..SPINS {
            if self.changes.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a change, at most for `pause`.
    pub(crate) fn sleep<'a, T>(&self, guard: MutexGuard<'a, T>, pause: Duration) -> MutexGuard<'a, T> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let guard = match self.changed.wait_timeout(guard, pause) {
            Ok((guard, _)) => guard,
            // As for the lock: the state is as good as without the panic.
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}
