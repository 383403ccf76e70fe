//! [`UserMemory`]: the address space that the pointers in an argument refer to.

use gaudi_seam::Errno;
use gaudi_sys::process_memory;
use zerocopy::{FromBytes, IntoBytes};

/// The memory of the process that called ioctl(2).
///
/// Some addresses are not read through this trait, because the backend uses them itself, in its own
/// process: host memory to map, the word that an interrupt wait watches, and the sequence numbers
/// of a wait for signals.
pub trait UserMemory {
    /// Copies the bytes at `address` into `bytes`, like `copy_from_user`.
    ///
    /// # Errors
    /// `EFAULT`: part of the range cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Copies `bytes` to `address`, like `copy_to_user`.
    ///
    /// # Errors
    /// `EFAULT`: part of the range cannot be written.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// The memory of this process. The kernel performs the copies, so an invalid address fails with
/// `EFAULT`.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnMemory;

impl UserMemory for OwnMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        process_memory::read(address, bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        process_memory::write(address, bytes)
    }
}

/// Reads an array. If `count` is above `most`, returns `most + 1` zeros without reading: the driver
/// and every backend reject such a count before they read the array.
///
/// # Errors
/// `EFAULT`: the array cannot be read.
pub(crate) fn read_list<T: FromBytes + IntoBytes + Default + Clone>(
    memory: &dyn UserMemory,
    address: u64,
    count: u32,
    most: u32,
) -> Result<Vec<T>, Errno> {
    let mut list = vec![T::default(); count.min(most + 1) as usize];
    if (1..=most).contains(&count) {
        memory.read(address, list.as_mut_slice().as_mut_bytes())?;
    }
    Ok(list)
}
