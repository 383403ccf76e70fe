//! Bytes to move, and their comparison.

use crate::allocator::{Failure, Memory};

/// Bytes that differ for every transfer.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares memory from `start` on with bytes.
pub(crate) fn compare(memory: &Memory, start: usize, wanted: &[u8]) -> Result<(), Failure> {
    let seen = memory.read(start, wanted.len())?;
    match seen.iter().zip(wanted).position(|(seen, wanted)| seen != wanted) {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} of {} is {:#04x}, wanted {:#04x}",
            wanted.len(),
            seen[at],
            wanted[at]
        )),
    }
}
