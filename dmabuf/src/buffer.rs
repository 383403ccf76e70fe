//! [`DmaBuf`]: one owned descriptor, what it is, and who holds on to it.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::fd::FileId;
use gaudi_sys::fork::Birth;
use gaudi_sys::standin;

use crate::attach::{Hold, Holder};
use crate::stats::Record;
use crate::window::Window;

/// Who made the memory behind a descriptor: `exp_name` in `/proc/self/fdinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exporter {
    /// Device memory of a Gaudi behind its PCI BAR. No CPU access, no revocation.
    Habanalabs,
    /// Pages of a sealed memfd (`/dev/udmabuf`).
    Udmabuf,
    /// Pages of `/dev/dma_heap/system`.
    SystemHeap,
    /// A PCI BAR exported by vfio-pci.
    VfioPci,
    /// Another exporter, by the name that the kernel shows.
    Unknown(String),
    /// No dma-buf at all: a window of a memfd that [stands in](gaudi_sys::standin) for one.
    StandIn,
}

impl Exporter {
    /// The exporter that the kernel calls so.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "habanalabs" => Self::Habanalabs,
            "udmabuf" => Self::Udmabuf,
            "system" | "system_heap" => Self::SystemHeap,
            "vfio_pci_core" | "vfio-pci-core" | "vfio_pci_dmabuf" => Self::VfioPci,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// The name as tables show it. The stand-in's says what it is.
    pub fn name(&self) -> &str {
        match self {
            Self::Habanalabs => "habanalabs",
            Self::Udmabuf => "udmabuf",
            Self::SystemHeap => "system heap",
            Self::VfioPci => "vfio-pci",
            Self::Unknown(name) => name,
            Self::StandIn => "memfd stand-in (no dma-buf)",
        }
    }

    /// Its number in messages and tables: fixed, since messages carry it between processes.
    pub(crate) fn tag(&self) -> u8 {
        match self {
            Self::Unknown(_) => 0,
            Self::Habanalabs => 1,
            Self::Udmabuf => 2,
            Self::SystemHeap => 3,
            Self::VfioPci => 4,
            Self::StandIn => 5,
        }
    }

    /// Whether this is a dma-buf of the kernel and not a stand-in.
    pub fn is_dmabuf(&self) -> bool {
        !matches!(self, Self::StandIn)
    }

    /// Why the CPU cannot map the memory, where that is known beforehand.
    pub(crate) fn refuses_cpu(&self) -> Option<&'static str> {
        match self {
            // drivers/accel/habanalabs/common/memory.c: its dma_buf_ops are attach, map, unmap and release.
            Self::Habanalabs => {
                Some("habanalabs exports have no mmap operation: only a device can reach them")
            }
            // drivers/vfio/pci/vfio_pci_dmabuf.c: likewise; the BAR is mapped through the VFIO device itself.
            Self::VfioPci => Some("vfio-pci exports have no mmap operation: map the BAR through the device"),
            _ => None,
        }
    }
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What names one exported range while it is open, in every process of this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Device and inode. Each dma-buf has its own; all stand-ins of one device's memory share the memfd's.
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

/// An owned dma-buf, or its stand-in. Clones share one descriptor; it closes with the last clone, window and attachment.
///
/// While any of them lives, in any process, an exported mapping cannot be unmapped and its device cannot be opened anew.
#[derive(Clone)]
pub struct DmaBuf {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    fd: OwnedFd,
    identity: Identity,
    size: u64,
    exporter: Exporter,
    birth: Birth,
    place: &'static Location<'static>,
    holders: Mutex<Holders>,
    #[expect(dead_code, reason = "counts the buffer while it lives")]
    record: Record,
}

#[derive(Default)]
pub(crate) struct Holders {
    next: u64,
    list: Vec<(u64, Holder)>,
}

impl Holders {
    pub(crate) fn add(&mut self, hold: Hold, name: String) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.list.push((ticket, Holder { hold, name }));
        ticket
    }

    pub(crate) fn remove(&mut self, ticket: u64) {
        self.list.retain(|(held, _)| *held != ticket);
    }
}

impl DmaBuf {
    /// Takes ownership of a descriptor of a dma-buf or of a stand-in.
    ///
    /// # Errors
    /// - `InvalidInput`: the descriptor is neither; the error names what it is. Or it is a stand-in with a [flaw](standin::Flaw), for
    ///   example one whose owner could kill this process with SIGBUS.
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
            let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
                .map_err(|error| failed(gaudi_sys::fd::errno_of_proc(error)))?;
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
            birth: Birth::here(),
            holders: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Bytes; never 0 for a stand-in, and page multiples for every exporter known here.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Who made it.
    pub fn exporter(&self) -> &Exporter {
        &self.inner.exporter
    }

    /// What names it, the same in every process that holds it.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// All of it as a window. `InvalidInput` where it has no bytes.
    pub fn whole(&self) -> Result<Window> {
        self.window(0, self.size())
    }

    /// The `len` bytes from `offset`. `InvalidInput` where there are none or they leave the buffer.
    pub fn window(&self, offset: u64, len: u64) -> Result<Window> {
        Window::new(self.clone(), offset, len)
    }

    /// The names of those in this process who are attached now, oldest first.
    pub fn attachments(&self) -> Vec<String> {
        self.holder_names()
    }

    /// Those in this process who are attached now, oldest first.
    pub fn attached(&self) -> Vec<Holder> {
        self.holders()
            .list
            .iter()
            .map(|(_, holder)| holder.clone())
            .collect()
    }

    fn holder_names(&self) -> Vec<String> {
        let holders = self.holders();
        holders
            .list
            .iter()
            .map(|(_, holder)| holder.name.clone())
            .collect()
    }

    /// The line of the program that took the descriptor.
    pub fn place(&self) -> &'static Location<'static> {
        self.inner.place
    }

    /// Gives the buffer a name, which `/proc`, debugfs and `gaudi dmabuf list` show (`DMA_BUF_SET_NAME`). `InvalidInput` where it is longer
    /// than 31 bytes or has a zero in it; `Unsupported` for a stand-in.
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

    /// Who in this process stands in the way of closing; `None` where `own` handles are all that there are.
    pub(crate) fn held_beyond(&self, own: usize) -> Option<String> {
        let names = self.holder_names();
        let others = Arc::strong_count(&self.inner).saturating_sub(own + names.len());
        (others > 0 || !names.is_empty())
            .then(|| format!("attachments [{}] and {others} more handles", names.join(", ")))
    }

    /// Closes the descriptor, or says who still needs it: `InUse` with the attachments' names and the number of other handles.
    pub fn close(self) -> Result<(), (Self, Error)> {
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
            (buffer, error)
        })
    }

    pub(crate) fn holders(&self) -> MutexGuard<'_, Holders> {
        self.inner.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to work in a fork child of the process that took the descriptor.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.inner.birth.is_elsewhere() {
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
