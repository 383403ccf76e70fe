//! A value of each process: a fork child makes its own.
//!
//! A thread of the parent may hold the lock of the parent's value at the fork, and the child has no
//! thread that would release it.

#![allow(unsafe_code, reason = "a pointer to a value that is never freed")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gaudi_sys::fork::OwnerProcess;

/// A value that each process makes at its first use. It is never dropped.
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    owner: OwnerProcess,
    value: T,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            current: AtomicPtr::new(null_mut()),
        }
    }

    /// The value of the calling process. Takes no lock.
    pub(crate) fn get(&self) -> &'static T {
        let known = self.current.load(Ordering::Acquire);
        // SAFETY: null, or from `replace`, which never frees what it puts there.
        match unsafe { known.as_ref() } {
            Some(made) if !made.owner.is_foreign() => &made.value,
            _ => self.replace(known),
        }
    }

    /// Replaces `known`, which is null or a parent's.
    #[cold]
    fn replace(&self, known: *mut Made<T>) -> &'static T {
        let new = Box::into_raw(Box::new(Made {
            owner: OwnerProcess::current(),
            value: T::default(),
        }));
        let exchanged = self
            .current
            .compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
        match exchanged {
            // SAFETY: from here on it is never freed.
            Ok(_) => unsafe { &(*new).value },
            Err(other) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this process put it there, and it is never freed.
                unsafe { &(*other).value }
            }
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
                        *gaudi_sys::lock(COUNT.get()) += 1;
                    }
                });
            }
        });
        assert_eq!(*gaudi_sys::lock(COUNT.get()), 800);
    }
}
