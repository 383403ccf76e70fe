//! The local end of a copy: an entry of an iov.

use gaudi_device::{Error, Result};
use gaudi_sys::Errno;

use crate::memory::Memory;

/// A part of memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct Local<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl<'a> Local<'a> {
    /// All bytes of memory.
    pub fn all(memory: &'a Memory) -> Self {
        Self {
            memory,
            offset: 0,
            len: memory.len(),
        }
    }

    /// `len` bytes from an offset.
    ///
    /// # Errors
    /// `BadAddress`: the range leaves the memory.
    #[inline]
    pub fn at(memory: &'a Memory, offset: u64, len: u64) -> Result<Self> {
        if offset.checked_add(len).is_some_and(|end| end <= memory.len()) {
            return Ok(Self { memory, offset, len });
        }
        Err(outside(memory, offset, len))
    }

    /// `len` bytes from an address.
    ///
    /// # Errors
    /// `BadAddress`: the range leaves the memory.
    pub fn of_address(memory: &'a Memory, address: u64, len: u64) -> Result<Self> {
        match address.checked_sub(memory.address()) {
            Some(offset) => Self::at(memory, offset, len),
            None => Err(outside(memory, address, len)),
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cold]
fn outside(memory: &Memory, at: u64, len: u64) -> Error {
    Error::from_errno("gaudi_cpy iov", Errno::EFAULT)
        .on(memory.device())
        .because("an entry of the iov leaves its memory")
        .saw(format!("{len} bytes at {at:#x}"), format!("inside {memory:?}"))
}
