//! [`Part`]: a checked part of memory.

use std::fmt;

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::PAGE;

/// The error of an argument that breaks a rule of the kernel, with the kernel's errno.
pub(crate) fn wrong(
    operation: &'static str,
    cause: &str,
    seen: impl fmt::Display,
    wanted: impl fmt::Display,
) -> Error {
    Error::from_errno(operation, Errno::EINVAL)
        .because(cause)
        .saw(seen, wanted)
}

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
            let seen = format!("{len} bytes at {offset:#x}");
            let wanted = format!("1 byte or more inside {whole} bytes");
            wrong("dma-buf window", cause, seen, wanted)
        })
    }

    /// Returns the part of `whole` bytes, for an exporter that takes whole pages.
    ///
    /// # Errors
    /// `InvalidInput`: the part is empty, not made of whole pages, or leaves the memory.
    pub(crate) fn pages(operation: &'static str, whole: u64, offset: u64, len: u64) -> Result<Self> {
        let whole_pages = format!("a multiple of {PAGE}");
        Err(if offset % PAGE != 0 {
            let seen = format!("{offset:#x}");
            wrong(operation, "the offset is not page aligned", seen, whole_pages)
        } else if len == 0 {
            wrong(
                operation,
                "nothing to export",
                "0 bytes",
                format!("at least {PAGE}"),
            )
        } else if len % PAGE != 0 {
            let seen = format!("{len:#x}");
            wrong(
                operation,
                "the size is not a multiple of the page",
                seen,
                whole_pages,
            )
        } else if let Some(part) = Self::within(whole, offset, len) {
            return Ok(part);
        } else {
            let seen = format!("{len:#x} bytes at offset {offset:#x}");
            wrong(
                operation,
                "the range leaves the memory",
                seen,
                format!("inside {whole:#x} bytes"),
            )
        })
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
