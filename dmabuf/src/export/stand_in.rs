//! The memfd stand-in, for machines without udmabuf: not a dma-buf, and it says so wherever it is shown.

use gaudi_seam::{Error, Result};
use gaudi_sys::{Memfd, standin};

use crate::buffer::DmaBuf;
use crate::part::Part;

const OPERATION: &str = "stand-in export";

/// Memory of `len` bytes whose windows can be exported as stand-ins: sparse, zeroed. `OutOfMemory` and the like as memfd_create(2) says.
pub fn memory(len: u64) -> Result<Memfd> {
    Memfd::sparse(standin::MEMFD_NAME, len).map_err(|errno| Error::from_errno(OPERATION, errno))
}

/// Exports a window of [`memory`]. `InvalidInput` where it is empty, is not made of whole pages or leaves the file; `Unsupported` without
/// `/proc`.
#[track_caller]
pub fn export(memory: &Memfd, offset: u64, len: u64) -> Result<DmaBuf> {
    Part::pages(OPERATION, memory.len(), offset, len)?;
    let fd = standin::export(memory, standin::Window { offset, len })
        .map_err(|errno| Error::from_errno(OPERATION, errno))?;
    DmaBuf::from_fd(fd)
}
