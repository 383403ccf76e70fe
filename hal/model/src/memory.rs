//! The chip's own memory: HBM and SRAM, each one sparse file in memory.

use std::ffi::CStr;

use gaudi_spec::DevicePa;
use gaudi_sys::{Errno, Memfd, RawMapping};

use crate::chip::ModelError;
use crate::span::Span;

/// A range of the chip's physical memory, zero until written; takes host memory only where it is written.
#[derive(Debug)]
pub struct DeviceMemory {
    base: DevicePa,
    file: Memfd,
    map: RawMapping,
}

impl DeviceMemory {
    pub(crate) fn new(name: &'static CStr, base: DevicePa, len: u64) -> Result<Self, ModelError> {
        let failed = |errno| ModelError::Memory {
            what: name,
            len,
            errno,
        };
        let size = usize::try_from(len).map_err(|_| failed(Errno::ENOMEM))?;
        let file = Memfd::sparse(name, len).map_err(failed)?;
        let map = RawMapping::of_fd(&file, 0, size).map_err(failed)?;
        Ok(Self { base, file, map })
    }

    /// The first physical address.
    pub fn base(&self) -> DevicePa {
        self.base
    }

    /// Bytes of memory.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file that holds the memory, to be mapped or exported; byte 0 is [`base`](Self::base).
    pub fn memfd(&self) -> &Memfd {
        &self.file
    }

    /// Where in [`memfd`](Self::memfd) a physical range lies; `None` where it leaves the memory.
    pub fn offset(&self, at: DevicePa, len: u64) -> Option<u64> {
        let offset = at.offset_from(self.base)?;
        (offset.checked_add(len)? <= self.len()).then_some(offset)
    }

    /// Frees a range's host memory; the range reads as zeros afterwards. `EFAULT` if it leaves the memory.
    pub fn discard(&self, at: DevicePa, len: u64) -> Result<(), Errno> {
        let offset = self.offset(at, len).ok_or(Errno::EFAULT)?;
        if self.file.punch_hole(offset, len).is_ok() {
            return Ok(());
        }
        // The next owner of the range must not read the bytes of this one, whatever the kernel lacks.
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let (offset, len) = range.ok_or(Errno::EFAULT)?;
        self.map.fill(offset, len, 0)
    }

    /// Bytes of host memory taken now.
    pub fn resident(&self) -> Result<u64, Errno> {
        self.file.resident()
    }

    /// Copies bytes out, past the MMU. `EFAULT` where the range leaves the memory.
    pub fn read(&self, at: DevicePa, into: &mut [u8]) -> Result<(), Errno> {
        // Anybody may have a reference to this, in any thread: the mapping's own copies, not an engine's.
        self.map.read(self.place(at, into.len())?, into)
    }

    /// Copies bytes in, past the MMU. `EFAULT` where the range leaves the memory.
    pub fn write(&self, at: DevicePa, from: &[u8]) -> Result<(), Errno> {
        self.map.write(self.place(at, from.len())?, from)
    }

    fn place(&self, at: DevicePa, len: usize) -> Result<usize, Errno> {
        let offset = u64::try_from(len).ok().and_then(|len| self.offset(at, len));
        offset
            .and_then(|offset| usize::try_from(offset).ok())
            .ok_or(Errno::EFAULT)
    }

    pub(crate) fn span(&self, at: DevicePa, len: usize) -> Option<Span<'_>> {
        Span::of(&self.map, self.place(at, len).ok()?, len)
    }
}
