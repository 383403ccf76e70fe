//! [`DmaBuf`]: one owned descriptor, what it is, and its holders.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

use gaudi_seam::{CloseError, Errno, Error, ErrorKind, Result};
use gaudi_sys::fd::FileId;
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{lock, standin};

use crate::export::Exporter;
use crate::holders::{Holder, Holders};
use crate::stats::Record;

/// What names one exported range while it is open, in every process of this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Device and inode. Each dma-buf has its own; all stand-ins of one device's memory share the
    /// memfd's.
    pub file: FileId,
    /// Where a stand-in starts in its memfd; 0 for a dma-buf.
    pub start: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.file.inode)?;
        if self.start != 0 {
            write!(f, " at {:#x}", self.start)?;
        }
        Ok(())
    }
}

/// An owned dma-buf, or its stand-in. Clones share one descriptor; it closes with the last clone,
/// window and attachment.
///
/// While any of them lives, in any process, an exported mapping cannot be unmapped and its device
/// cannot be opened anew.
#[derive(Clone)]
pub struct DmaBuf {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    fd: OwnedFd,
    identity: Identity,
    size: u64,
    exporter: Exporter,
    owner: OwnerProcess,
    place: &'static Location<'static>,
    holders: Mutex<Holders>,
    #[expect(dead_code, reason = "counts the buffer while it lives")]
    record: Record,
}

impl DmaBuf {
    /// Takes ownership of a descriptor of a dma-buf or of a stand-in.
    ///
    /// # Errors
    /// - `InvalidInput`: the descriptor is neither; the error names what it is. Or it is a stand-in
    ///   with a [flaw](standin::Flaw), for example one whose owner could kill this process with
    ///   SIGBUS.
    /// - `TooManyFiles`: no free descriptor to examine it with. `Unsupported`: there is no `/proc`.
    #[track_caller]
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        const OPERATION: &str = "dma-buf import";
        let place = Location::caller();
        let failed = |errno| Error::from_errno(OPERATION, errno);
        let file = gaudi_sys::fd::file_id(&fd).map_err(failed)?;
        if let Some(window) = standin::window(&fd).map_err(failed)? {
            if let Some(flaw) = standin::flaw(&fd, window).map_err(failed)? {
                return Err(failed(Errno::EINVAL).because(flaw.to_string()).saw(
                    format!("{} bytes at {:#x}", window.len, window.offset),
                    "a window of a memfd that is sealed against shrinking, open for reading and writing",
                ));
            }
            let identity = Identity {
                file,
                start: window.offset,
            };
            return Ok(Self::new(fd, identity, window.len, Exporter::StandIn, place));
        }
        if !gaudi_sys::dmabuf::is_dmabuf(&fd).map_err(failed)? {
            let link = gaudi_sys::fd::link(&fd).map_err(failed)?;
            return Err(failed(Errno::EINVAL)
                .because("the descriptor is not a dma-buf")
                .saw(link.display(), "a dma-buf or a gaudi-standin window"));
        }
        let notes = gaudi_sys::fd::fdinfo(&fd).map_err(failed)?;
        let exporter = notes
            .lines()
            .find_map(|line| line.strip_prefix("exp_name:"))
            .map_or(Exporter::Unknown(String::new()), |name| {
                Exporter::from_name(name.trim())
            });
        let size = gaudi_sys::fd::size(&fd).map_err(failed)?;
        let identity = Identity { file, start: 0 };
        Ok(Self::new(fd, identity, size, exporter, place))
    }

    fn new(
        fd: OwnedFd,
        identity: Identity,
        size: u64,
        exporter: Exporter,
        place: &'static Location<'static>,
    ) -> Self {
        let inner = Inner {
            record: Record::new(&exporter, size, identity.file.inode, place),
            place,
            fd,
            identity,
            size,
            exporter,
            owner: OwnerProcess::current(),
            holders: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the size in bytes: never 0 for a stand-in, whole pages for every known exporter.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Returns the exporter of the memory.
    pub fn exporter(&self) -> &Exporter {
        &self.inner.exporter
    }

    /// Returns the identity, which is the same in every process that holds the buffer.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Returns the names of this process's attachments, oldest first.
    pub fn attachments(&self) -> Vec<String> {
        self.holders().all().map(|holder| holder.name.clone()).collect()
    }

    /// Returns this process's attachments, oldest first.
    pub fn attached(&self) -> Vec<Holder> {
        self.holders().all().cloned().collect()
    }

    /// Returns the line of the program that created this buffer.
    pub fn place(&self) -> &'static Location<'static> {
        self.inner.place
    }

    /// Sets the name that `/proc`, debugfs and `gaudi dmabuf list` show (`DMA_BUF_SET_NAME`).
    ///
    /// # Errors
    /// - `InvalidInput`: the name is longer than 31 bytes or has a zero in it.
    /// - `Unsupported`: a stand-in has no name.
    /// - `Forked`: this is a fork child of the process that made the buffer.
    pub fn set_name(&self, name: &str) -> Result<()> {
        const OPERATION: &str = "DMA_BUF_SET_NAME";
        self.check_process(OPERATION)?;
        if !self.exporter().is_dmabuf() {
            return Err(Error::unsupported(OPERATION, "a stand-in has no name of its own"));
        }
        let wrong = || {
            Error::from_errno(OPERATION, Errno::EINVAL)
                .because("the name does not fit")
                .saw(format!("{} bytes", name.len()), "at most 31, none of them zero")
        };
        let text = std::ffi::CString::new(name).map_err(|_| wrong())?;
        gaudi_sys::dmabuf::set_name(self, &text).map_err(|errno| match errno {
            Errno::EINVAL => wrong(),
            errno => Error::from_errno(OPERATION, errno),
        })
    }

    /// Returns the holders in this process that prevent closing; `None` if `own` handles are all
    /// that there are.
    pub(crate) fn held_beyond(&self, own: usize) -> Option<String> {
        let names = self.attachments();
        let others = Arc::strong_count(&self.inner).saturating_sub(own + names.len());
        (others > 0 || !names.is_empty())
            .then(|| format!("attachments [{}] and {others} more handles", names.join(", ")))
    }

    /// Closes the descriptor, or returns the buffer with the error.
    ///
    /// # Errors
    /// `InUse`: attachments or other handles need the descriptor; the error has their names and
    /// number.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        // The inner value drops here, and the descriptor with it.
        Arc::try_unwrap(self.inner).map(drop).map_err(|inner| {
            let buffer = Self { inner };
            let seen = buffer
                .held_beyond(1)
                .unwrap_or_else(|| "one that just went".to_owned());
            let error = Error::new(ErrorKind::InUse, "dma-buf close")
                .because(format!("{buffer:?} is still held"))
                .saw(seen, "none")
                .helped_by("deregister the memory regions on it and drop its windows and clones first");
            CloseError::new(buffer, error)
        })
    }

    pub(crate) fn holders(&self) -> MutexGuard<'_, Holders> {
        lock(&self.inner.holders)
    }

    /// Refuses to work in a fork child of the process that took the descriptor.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.inner.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation)
                .because("the dma-buf belongs to the parent of this fork child"));
        }
        Ok(())
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.exporter().is_dmabuf() {
            "dma-buf"
        } else {
            "stand-in"
        };
        write!(
            f,
            "{what} {} ({}, {} bytes)",
            self.identity(),
            self.exporter(),
            self.size()
        )
    }
}
