//! The memfd stand-in, for machines without udmabuf: not a dma-buf, and printed as such.

use gaudi_seam::{Error, Result};
use gaudi_sys::{Memfd, standin};

use crate::buffer::DmaBuf;
use crate::part::Part;

const OPERATION: &str = "stand-in export";

/// Creates memory of `len` bytes whose parts can be exported as stand-ins: sparse, zeroed.
///
/// # Errors
/// memfd_create(2)'s.
pub fn memory(len: u64) -> Result<Memfd> {
    Memfd::sparse(standin::MEMFD_NAME, len).map_err(|errno| Error::from_errno(OPERATION, errno))
}

/// Exports a part of [`memory`].
///
/// # Errors
/// - `InvalidInput`: the part is empty, not made of whole pages, or leaves the file.
/// - `Unsupported`: there is no `/proc`.
#[track_caller]
pub fn export(memory: &Memfd, offset: u64, len: u64) -> Result<DmaBuf> {
    Part::pages(OPERATION, memory.len(), offset, len)?;
    let fd = standin::export(memory, standin::Window { offset, len })
        .map_err(|errno| Error::from_errno(OPERATION, errno))?;
    DmaBuf::from_fd(fd)
}
