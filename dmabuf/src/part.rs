//! [`Part`]: a checked part of memory.

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::PAGE;

/// At least one byte of a whole, and none outside it. The range is checked when a part is made,
/// and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    offset: u64,
    len: u64,
}

impl Part {
    /// Returns the part of `whole` bytes, or `None` if it is empty or leaves them.
    pub(crate) fn within(whole: u64, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (len > 0 && end <= whole).then_some(Self { offset, len })
    }

    /// Returns the part of a buffer of `whole` bytes that a window shows.
    ///
    /// # Errors
    /// `InvalidInput`: the part is empty or leaves the buffer.
    pub(crate) fn window(whole: u64, offset: u64, len: u64) -> Result<Self> {
        Self::within(whole, offset, len).ok_or_else(|| {
            let cause = match len {
                0 => "the window has no bytes",
                _ => "the window leaves its buffer",
            };
            Error::from_errno("dma-buf window", Errno::EINVAL)
                .because(cause)
                .saw(
                    format!("{len} bytes at {offset:#x}"),
                    format!("1 byte or more inside {whole} bytes"),
                )
        })
    }

    /// Returns the part of `whole` bytes, for an exporter that takes whole pages.
    ///
    /// # Errors
    /// `InvalidInput`: the part is empty, not made of whole pages, or leaves the memory.
    pub(crate) fn pages(operation: &'static str, whole: u64, offset: u64, len: u64) -> Result<Self> {
        let wrong = |cause: &str, seen: String, wanted: String| {
            Err(Error::from_errno(operation, Errno::EINVAL)
                .because(cause)
                .saw(seen, wanted))
        };
        let whole_pages = || format!("a multiple of {PAGE}");
        if offset % PAGE != 0 {
            return wrong(
                "the offset is not page aligned",
                format!("{offset:#x}"),
                whole_pages(),
            );
        }
        if len == 0 {
            return wrong("nothing to export", "0 bytes".into(), format!("at least {PAGE}"));
        }
        if len % PAGE != 0 {
            return wrong(
                "the size is not a multiple of the page",
                format!("{len:#x}"),
                whole_pages(),
            );
        }
        match Self::within(whole, offset, len) {
            Some(part) => Ok(part),
            None => wrong(
                "the range leaves the memory",
                format!("{len:#x} bytes at offset {offset:#x}"),
                format!("inside {whole:#x} bytes"),
            ),
        }
    }

    /// First byte, from the start of the whole.
    pub(crate) fn offset(self) -> u64 {
        self.offset
    }

    /// Bytes; never 0.
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// The first byte after the part.
    pub(crate) fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Returns `inner`, a part of this part, as a part of the whole.
    pub(crate) fn narrow(self, inner: Self) -> Self {
        debug_assert!(
            inner.end() <= self.len,
            "{inner:?} is checked against the length of {self:?}"
        );
        Self {
            offset: self.offset + inner.offset,
            len: inner.len,
        }
    }

    /// Returns the smallest part of whole pages around this one. The last page of the whole may be
    /// a part of a page.
    pub(crate) fn around(self, whole: u64) -> Self {
        let offset = self.offset / PAGE * PAGE;
        let end = self
            .end()
            .checked_next_multiple_of(PAGE)
            .map_or(whole, |end| end.min(whole));
        Self {
            offset,
            len: end - offset,
        }
    }
}
