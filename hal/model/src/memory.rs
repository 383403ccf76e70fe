//! The chip's own memory: HBM, SRAM and registers, each sparse.

use std::ffi::CStr;

use gaudi_spec::DevicePa;
use gaudi_sys::arena::Arena;
use gaudi_sys::{Errno, Memfd, RawMapping};

use crate::config::{MemoryKind, ModelError};
use crate::span::Span;

/// A range of the chip's physical memory. It is zero until written, and uses host memory only for
/// written pages.
#[derive(Debug)]
pub struct DeviceMemory {
    base: DevicePa,
    store: Store,
}

#[derive(Debug)]
enum Store {
    /// The file that holds the memory, and a mapping of all of it.
    Shared(Memfd, RawMapping),
    Recorded(Memfd, Arena),
    Private(Arena),
}

impl DeviceMemory {
    pub(crate) fn new(
        name: &'static CStr,
        base: DevicePa,
        len: u64,
        kind: MemoryKind,
    ) -> Result<Self, ModelError> {
        let failed = |errno| ModelError::Memory {
            what: name,
            len,
            errno,
        };
        let size = usize::try_from(len).map_err(|_| failed(Errno::ENOMEM))?;
        let shared = || {
            let file = Memfd::sparse(name, len).map_err(failed)?;
            let map = RawMapping::of_fd(&file, 0, size).map_err(failed)?;
            Ok((file, map))
        };
        let store = match kind {
            MemoryKind::Shared => shared().map(|(file, map)| Store::Shared(file, map))?,
            MemoryKind::Recorded => shared().map(|(file, map)| Store::Recorded(file, Arena::over(map)))?,
            MemoryKind::Private => Store::Private(Arena::new(size).map_err(failed)?),
        };
        Ok(Self { base, store })
    }

    fn map(&self) -> &RawMapping {
        match &self.store {
            Store::Shared(_, map) => map,
            Store::Recorded(_, arena) | Store::Private(arena) => arena.map(),
        }
    }

    /// The first physical address.
    pub fn base(&self) -> DevicePa {
        self.base
    }

    /// Bytes of memory.
    pub fn len(&self) -> u64 {
        self.map().len() as u64
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// The file that holds the memory, to be mapped or exported; byte 0 is [`base`](Self::base).
    /// `None` if the memory is private.
    pub fn memfd(&self) -> Option<&Memfd> {
        match &self.store {
            Store::Shared(file, _) | Store::Recorded(file, _) => Some(file),
            Store::Private(_) => None,
        }
    }

    /// The offset of a physical range in the memory; `None` if the range leaves the memory.
    pub fn offset(&self, at: DevicePa, len: u64) -> Option<u64> {
        let offset = at.offset_from(self.base)?;
        (offset.checked_add(len)? <= self.len()).then_some(offset)
    }

    /// Frees a range's host memory; the range reads as zeros afterwards.
    ///
    /// # Errors
    /// `EFAULT` if the range leaves the memory.
    pub fn discard(&self, at: DevicePa, len: u64) -> Result<(), Errno> {
        let offset = self.offset(at, len).ok_or(Errno::EFAULT)?;
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let (from, count) = range.ok_or(Errno::EFAULT)?;
        let freed = match &self.store {
            Store::Shared(file, _) => file.punch_hole(offset, len),
            Store::Recorded(file, arena) => arena.clear_by(from, count, || file.punch_hole(offset, len)),
            Store::Private(arena) => arena.clear(from, count),
        };
        // The next owner of the range must not read the bytes of this one, whatever the kernel
        // lacks.
        freed.or_else(|_| self.map().fill(from, count, 0))
    }

    /// Copies bytes out, past the MMU.
    ///
    /// # Errors
    /// `EFAULT` if the range leaves the memory.
    pub fn read(&self, at: DevicePa, into: &mut [u8]) -> Result<(), Errno> {
        // Callers in any thread may have a reference to this, so the mapping's own copies are used,
        // not an engine's.
        self.map().read(self.place(at, into.len())?, into)
    }

    /// Copies bytes in, past the MMU.
    ///
    /// # Errors
    /// `EFAULT` if the range leaves the memory.
    pub fn write(&self, at: DevicePa, from: &[u8]) -> Result<(), Errno> {
        let place = self.place(at, from.len())?;
        self.mark(place, from.len());
        self.map().write(place, from)
    }

    fn mark(&self, place: usize, len: usize) {
        match &self.store {
            Store::Recorded(_, arena) | Store::Private(arena) => arena.mark(place, len),
            Store::Shared(..) => {}
        }
    }

    /// Records that holders of the file may write a range until it is [discarded](Self::discard).
    pub fn expose(&self, at: DevicePa, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if let Ok(place) = self.place(at, len) {
            self.mark(place, len);
        }
    }

    fn place(&self, at: DevicePa, len: usize) -> Result<usize, Errno> {
        let offset = u64::try_from(len).ok().and_then(|len| self.offset(at, len));
        offset
            .and_then(|offset| usize::try_from(offset).ok())
            .ok_or(Errno::EFAULT)
    }

    pub(crate) fn span(&self, at: DevicePa, len: usize) -> Option<Span<'_>> {
        let place = self.place(at, len).ok()?;
        match &self.store {
            Store::Shared(_, map) => Span::of(map, place, len),
            Store::Recorded(_, arena) | Store::Private(arena) => Span::in_arena(arena, place, len),
        }
    }
}
