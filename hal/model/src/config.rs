//! The configuration of a modelled chip.

use std::ffi::CStr;

use gaudi_sys::Errno;

/// The order in which streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In rounds, some packets each.
    Running,
    /// One packet at a time, of a stream drawn from the seed: the same calls with the same seed
    /// give the same order.
    Stepped {
        /// The seed.
        seed: u64,
    },
}

/// The place of a chip's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// In a memfd, which other processes and devices can map.
    #[default]
    Shared,
    /// As `Shared`, with a record of the written pages, so that few pages are freed without a
    /// system call. The record lacks writes of others outside of exposed ranges
    /// ([`DeviceMemory::expose`](crate::DeviceMemory::expose)).
    Recorded,
    /// In anonymous memory of this process.
    Private,
}

/// The configuration of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipConfig {
    /// Device memory for users, bytes: a multiple of the chip's page, up to what the chip has. The
    /// driver's part comes on top.
    pub dram_user_bytes: u64,
    /// The order in which streams run.
    pub mode: Mode,
    /// The place of device memory.
    pub memory: MemoryKind,
}

/// The reason why a chip or a card cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not a size that the chip has; the nearest ones below and above.
    #[error(
        "{asked} bytes of device memory are not whole pages of {} MiB; {below} and {above} are the nearest sizes",
        page >> 20
    )]
    DramSize {
        /// The chip's page.
        page: u64,
        /// Bytes asked for.
        asked: u64,
        /// The next smaller size, or the smallest.
        below: u64,
        /// The next larger size, or the largest.
        above: u64,
    },
    /// No chip of that name is modelled.
    #[error("the chip {0:?} is not modelled")]
    UnknownChip(String),
    /// The host did not give the memory.
    #[error("no memory file of {len} bytes for {}: {errno}", what.to_string_lossy())]
    Memory {
        /// What for.
        what: &'static CStr,
        /// Bytes.
        len: u64,
        /// The system call's answer.
        errno: Errno,
    },
    /// Not a size that the memory BAR of a card can have.
    #[error("a memory BAR of {0} bytes: a power of two from 1 GiB to 128 GiB is wanted")]
    Bar(u64),
    /// Not a size that the HBM of a card can have.
    #[error("HBM of {0} bytes: the driver takes 80GiB and 96GiB only")]
    Dram(u64),
}
