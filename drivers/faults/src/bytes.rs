//! [`Bytes`]: the expected bytes of memory, in storage that later runs use again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Storage of the [`Bytes`] of a world. Sizes of some kilobytes are slow to allocate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool(Rc<RefCell<Vec<Vec<u8>>>>);

/// Bytes whose storage returns to the pool.
#[derive(Debug)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    pool: Pool,
}

impl Pool {
    fn take(&self) -> Bytes {
        let mut bytes = self.0.borrow_mut().pop().unwrap_or_default();
        bytes.clear();
        let pool = self.clone();
        Bytes { bytes, pool }
    }

    /// `len` times one byte.
    pub(crate) fn filled(&self, value: u8, len: usize) -> Bytes {
        let mut taken = self.take();
        taken.bytes.resize(len, value);
        taken
    }

    /// A copy of bytes.
    pub(crate) fn copy(&self, of: &[u8]) -> Bytes {
        let mut taken = self.take();
        taken.bytes.extend_from_slice(of);
        taken
    }

    /// A pattern that differs for each word: its first byte and its step.
    pub(crate) fn pattern(&self, first: u8, step: u8, len: usize) -> Bytes {
        let mut taken = self.filled(0, len);
        // Vectorized, because each part has one summand.
        for (part, bytes) in (0_u8..).zip(taken.bytes.chunks_mut(256)) {
            for (at, byte) in (0..=255_u8).zip(bytes) {
                *byte = first.wrapping_add(step.wrapping_mul(at)) ^ part;
            }
        }
        taken
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.pool.0.borrow_mut().push(std::mem::take(&mut self.bytes));
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
