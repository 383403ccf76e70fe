//! Passing without a socket: the holder offers process and descriptor numbers, the other fetches
//! (pidfd_getfd(2)).
//!
//! ```text
//! offset bytes field      little-endian
//!  0     64    message    as `send` sends it
//! 64     4     pid        of the process that offers, in the pid namespace that both share
//! 68     4     fd         its descriptor
//! ```

use std::os::fd::{AsFd, AsRawFd};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::pidfd;

use crate::message::{Header, MESSAGE_BYTES, encode};
use crate::window::Window;

/// Bytes of an [`Offer`].
pub const OFFER_BYTES: usize = MESSAGE_BYTES + 8;

const FETCH: &str = "dma-buf fetch (pidfd_getfd)";

/// Where a window can be had: plain bytes for a pipe, a file or a message of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    message: [u8; MESSAGE_BYTES],
    pid: u32,
    fd: u32,
}

impl Window {
    /// Offers this window to other processes. It can be fetched while the window's buffer is open
    /// here, by processes that may trace this one (ptrace(2)).
    ///
    /// # Errors
    /// `Forked`: this is a fork child of the process that made the buffer.
    pub fn offer(&self) -> Result<Offer> {
        self.dmabuf().check_process("dma-buf offer")?;
        let fd = u32::try_from(self.dmabuf().as_fd().as_raw_fd())
            .map_err(|_| Error::from_errno("dma-buf offer", Errno::EBADF))?;
        Ok(Offer {
            message: encode(self),
            pid: std::process::id(),
            fd,
        })
    }
}

impl Offer {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..MESSAGE_BYTES].copy_from_slice(&self.message);
        bytes[MESSAGE_BYTES..MESSAGE_BYTES + 4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[MESSAGE_BYTES + 4..].copy_from_slice(&self.fd.to_le_bytes());
        bytes
    }

    /// From bytes, of whatever origin; [`fetch`](Self::fetch) judges them.
    pub fn from_bytes(bytes: &[u8; OFFER_BYTES]) -> Self {
        let number = |at: usize| {
            let word = bytes[at..].iter().take(4).rev();
            word.fold(0, |number, byte| number << 8 | u32::from(*byte))
        };
        let mut message = [0; MESSAGE_BYTES];
        message.copy_from_slice(&bytes[..MESSAGE_BYTES]);
        Self {
            message,
            pid: number(MESSAGE_BYTES),
            fd: number(MESSAGE_BYTES + 4),
        }
    }

    /// Returns the process that offers the window.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Fetches the window. The offer's form is checked before any descriptor is requested, and the
    /// descriptor must be what the offer describes.
    ///
    /// The peer that made the bytes chooses both numbers: it can make this process duplicate,
    /// examine and close any descriptor of any process that this process may trace, itself
    /// included. No socket is connected and no credentials are compared (`SO_PEERCRED`): only the
    /// descriptor's exporter, inode, start and size must be those of the message. A process that
    /// may trace more than its peer uses [`receive`](crate::receive) instead, where a peer passes
    /// descriptors of its own only.
    ///
    /// # Errors
    /// - `Protocol`: the offer is malformed, or the descriptor is another file.
    /// - `Disconnected`: the process has ended.
    /// - `NotFound`: the process has no such descriptor.
    /// - `PermissionDenied`: the process may not be traced.
    /// - `Unsupported`: the kernel is older than Linux 5.6.
    #[track_caller]
    pub fn fetch(&self) -> Result<Window> {
        let header = Header::parse(&self.message, FETCH)?;
        let process = pidfd::open(self.pid).map_err(|errno| self.explain(errno))?;
        let fd = pidfd::getfd(&process, self.fd).map_err(|errno| self.explain(errno))?;
        header.confirm(fd, FETCH)
    }

    fn explain(&self, errno: Errno) -> Error {
        let error = Error::from_errno(FETCH, errno);
        let pid = self.pid;
        match errno {
            Errno::ESRCH => error
                .with_kind(ErrorKind::Disconnected)
                .because(format!("process {pid} has ended")),
            Errno::EBADF => error
                .with_kind(ErrorKind::NotFound)
                .because(format!("process {pid} has closed its descriptor {}", self.fd)),
            Errno::EPERM => error.because(format!("process {pid} may not be traced")).helped_by(
                "run both as one user; where kernel.yama.ptrace_scope is 1 let it call prctl(PR_SET_PTRACER), or pass the window over a socket",
            ),
            _ => error,
        }
    }
}
