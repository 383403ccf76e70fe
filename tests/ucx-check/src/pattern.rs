//! Bytes to move, and their comparison.

use crate::allocator::{Failure, Memory};

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Bytes that differ for every transfer, and in every block of it.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut block = Vec::with_capacity(BLOCK);
    while block.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    let mut bytes = Vec::with_capacity(len.next_multiple_of(BLOCK));
    while bytes.len() < len {
        let number = (bytes.len() / BLOCK) as u64 ^ state;
        block[..8].copy_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(len);
    bytes
}

/// Compares memory from `start` on with bytes.
pub(crate) fn compare(memory: &Memory, start: usize, wanted: &[u8]) -> Result<(), Failure> {
    let seen = memory.read(start, wanted.len())?;
    if seen == wanted {
        return Ok(());
    }
    let differs: Vec<usize> = (0..wanted.len()).filter(|&at| seen[at] != wanted[at]).collect();
    let (Some(&first), Some(&last)) = (differs.first(), differs.last()) else {
        return Ok(());
    };
    Err(format!(
        "byte {first} of {} is {:#04x}, wanted {:#04x}; {} differ, the last is byte {last}",
        wanted.len(),
        seen[first],
        wanted[first],
        differs.len()
    ))
}
