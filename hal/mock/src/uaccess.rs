//! Reads a word of this process's memory, as the driver's `copy_from_user` does.

use gaudi_seam::{Errno, HostVa};
use gaudi_sys::process_memory;

/// Returns the 64-bit word at an address; `EFAULT` if it is not readable.
pub(crate) fn read_u64(address: HostVa) -> Result<u64, Errno> {
    let mut word = [0; 8];
    match process_memory::read(address.0, &mut word) {
        Ok(()) => Ok(u64::from_le_bytes(word)),
        Err(_) => Err(Errno::EFAULT),
    }
}
