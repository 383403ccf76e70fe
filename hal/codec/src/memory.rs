//! [`UserMemory`]: the memory to which the addresses in an argument belong.

use gaudi_seam::Errno;
use gaudi_sys::process_memory;
use zerocopy::{FromBytes, IntoBytes};

/// The memory of the process that made an ioctl.
///
/// The addresses of a mapping of host memory, of the word of a wait for an interrupt and of the
/// numbers of a wait for signals are not read through it: the backend uses them itself, in its own
/// process.
pub trait UserMemory {
    /// Copies the bytes at `address` into `bytes`, as `copy_from_user`.
    ///
    /// # Errors
    /// `EFAULT`: some byte is not readable.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Copies `bytes` to `address`, as `copy_to_user`.
    ///
    /// # Errors
    /// `EFAULT`: some byte is not writable.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// The memory of this process. The kernel copies, so that any address is safe to read.
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

/// Reads an array. A count above `most` gives an array of `most + 1` zeros that was not read: the
/// driver rejects such a count before it reads, and so does every backend.
///
/// # Errors
/// `EFAULT`: the array is not readable.
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
