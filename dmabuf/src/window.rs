//! [`Window`]: a part of a [`DmaBuf`].

use std::fmt;

use gaudi_seam::Result;

use crate::buffer::DmaBuf;
use crate::part::Part;

/// A range of a dma-buf that is never empty and never leaves it. Cheap to clone; holds the buffer
/// open.
#[derive(Clone)]
pub struct Window {
    dmabuf: DmaBuf,
    part: Part,
}

impl DmaBuf {
    /// Returns the whole buffer as a window.
    ///
    /// # Errors
    /// `InvalidInput`: the buffer has no bytes.
    pub fn whole(&self) -> Result<Window> {
        self.window(0, self.size())
    }

    /// Returns the `len` bytes from `offset`.
    ///
    /// # Errors
    /// `InvalidInput`: the range is empty or leaves the buffer.
    pub fn window(&self, offset: u64, len: u64) -> Result<Window> {
        Ok(Window::new(self.clone(), Part::window(self.size(), offset, len)?))
    }
}

impl Window {
    /// `part` is a part of the buffer.
    pub(crate) fn new(dmabuf: DmaBuf, part: Part) -> Self {
        debug_assert!(part.end() <= dmabuf.size(), "{part:?} of {dmabuf:?}");
        Self { dmabuf, part }
    }

    /// Returns a window of this window; `offset` counts from its first byte.
    ///
    /// # Errors
    /// `InvalidInput`: the range is empty or leaves this window.
    pub fn window(&self, offset: u64, len: u64) -> Result<Self> {
        let inner = Part::window(self.len(), offset, len)?;
        Ok(Self::new(self.dmabuf.clone(), self.part.narrow(inner)))
    }

    /// The buffer.
    pub fn dmabuf(&self) -> &DmaBuf {
        &self.dmabuf
    }

    /// Bytes from the start of the buffer.
    pub fn offset(&self) -> u64 {
        self.part.offset()
    }

    /// Bytes; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a window is never empty, by construction"
    )]
    pub fn len(&self) -> u64 {
        self.part.len()
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x} of {:?}",
            self.len(),
            self.offset(),
            self.dmabuf
        )
    }
}
