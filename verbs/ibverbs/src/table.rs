//! [`Table`]: objects by handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gaudi_seam::Result;
use gaudi_sys::IgnorePoison;

use crate::errors::{in_use, missing};

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    rows: RwLock<HashMap<u32, Arc<T>>>,
    next: AtomicU32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            rows: RwLock::default(),
            next: AtomicU32::new(1),
        }
    }
}

impl<T> Table<T> {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, Arc<T>>> {
        self.rows.read().ignore_poison()
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u32, Arc<T>>> {
        self.rows.write().ignore_poison()
    }

    /// Returns an unused handle for a new object.
    pub(crate) fn number(&self) -> u32 {
        let rows = self.read();
        loop {
            // Handles repeat after 2^32 objects, except those of live ones.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number != 0 && !rows.contains_key(&number) {
                return number;
            }
        }
    }

    /// Stores an object under its handle.
    pub(crate) fn put(&self, number: u32, object: Arc<T>) {
        self.write().insert(number, object);
    }

    /// Stores an object under a new handle.
    pub(crate) fn insert(&self, object: T) -> u32 {
        let number = self.number();
        self.put(number, Arc::new(object));
        number
    }

    /// Returns a reference to an object.
    pub(crate) fn get(&self, operation: &'static str, number: u32) -> Result<Arc<T>> {
        self.read()
            .get(&number)
            .cloned()
            .ok_or_else(|| missing(operation))
    }

    /// Calls a closure with an object, which cannot be taken meanwhile.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        operation: &'static str,
        number: u32,
        look: impl FnOnce(&T) -> R,
    ) -> Result<R> {
        match self.read().get(&number) {
            Some(object) => Ok(look(object)),
            None => Err(missing(operation)),
        }
    }

    /// Removes an object in order to destroy it. `InUse` while a reference to it exists.
    pub(crate) fn take(&self, operation: &'static str, number: u32) -> Result<T> {
        let mut rows = self.write();
        let object = rows.remove(&number).ok_or_else(|| missing(operation))?;
        Arc::try_unwrap(object).map_err(|object| {
            rows.insert(number, object);
            in_use(operation)
        })
    }

    /// Removes an object and destroys it. Stores it again if that failed.
    pub(crate) fn destroy(
        &self,
        operation: &'static str,
        number: u32,
        destroy: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        let mut object = self.take(operation, number)?;
        // Outside the lock: it may take seconds.
        destroy(&mut object).inspect_err(|_| self.put(number, Arc::new(object)))
    }

    /// Removes all objects, in no order.
    pub(crate) fn drain(&self) -> Vec<Arc<T>> {
        std::mem::take(&mut *self.write()).into_values().collect()
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_seam::{Errno, Error, ErrorKind};

    #[test]
    fn stale_handle_is_an_error() {
        let table = Table::default();
        let first = table.insert("a");
        assert_eq!(table.take("x", first).expect("it is there"), "a");
        let again = table.insert("b");
        assert_ne!(first, again, "numbers are new");
        let error = table.get("x", first).expect_err("it was taken");
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL))
        );
    }

    #[test]
    fn object_in_use_is_not_destroyed() {
        let table = Table::default();
        let number = table.insert(7);
        let held = table.get("x", number).expect("it is there");
        let error = table.take("x", number).expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(held);
        let refused = table.destroy("x", number, |_| Err(Error::from_errno("x", Errno::EBUSY)));
        assert!(refused.is_err(), "the kernel's error is returned");
        assert_eq!(table.with("x", number, |seven| *seven).expect("it stayed"), 7);
        table.destroy("x", number, |_| Ok(())).expect("destroyed");
        assert_eq!(table.len(), 0);
    }
}
