//! Fences: work that must be done before a buffer may be touched, as sync_files in and out of a
//! dma-buf.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::dmabuf::{export_sync_file, import_sync_file};
use gaudi_sys::{poll, sync_file};

use crate::buffer::DmaBuf;
use crate::cpu_access::Directions;

const EXPORT: &str = "DMA_BUF_IOCTL_EXPORT_SYNC_FILE";
const IMPORT: &str = "DMA_BUF_IOCTL_IMPORT_SYNC_FILE";
const WAIT: &str = "sync_file wait";

/// How far the work of a fence is (`sync_file_info.status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceStatus {
    /// It runs.
    Active,
    /// It is done.
    Signalled,
    /// It was aborted, with this errno. Waiters are released nevertheless.
    Failed(Errno),
}

impl FenceStatus {
    fn of(status: i32) -> Self {
        match status {
            0 => Self::Active,
            1.. => Self::Signalled,
            _ => Self::Failed(Errno::from_raw(status.saturating_neg())),
        }
    }

    /// The result of a wait that found the fence readable.
    fn result(self) -> Result<()> {
        match self {
            Self::Failed(errno) => Err(Error::from_errno(WAIT, errno)
                .with_kind(ErrorKind::Io)
                .because("the work of the fence was aborted")),
            Self::Active | Self::Signalled => Ok(()),
        }
    }
}

/// One fence of a [`SyncFile`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The driver whose work it is.
    pub driver: String,
    /// That driver's queue.
    pub timeline: String,
    /// How far it is.
    pub status: FenceStatus,
}

/// A sync_file: one or more fences in a descriptor, close-on-exec. Signalled once all are.
pub struct SyncFile {
    fd: OwnedFd,
}

impl SyncFile {
    /// Takes ownership of a descriptor.
    ///
    /// # Errors
    /// `InvalidInput`: it is not a sync_file.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        match sync_file::info(&fd) {
            Ok(_) => Ok(Self { fd }),
            Err(errno @ (Errno::ENOTTY | Errno::EINVAL)) => Err(Error::from_errno("sync_file", errno)
                .with_kind(ErrorKind::InvalidInput)
                .because("the descriptor is no sync_file")),
            Err(errno) => Err(Error::from_errno("sync_file", errno)),
        }
    }

    /// Returns the state of the work.
    ///
    /// # Errors
    /// ioctl(2)'s.
    pub fn status(&self) -> Result<FenceStatus> {
        let (file, _) = sync_file::info(&self.fd).map_err(|errno| Error::from_errno(WAIT, errno))?;
        Ok(FenceStatus::of(file.status))
    }

    /// Returns the fences; none if there are more than 64.
    ///
    /// # Errors
    /// ioctl(2)'s.
    pub fn fences(&self) -> Result<Vec<Fence>> {
        let (_, fences) = sync_file::info(&self.fd).map_err(|errno| Error::from_errno(WAIT, errno))?;
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok(fences
            .iter()
            .map(|fence| Fence {
                driver: text(&fence.driver_name),
                timeline: text(&fence.obj_name),
                status: FenceStatus::of(fence.status),
            })
            .collect())
    }

    /// Waits until the work is done; a `timeout` of 0 polls.
    ///
    /// # Errors
    /// - `TimedOut`: the work is not done within `timeout`.
    /// - `Io`, with the fence's errno: the work was aborted.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let [done] =
            poll::readable([self.fd.as_fd()], timeout).map_err(|errno| Error::from_errno(WAIT, errno))?;
        if !done {
            return Err(Error::timed_out(WAIT));
        }
        self.status()?.result()
    }

    /// Returns a sync_file that is signalled when both are (`SYNC_IOC_MERGE`).
    ///
    /// # Errors
    /// ioctl(2)'s.
    pub fn merge(&self, other: &Self) -> Result<Self> {
        sync_file::merge(&self.fd, &other.fd)
            .map(|fd| Self { fd })
            .map_err(|errno| Error::from_errno("SYNC_IOC_MERGE", errno))
    }
}

impl AsFd for SyncFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for SyncFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fences() {
            Ok(fences) => write!(f, "sync_file {fences:?}"),
            Err(error) => write!(f, "sync_file ({error})"),
        }
    }
}

impl DmaBuf {
    /// Returns the work that must end before an access of these directions: to read, the work that
    /// writes; to write, all work. The sync_file is signalled if there is no such work.
    ///
    /// # Errors
    /// - `Unsupported`: a stand-in has no fences, and no dma-buf before Linux 6.0.
    /// - `Forked`: this is a fork child of the process that made the buffer.
    pub fn export_fence(&self, directions: Directions) -> Result<SyncFile> {
        self.check_fences(EXPORT)?;
        export_sync_file(self, directions.flags())
            .map(|fd| SyncFile { fd })
            .map_err(|errno| old_kernel(EXPORT, errno))
    }

    /// Adds work that reads or writes the buffer: conflicting access that waits for fences begins
    /// after it, in every process and device.
    ///
    /// # Errors
    /// As for [`export_fence`](Self::export_fence).
    pub fn import_fence(&self, fence: &SyncFile, directions: Directions) -> Result<()> {
        self.check_fences(IMPORT)?;
        import_sync_file(self, directions.flags(), fence).map_err(|errno| old_kernel(IMPORT, errno))
    }

    fn check_fences(&self, operation: &'static str) -> Result<()> {
        self.check_process(operation)?;
        if self.exporter().is_dmabuf() {
            return Ok(());
        }
        Err(Error::unsupported(
            operation,
            "a stand-in has no fences: only the kernel's dma-bufs do",
        )
        .saw(self.exporter(), "a dma-buf")
        .helped_by("wait for the device's own completion before the buffer is touched"))
    }
}

fn old_kernel(operation: &'static str, errno: Errno) -> Error {
    let error = Error::from_errno(operation, errno);
    match errno {
        Errno::ENOTTY => error
            .because("this kernel's dma-bufs give and take no sync_files")
            .helped_by("use Linux 6.0 or later"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_failed_fence_returns_its_errno() {
        let failed = FenceStatus::of(-(Errno::ECANCELED as i32));
        assert_eq!(failed, FenceStatus::Failed(Errno::ECANCELED));
        let error = failed.result().expect_err("the work was aborted");
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Io, Some(Errno::ECANCELED)),
            "{error}"
        );
        assert_eq!(FenceStatus::of(0), FenceStatus::Active);
        assert_eq!(FenceStatus::of(1), FenceStatus::Signalled);
        assert_eq!(FenceStatus::Signalled.result(), Ok(()));
    }
}
