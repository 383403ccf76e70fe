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

    /// Gives a range's host memory back; it reads as zeros afterwards. `EFAULT` where it leaves the memory.
    pub fn discard(&self, at: DevicePa, len: u64) -> Result<(), Errno> {
        let offset = self.offset(at, len).ok_or(Errno::EFAULT)?;
        self.file.punch_hole(offset, len)
    }

    /// Bytes of host memory taken now.
    pub fn resident(&self) -> Result<u64, Errno> {
        self.file.resident()
    }

    /// Copies bytes out, past the MMU. `EFAULT` where the range leaves the memory.
    pub fn read(&self, at: DevicePa, into: &mut [u8]) -> Result<(), Errno> {
        self.span(at, into.len()).ok_or(Errno::EFAULT)?.read(into);
        Ok(())
    }

    /// Copies bytes in, past the MMU. `EFAULT` where the range leaves the memory.
    pub fn write(&self, at: DevicePa, from: &[u8]) -> Result<(), Errno> {
        self.span(at, from.len()).ok_or(Errno::EFAULT)?.write(from);
        Ok(())
    }

    pub(crate) fn span(&self, at: DevicePa, len: usize) -> Option<Span<'_>> {
        let offset = self.offset(at, u64::try_from(len).ok()?)?;
        Span::of(&self.map, usize::try_from(offset).ok()?, len)
    }
}
