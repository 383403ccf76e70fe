//! Handles that programs hold: numbers, so that an invalid one is an error and not a fault.
//!
//! A lookup locks the handle's slot alone, so two threads that copy share no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gaudi_sys::{Errno, lock};

use crate::guard::Failure;

/// Bits of a handle for the slot, and above them those for the kind of the table.
const SLOT_BITS: u32 = 16;
const KIND_BITS: u32 = 8;

/// The most handles of one kind.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;

/// What a handle stands for.
pub(crate) trait Object: 'static {
    /// A number of its own, in every handle.
    const KIND: u8;
    /// Its name in messages.
    const NAME: &'static str;
}

/// The live objects of one kind. Zeros at first, so that it needs no bytes in the library's file.
pub(crate) struct Table<T: Object> {
    slots: [RwLock<Slot<T>>; SLOTS],
    free: Mutex<Free>,
}

struct Slot<T> {
    /// Of the live handle. Handles are never used again: each has another generation.
    generation: u64,
    object: Option<Arc<T>>,
    /// Of a free slot: the next one, as `Free::first`.
    next: usize,
}

/// The free slots: those from `used` on, and a list.
struct Free {
    used: usize,
    /// One more than the number of the first slot of the list; 0 if it is empty.
    first: usize,
}

static GENERATION: AtomicU64 = AtomicU64::new(1);

impl<T: Object> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const {
                RwLock::new(Slot {
                    generation: 0,
                    object: None,
                    next: 0,
                })
            }; SLOTS],
            free: Mutex::new(Free { used: 0, first: 0 }),
        }
    }

    /// Makes a handle of an object, which is never 0.
    ///
    /// # Errors
    /// `EMFILE`: too many handles.
    pub(crate) fn add(&self, object: Arc<T>) -> Result<u64, Failure> {
        let mut free = lock(&self.free);
        let (slot, is_new) = match free.first.checked_sub(1) {
            Some(slot) => (slot, false),
            None if free.used < SLOTS => (free.used, true),
            None => {
                let message = format!("{SLOTS} handles of a {} are open", T::NAME);
                return Err(Failure::new(Errno::EMFILE, message));
            }
        };
        let mut place = self.slots[slot].write().unwrap_or_else(PoisonError::into_inner);
        match is_new {
            true => free.used += 1,
            false => free.first = place.next,
        }
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        *place = Slot {
            generation,
            object: Some(object),
            next: 0,
        };
        Ok(generation << (SLOT_BITS + KIND_BITS) | u64::from(T::KIND) << SLOT_BITS | slot as u64)
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    /// `EBADF`: not a live handle of this kind.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let slot = self.slots[handle as usize % SLOTS].read();
        let slot = slot.unwrap_or_else(PoisonError::into_inner);
        match &slot.object {
            Some(object) if Self::is_of(handle, slot.generation) => Ok(Arc::clone(object)),
            _ => Err(Self::unknown(handle)),
        }
    }

    /// Ends a handle. `take` may refuse, and the handle stays then.
    ///
    /// # Errors
    /// `EBADF`: not a live handle of this kind. The failure of `take`.
    pub(crate) fn remove<R>(
        &self,
        handle: u64,
        take: impl FnOnce(&mut Option<Arc<T>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let at = handle as usize % SLOTS;
        let mut slot = self.slots[at].write().unwrap_or_else(PoisonError::into_inner);
        if slot.object.is_none() || !Self::is_of(handle, slot.generation) {
            return Err(Self::unknown(handle));
        }
        let answer = take(&mut slot.object)?;
        slot.object = None;
        drop(slot);
        let mut free = lock(&self.free);
        let mut slot = self.slots[at].write().unwrap_or_else(PoisonError::into_inner);
        slot.next = std::mem::replace(&mut free.first, at + 1);
        Ok(answer)
    }

    fn is_of(handle: u64, generation: u64) -> bool {
        handle >> SLOT_BITS == generation << KIND_BITS | u64::from(T::KIND)
    }

    #[cold]
    fn unknown(handle: u64) -> Failure {
        Failure::new(
            Errno::EBADF,
            format!("{handle:#x} is not a handle of an open {}", T::NAME),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Object for u32 {
        const KIND: u8 = 1;
        const NAME: &'static str = "first";
    }
    impl Object for u64 {
        const KIND: u8 = 2;
        const NAME: &'static str = "second";
    }
    static FIRST: Table<u32> = Table::new();
    static SECOND: Table<u64> = Table::new();

    #[test]
    fn closed_and_foreign_handles_fail() {
        let handle = FIRST.add(Arc::new(7)).expect("room");
        assert_ne!(handle, 0);
        assert_eq!(FIRST.get(handle).map(|value| *value).expect("live"), 7);
        for foreign in [0, 1, handle ^ 1, handle ^ 1 << 16, handle ^ 1 << 24, u64::MAX] {
            assert!(FIRST.get(foreign).is_err(), "{foreign:#x}");
        }
        assert!(SECOND.get(handle).is_err(), "of another kind");
        let refused = FIRST.remove(handle, |_| Err::<(), _>(Failure::invalid("in use")));
        assert!(refused.is_err());
        assert!(FIRST.get(handle).is_ok(), "a refused removal keeps it");
        FIRST.remove(handle, |_| Ok(())).expect("removed");
        let next = FIRST.add(Arc::new(8)).expect("room");
        assert_eq!(next as u16, handle as u16, "the slot is used again");
        assert!(FIRST.get(handle).is_err(), "the old handle stays invalid");
        let closed = FIRST.remove(handle, |_| Ok(()));
        assert_eq!(closed.expect_err("closed").errno, Errno::EBADF);
    }
}
