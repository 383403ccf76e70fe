//! Pinned host memory of a lane, for bytes that an operation copies with the processor.

#![expect(
    unsafe_code,
    reason = "bytes of a chunk that no submission uses are passed to the program as a slice"
)]

use gaudi_device::{Device, HostMapping, Location, Result};

/// Equal parts of one mapping. A chunk belongs to one submission until that has ended.
pub(crate) struct Chunks {
    mapping: HostMapping,
    bytes: usize,
    free: Vec<u32>,
}

/// Bytes of a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) chunk: u32,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Chunks {
    /// # Errors
    /// As [`Device::alloc_host`].
    pub(crate) fn new(device: &Device, count: usize, bytes: usize) -> Result<Self> {
        Ok(Self {
            mapping: device.alloc_host(count * bytes)?,
            bytes,
            free: (0..count as u32).rev().collect(),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    fn start(&self, place: Place) -> usize {
        place.chunk as usize * self.bytes + place.offset
    }

    /// # Errors
    /// `Forked`.
    pub(crate) fn location(&self, place: Place) -> Result<Location> {
        let start = self.start(place) as u64;
        self.mapping.at(start..start + place.len as u64)
    }

    /// Copies bytes into a place that no submission uses.
    ///
    /// # Errors
    /// `Forked`.
    pub(crate) fn write(&self, place: Place, bytes: &[u8]) -> Result<()> {
        self.mapping.write(self.start(place) as u64, bytes)
    }

    /// Copies bytes out of a place that no submission uses.
    ///
    /// # Errors
    /// `Forked`.
    pub(crate) fn read(&self, place: Place, bytes: &mut [u8]) -> Result<()> {
        self.mapping.read(self.start(place) as u64, bytes)
    }

    /// The bytes of a place that no submission uses: `&mut self` excludes another slice, and the
    /// caller took the chunk and has not submitted the bytes, or its submission has ended.
    pub(crate) fn slice(&mut self, place: Place) -> &mut [u8] {
        let start = self.start(place);
        let whole = self.mapping.len() as usize;
        assert!(
            start.checked_add(place.len).is_some_and(|end| end <= whole),
            "{place:?} lies in a chunk"
        );
        // SAFETY: the range is inside the mapping, which lives as long as `self`.
        let first = unsafe { self.mapping.as_ptr().add(start) };
        // SAFETY: the mapping is private to this value, its memory is initialized, and no engine
        // accesses the place (see above). The slice borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), place.len) }
    }
}
