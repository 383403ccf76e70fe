//! A value of each process: a fork child makes its own.
//!
//! A thread of the parent may hold the lock of the parent's value at the fork, and the child has no
//! thread that would release it.

#![allow(unsafe_code, reason = "a pointer to a value that lives as long as its owner")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork::OwnerProcess;

/// A value that each process makes at its first use. A fork child leaks its parent's value.
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    owner: OwnerProcess,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Returns a place for a value that no process has made yet.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the value of the calling process; `None` if it has made none. Takes no lock.
    #[inline]
    pub fn made(&self) -> Option<&T> {
        // SAFETY: null, or from `replace`; `Drop` alone frees it.
        let known = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        known
            .filter(|made| !made.owner.is_foreign())
            .map(|made| &made.value)
    }

    /// Returns the value of the calling process, which its first call makes. Takes no lock. Two
    /// threads may both call `make`; one value is dropped.
    #[inline]
    pub fn get_or(&self, make: impl FnOnce() -> T) -> &T {
        match self.made() {
            Some(value) => value,
            None => self.replace(make()),
        }
    }

    /// Replaces nothing or a parent's value.
    #[cold]
    fn replace(&self, value: T) -> &T {
        let owner = OwnerProcess::current();
        let known = self.current.load(Ordering::Acquire);
        // SAFETY: as in `made`.
        if unsafe { known.as_ref() }.is_some_and(|made| !made.owner.is_foreign()) {
            // SAFETY: as above.
            return unsafe { &(*known).value };
        }
        let new = Box::into_raw(Box::new(Made { owner, value }));
        let exchanged = self
            .current
            .compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
        match exchanged {
            // SAFETY: from here on `Drop` alone frees it.
            Ok(_) => unsafe { &(*new).value },
            Err(other) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this process put it there; `Drop` alone frees it.
                unsafe { &(*other).value }
            }
        }
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// As [`get_or`](Self::get_or), with the default value.
    #[inline]
    pub fn get(&self) -> &T {
        self.get_or(T::default)
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        // SAFETY: as in `made`.
        if unsafe { current.as_ref() }.is_some_and(|made| !made.owner.is_foreign()) {
            // SAFETY: `replace` made it of a box, and no reference outlives `self`.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn threads_share_one_value() {
        static COUNT: PerProcess<Mutex<u32>> = PerProcess::new();
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..100 {
                        *crate::lock(COUNT.get()) += 1;
                    }
                });
            }
        });
        assert_eq!(*crate::lock(COUNT.get()), 800);
    }

    #[test]
    fn fork_child_makes_its_own_value() {
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};
        let value = PerProcess::new();
        let mut held = crate::lock(value.get_or(|| Mutex::new(1)));
        // SAFETY: the child takes no lock that the parent holds, and ends itself.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: ends a child that waits for the lock.
                unsafe { nix::libc::alarm(20) };
                let is_new = value.made().is_none();
                let own = *crate::lock(value.get_or(|| Mutex::new(2)));
                // SAFETY: ends the child at once.
                unsafe { nix::libc::_exit(if is_new { own } else { 99 }) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 2)));
            }
        }
        *held += 1;
        drop(held);
        assert_eq!(
            *crate::lock(value.get_or(|| Mutex::new(3))),
            2,
            "the parent's stays"
        );
    }

    #[test]
    fn value_is_dropped_with_its_place() {
        let value = std::sync::Arc::new(());
        let place = PerProcess::new();
        assert_eq!(place.made(), None);
        place.get_or(|| std::sync::Arc::clone(&value));
        drop(place);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }
}
