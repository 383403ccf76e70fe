//! [`Bytes`]: the expected bytes of memory, in storage that later runs use again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// The most bytes of a buffer or a mapping.
pub(crate) const LARGEST: usize = 6000;
/// The places of the table at which bytes may begin.
const FIRSTS: usize = 4093;
/// Random bytes. They repeat with no period, so that no misplaced copy goes unseen.
static TABLE: [u8; FIRSTS + LARGEST] = {
    let mut table = [0; FIRSTS + LARGEST];
    let (mut at, mut state) = (0, 1_u32);
    while at < table.len() {
        // Numerical Recipes' generator.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        table[at] = (state >> 24) as u8;
        at += 1;
    }
    table
};

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

    /// Random bytes: a part of a table that `word` chooses.
    pub(crate) fn random(&self, word: u16, len: usize) -> Bytes {
        let first = usize::from(word) % FIRSTS;
        self.copy(&TABLE[first..first + len])
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
