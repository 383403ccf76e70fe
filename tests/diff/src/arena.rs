//! Process memory for both sides: the same addresses, so that answers cannot depend on them.

use gaudi_seam::HostVa;
use gaudi_sys::{Errno, RawMapping, SysResult};
use memmap2::{Mmap, MmapMut};

use crate::op::Memory;

const PAGE: usize = 4096;
/// The driver's huge page, which decides how host memory is mapped.
const HUGE: usize = 2 << 20;
/// Bytes that operations may map.
pub(crate) const MAPPED: u64 = 4 << 20;
/// The size of each window of copies; the source and the destination follow the mappable bytes.
pub(crate) const WINDOW: usize = 64 << 10;
const LEN: usize = MAPPED as usize + 2 * WINDOW + PAGE;

/// The memory that both sides share.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: RawMapping,
    /// The offset of the first huge page in `memory`.
    start: usize,
    read_only: Mmap,
}

impl Arena {
    pub(crate) fn new() -> SysResult<Self> {
        let memory = RawMapping::anonymous(LEN + HUGE, true)?;
        let start = memory.as_ptr().addr().get().next_multiple_of(HUGE) - memory.as_ptr().addr().get();
        let io = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
        // Written once: an untouched page is the kernel's shared zero page.
        let mut read_only = MmapMut::map_anon(2 * PAGE).map_err(io)?;
        read_only.fill(1);
        Ok(Self {
            memory,
            start,
            read_only: read_only.make_read_only().map_err(io)?,
        })
    }

    pub(crate) fn address(&self, memory: Memory) -> HostVa {
        let base = (self.memory.as_ptr().as_ptr().expose_provenance() + self.start) as u64;
        let read_only = self.read_only.as_ptr().expose_provenance() as u64;
        HostVa(match memory {
            Memory::Arena(at) => base + at,
            Memory::ReadOnly => read_only,
            Memory::Raw(address) => address,
        })
    }

    /// Returns the address of both windows: the source, then the destination.
    pub(crate) fn windows(&self) -> HostVa {
        self.address(Memory::Arena(MAPPED))
    }

    /// Writes a pattern to the source and another value to the destination.
    pub(crate) fn prepare(&self, at: usize, len: usize, seed: u8) -> SysResult<()> {
        let bytes: Vec<u8> = (0..len)
            .map(|at| (at as u8).wrapping_mul(29) ^ (at >> 8) as u8 ^ seed)
            .collect();
        self.memory.write(self.start + MAPPED as usize + at, &bytes)?;
        self.memory
            .fill(self.start + MAPPED as usize + WINDOW, WINDOW, 0xd7)
    }

    /// Returns the bytes of the destination.
    pub(crate) fn copied(&self) -> SysResult<Vec<u8>> {
        let mut bytes = vec![0; WINDOW];
        self.memory
            .read(self.start + MAPPED as usize + WINDOW, &mut bytes)?;
        Ok(bytes)
    }

    /// The offset of a word for the driver to read.
    pub(crate) const WORD: u64 = MAPPED + 2 * WINDOW as u64;

    /// Writes that word.
    pub(crate) fn put_word(&self, word: u64) -> SysResult<()> {
        self.memory
            .write(self.start + Self::WORD as usize, &word.to_le_bytes())
    }
}
