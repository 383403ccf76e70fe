//! CPU access to a dma-buf between `DMA_BUF_IOCTL_SYNC` begin and end.

use std::os::fd::AsFd;

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::dmabuf::{sync_end, sync_start};
use gaudi_sys::{RawMapping, SysResult};
use gaudi_uapi::dmabuf::DmaBufSyncFlags;

use crate::window::Window;

/// What the CPU is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directions {
    /// `DMA_BUF_SYNC_READ`.
    Read,
    /// `DMA_BUF_SYNC_WRITE`.
    Write,
    /// `DMA_BUF_SYNC_RW`.
    ReadWrite,
}

impl Directions {
    pub(crate) fn flags(self) -> DmaBufSyncFlags {
        match self {
            Self::Read => DmaBufSyncFlags::READ,
            Self::Write => DmaBufSyncFlags::WRITE,
            Self::ReadWrite => DmaBufSyncFlags::RW,
        }
    }
}

/// CPU access that has begun; it ends with [`end`](Self::end), or on drop, which can only log a
/// failure. `READ` and `WRITE` are what its methods may do.
///
/// A stand-in needs no calls: memory of a memfd is coherent.
#[derive(Debug)]
#[must_use = "access ends when this is dropped"]
pub struct CpuAccess<'a, const READ: bool = false, const WRITE: bool = false> {
    window: &'a Window,
    mapping: &'a RawMapping,
    directions: Option<Directions>,
}

impl<'a, const READ: bool, const WRITE: bool> CpuAccess<'a, READ, WRITE> {
    /// Begins access to `mapping`, which shows the bytes of `window`.
    pub(crate) fn begin(window: &'a Window, mapping: &'a RawMapping, directions: Directions) -> Result<Self> {
        let dmabuf = window.dmabuf();
        dmabuf.check_process("DMA_BUF_IOCTL_SYNC")?;
        let directions = dmabuf.exporter().is_dmabuf().then_some(directions);
        if let Some(directions) = directions {
            sync_start(dmabuf.as_fd(), directions.flags())
                .map_err(|errno| Error::from_errno("DMA_BUF_IOCTL_SYNC (start)", errno))?;
        }
        Ok(Self {
            window,
            mapping,
            directions,
        })
    }

    /// Ends the access.
    ///
    /// # Errors
    /// - `Forked`: this is a fork child of the process that made the buffer.
    /// - ioctl(2)'s.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let Some(directions) = self.directions.take() else {
            return Ok(());
        };
        // A fork child must not end what its parent has begun.
        let dmabuf = self.window.dmabuf();
        dmabuf.check_process("DMA_BUF_IOCTL_SYNC")?;
        sync_end(dmabuf.as_fd(), directions.flags())
            .map_err(|errno| Error::from_errno("DMA_BUF_IOCTL_SYNC (end)", errno))
    }
}

impl<const READ: bool, const WRITE: bool> Drop for CpuAccess<'_, READ, WRITE> {
    fn drop(&mut self) {
        // In a fork child the access is the parent's.
        if let Err(error) = self.finish().or_else(|error| match error.kind() {
            ErrorKind::Forked => Ok(()),
            _ => Err(error),
        }) {
            tracing::error!(%error, dmabuf = ?self.window, "CPU access did not end cleanly");
        }
    }
}

/// The CPU may read. See [`CpuAttachment::reading`](crate::CpuAttachment::reading).
pub type Reading<'a> = CpuAccess<'a, true, false>;
/// The CPU may write. See [`CpuAttachment::writing`](crate::CpuAttachment::writing).
pub type Writing<'a> = CpuAccess<'a, false, true>;
/// The CPU may read and write. See [`CpuAttachment::editing`](crate::CpuAttachment::editing).
pub type Editing<'a> = CpuAccess<'a, true, true>;

impl<const WRITE: bool> CpuAccess<'_, true, WRITE> {
    /// Copies bytes out.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the window.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> SysResult<()> {
        self.mapping.read(offset, into)
    }
}

impl<const READ: bool> CpuAccess<'_, READ, true> {
    /// Copies bytes in.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the window.
    pub fn write(&self, offset: usize, from: &[u8]) -> SysResult<()> {
        self.mapping.write(offset, from)
    }
}
