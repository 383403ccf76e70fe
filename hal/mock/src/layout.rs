//! The places in the file of a context. All that user code maps lies in one sparse memfd, as all
//! that a program maps of the driver lies in the offsets of one file.

use std::ops::Range;

use gaudi_sys::PAGE;

/// Bytes of device addresses for command buffers (command_buffer.c:CB_VA_POOL_SIZE).
pub(crate) const POOL_SIZE: u64 = 4 << 30;
/// Command buffers: first those with a device address, then as many bytes for the others. Nothing
/// lies in the page before them, so that no handle is 0 and a lock can mark an open descriptor.
pub(crate) const COMMAND_BUFFERS: Range<u64> = PAGE..PAGE + 2 * POOL_SIZE;
/// Timestamps buffers. None is freed before the context is.
pub(crate) const TIMESTAMPS: Range<u64> = COMMAND_BUFFERS.end..COMMAND_BUFFERS.end + (64 << 30);
/// The slots of blocks of registers, in the order of their numbers.
const BLOCKS: u64 = TIMESTAMPS.end;
/// Bytes of a slot.
const BLOCK_SLOT: u64 = 1 << 20;
/// The number of slots.
const BLOCK_SLOTS: u64 = 1 << 12;
/// Bytes in the file.
pub(crate) const LEN: u64 = BLOCKS + BLOCK_SLOTS * BLOCK_SLOT;

/// An offset at which no length can be mapped: the range would leave the file's offsets, and mmap
/// fails with `EOVERFLOW` (mm/mmap.c:file_mmap_ok).
pub(crate) const UNMAPPABLE: u64 = (1 << 63) - PAGE;

// A handle's number is 32 bits of pages.
const _: () = assert!(LEN / PAGE <= u32::MAX as u64);

/// The offset of a block of this number and size. `None` if the slots do not hold it.
pub(crate) fn block(number: u32, size: u32) -> Option<u64> {
    let fits = u64::from(number) < BLOCK_SLOTS && u64::from(size) <= BLOCK_SLOT;
    fits.then(|| BLOCKS + u64::from(number) * BLOCK_SLOT)
}
