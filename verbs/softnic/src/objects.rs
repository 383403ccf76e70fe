//! [`Objects`]: the objects of one kind by handle.

use std::collections::HashMap;

use gaudi_seam::Result;

use crate::error::{full, missing};

/// At most `limit` objects of one kind.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    pub(crate) rows: HashMap<u32, T>,
    /// What the objects are called in errors, in the singular.
    name: &'static str,
    limit: u32,
    last: u32,
}

impl<T> Objects<T> {
    /// Returns an empty table. Handles count from `first`.
    pub(crate) fn new(name: &'static str, limit: u32, first: u32) -> Self {
        Self {
            rows: HashMap::new(),
            name,
            limit,
            last: first,
        }
    }

    /// Adds the object that `make` returns for a new handle of 24 bits. Returns the handle.
    pub(crate) fn insert(
        &mut self,
        operation: &'static str,
        make: impl FnOnce(u32) -> Result<T>,
    ) -> Result<u32> {
        if self.rows.len() >= self.limit as usize {
            return Err(full(operation, &format!("{}s", self.name), self.limit));
        }
        loop {
            self.last = self.last.wrapping_add(1) & 0xff_ffff;
            // 0 and 1 are the management queue pairs of a real NIC.
            if self.last > 1 && !self.rows.contains_key(&self.last) {
                break;
            }
        }
        self.rows.insert(self.last, make(self.last)?);
        Ok(self.last)
    }

    /// Returns an object, or the error for a handle that names no object.
    pub(crate) fn find(&mut self, operation: &'static str, handle: u32) -> Result<&mut T> {
        self.rows
            .get_mut(&handle)
            .ok_or_else(|| missing(operation, self.name))
    }

    /// Removes an object.
    pub(crate) fn take(&mut self, operation: &'static str, handle: u32) -> Result<T> {
        self.rows
            .remove(&handle)
            .ok_or_else(|| missing(operation, self.name))
    }
}
