//! [`Window`]: a checked range of a [`DmaBuf`].

use std::fmt;

use gaudi_seam::{Errno, Error, Result};

use crate::buffer::DmaBuf;

/// A range of a dma-buf that is never empty and never leaves it. Cheap to clone; holds the buffer open.
#[derive(Clone)]
pub struct Window {
    dmabuf: DmaBuf,
    offset: u64,
    len: u64,
}

impl Window {
    pub(crate) fn new(dmabuf: DmaBuf, offset: u64, len: u64) -> Result<Self> {
        check_range(offset, len, dmabuf.size())?;
        Ok(Self { dmabuf, offset, len })
    }

    /// A window of this window; `offset` counts from its first byte.
    pub fn window(&self, offset: u64, len: u64) -> Result<Self> {
        check_range(offset, len, self.len)?;
        // The sum stays below the buffer's size, which both checks together prove.
        Self::new(self.dmabuf.clone(), self.offset.saturating_add(offset), len)
    }

    /// The buffer.
    pub fn dmabuf(&self) -> &DmaBuf {
        &self.dmabuf
    }

    /// Bytes from the start of the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a window is never empty, by construction"
    )]
    pub fn len(&self) -> u64 {
        self.len
    }
}

fn check_range(offset: u64, len: u64, available: u64) -> Result<()> {
    let end = offset.checked_add(len);
    if len > 0 && end.is_some_and(|end| end <= available) {
        return Ok(());
    }
    let cause = if len == 0 {
        "the window has no bytes"
    } else {
        "the window leaves its buffer"
    };
    Err(Error::from_errno("dma-buf window", Errno::EINVAL)
        .because(cause)
        .saw(
            format!("{len} bytes at {offset:#x}"),
            format!("1 byte or more inside {available} bytes"),
        ))
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} of {:?}", self.len, self.offset, self.dmabuf)
    }
}
