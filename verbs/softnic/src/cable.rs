//! The cable: a stream socket, and the two system calls that move payload between it and registered memory without a copy.

#![expect(
    unsafe_code,
    reason = "sendmsg(2) and recvmsg(2) are given the raw addresses of memory that others write at any time"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockType, getsockopt, shutdown, sockopt};

use crate::region::Piece;

/// Pieces that one call moves: every element of a work request, cut once by a fault rule, and the header.
const MAX_PIECES: usize = crate::MAX_SGE as usize + 4;

const OPERATION: &str = "softnic cable";

/// One end of a connected stream socket. Both threads of a NIC use it, each in its own direction.
#[derive(Debug)]
pub(crate) struct Cable {
    fd: OwnedFd,
    /// Where it comes in, of a loop: what is sent on the one end is received on the other.
    incoming: Option<OwnedFd>,
    stall: Duration,
}

/// When a frame that has begun must have gone through. It is one for the whole frame: a peer that sends or takes a byte now and then
/// must not hold queue pairs and memory, and whoever waits to destroy them, any longer than one that stops.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameEnd(Option<Instant>);

impl Cable {
    /// Takes a connected stream socket. `stall` is how long the peer may take for one frame.
    pub(crate) fn new(fd: OwnedFd, stall: Duration) -> Result<Self> {
        let kind = getsockopt(&fd, sockopt::SockType).map_err(|errno| {
            Error::from_errno(OPERATION, errno).because("the cable must be a connected stream socket")
        })?;
        if kind != SockType::Stream {
            return Err(Error::from_errno(OPERATION, Errno::EINVAL)
                .because("the cable must be a stream socket")
                .saw(format!("{kind:?}"), "Stream"));
        }
        Ok(Self {
            fd,
            incoming: None,
            stall,
        })
    }

    /// A cable from a port to itself.
    pub(crate) fn looped(stall: Duration) -> Result<Self> {
        let (out, incoming) = std::os::unix::net::UnixStream::pair()
            .map_err(|error| Error::from_errno(OPERATION, gaudi_sys::fd::errno_of(error)))?;
        Ok(Self {
            fd: out.into(),
            incoming: Some(incoming.into()),
            stall,
        })
    }

    fn incoming(&self) -> &OwnedFd {
        self.incoming.as_ref().unwrap_or(&self.fd)
    }

    /// The end of a frame that begins now; none where the time does not fit a clock.
    fn frame_end(&self) -> FrameEnd {
        FrameEnd(Instant::now().checked_add(self.stall))
    }

    /// Whether the other end closed its side. Bytes that it sent before may still be there to
    /// receive.
    pub(crate) fn is_hung_up(&self) -> bool {
        // nix has no name for it. POLLHUP and POLLERR are reported without being requested.
        let hang_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds = [PollFd::new(self.incoming().as_fd(), hang_up)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }

    /// Ends both directions: whoever waits on the cable wakes.
    pub(crate) fn shut(&self) {
        // ENOTCONN only says that the peer was faster.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
        let _ = shutdown(self.incoming().as_raw_fd(), Shutdown::Both);
    }

    /// Sends a header and pieces of registered memory, all of them.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and readable until this returns.
    pub(crate) unsafe fn send(&self, header: &[u8], pieces: &[Piece]) -> Result<()> {
        let mut vectors = [EMPTY; MAX_PIECES];
        let count = pieces.len() + 1;
        let parts = vectors
            .get_mut(..count)
            .ok_or(Error::new(ErrorKind::InvalidInput, OPERATION))?;
        for (place, (base, len)) in parts.iter_mut().zip(
            std::iter::once((header.as_ptr().cast_mut(), header.len()))
                .chain(pieces.iter().map(|piece| (piece.at.as_ptr(), piece.len))),
        ) {
            place.iov_base = base.cast();
            place.iov_len = len;
        }
        let mut rest = parts;
        let end = self.frame_end();
        loop {
            rest = skip_empty(rest);
            if rest.is_empty() {
                return Ok(());
            }
            let message = message(rest);
            // SAFETY: the header is borrowed and the pieces are mapped for the whole call, as the caller promises; the kernel only reads.
            let sent = unsafe {
                libc::sendmsg(
                    self.fd.as_raw_fd(),
                    &raw const message,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
            match Errno::result(sent) {
                Ok(count) => rest = advance(rest, usize::try_from(count).unwrap_or(0)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, end)?,
                Err(errno) => return Err(Error::from_errno(OPERATION, errno).with_kind(kind_of(errno))),
            }
        }
    }

    /// Receives a header, waiting for its first byte as long as it takes. Says when the rest of the frame must be here; `None` where
    /// the peer closed between two frames.
    pub(crate) fn receive_header(&self, into: &mut [u8]) -> Result<Option<FrameEnd>> {
        let mut filled = 0;
        let mut end = FrameEnd(None);
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let mut vectors = [libc::iovec {
                iov_base: rest.as_mut_ptr().cast(),
                iov_len: rest.len(),
            }];
            // SAFETY: the one vector is an exclusive borrow.
            match unsafe { self.receive_once(&mut vectors, end) }? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(cut()),
                count => {
                    if filled == 0 {
                        end = self.frame_end();
                    }
                    filled += count;
                }
            }
        }
        Ok(Some(end))
    }

    /// Receives payload into pieces of registered memory, all of them.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and writable until this returns, and to which no reference exists.
    pub(crate) unsafe fn receive(&self, pieces: &[Piece], end: FrameEnd) -> Result<()> {
        let mut vectors = [EMPTY; MAX_PIECES];
        let parts = vectors
            .get_mut(..pieces.len())
            .ok_or(Error::new(ErrorKind::InvalidInput, OPERATION))?;
        for (place, piece) in parts.iter_mut().zip(pieces) {
            place.iov_base = piece.at.as_ptr().cast();
            place.iov_len = piece.len;
        }
        let mut rest = parts;
        loop {
            rest = skip_empty(rest);
            if rest.is_empty() {
                return Ok(());
            }
            // SAFETY: as the caller promises.
            match unsafe { self.receive_once(rest, end) }? {
                0 => return Err(cut()),
                count => rest = advance(rest, count),
            }
        }
    }

    /// Receives a few bytes of payload into memory of our own, all of them.
    pub(crate) fn receive_own(&self, into: &mut [u8], end: FrameEnd) -> Result<()> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let mut vectors = [libc::iovec {
                iov_base: rest.as_mut_ptr().cast(),
                iov_len: rest.len(),
            }];
            // SAFETY: the one vector is an exclusive borrow.
            match unsafe { self.receive_once(&mut vectors, end) }? {
                0 => return Err(cut()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Receives payload that nobody wants.
    pub(crate) fn discard(&self, mut len: usize, scratch: &mut [u8], end: FrameEnd) -> Result<()> {
        while len > 0 {
            let part = scratch.len().min(len);
            let mut vectors = [libc::iovec {
                iov_base: scratch.as_mut_ptr().cast(),
                iov_len: part,
            }];
            // SAFETY: the one vector is an exclusive borrow of at least `part` bytes.
            match unsafe { self.receive_once(&mut vectors, end) }? {
                0 => return Err(cut()),
                count => len = len.saturating_sub(count),
            }
        }
        Ok(())
    }

    /// # Safety
    /// - Each vector is memory that stays mapped and writable until this returns.
    unsafe fn receive_once(&self, vectors: &mut [libc::iovec], end: FrameEnd) -> Result<usize> {
        loop {
            let mut message = message(vectors);
            // SAFETY: the message points at live vectors, and those at memory that the caller promises.
            let count =
                unsafe { libc::recvmsg(self.incoming().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            match Errno::result(count) {
                Ok(count) => return Ok(usize::try_from(count).unwrap_or(0)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLIN, end)?,
                Err(errno) => return Err(Error::from_errno(OPERATION, errno).with_kind(kind_of(errno))),
            }
        }
    }

    /// Waits for a change; it may come back without one.
    fn wait(&self, events: PollFlags, FrameEnd(end): FrameEnd) -> Result<()> {
        let fd = if events.contains(PollFlags::POLLIN) {
            self.incoming()
        } else {
            &self.fd
        };
        let patience = match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => {
                return Err(Error::new(ErrorKind::Disconnected, OPERATION)
                    .because("the peer stopped or crept in the middle of a frame")
                    .saw(format!("no whole frame in {:?}", self.stall), "progress"));
            }
            // Rounded up, so that the last fraction of a millisecond does not spin.
            Some(left) => PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX),
        };
        match poll(&mut [PollFd::new(fd.as_fd(), events)], patience) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::from_errno(OPERATION, errno)),
        }
    }
}

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros has no name, no vectors and no control data; all its fields allow zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

fn skip_empty(vectors: &mut [libc::iovec]) -> &mut [libc::iovec] {
    let empty = vectors.iter().take_while(|vector| vector.iov_len == 0).count();
    vectors.get_mut(empty..).unwrap_or_default()
}

/// Drops the first `count` bytes.
fn advance(vectors: &mut [libc::iovec], mut count: usize) -> &mut [libc::iovec] {
    for vector in vectors.iter_mut() {
        let part = vector.iov_len.min(count);
        // The kernel never moves more than it was given, so that the address stays inside its piece.
        vector.iov_base = vector.iov_base.wrapping_byte_add(part);
        vector.iov_len -= part;
        count -= part;
        if count == 0 {
            break;
        }
    }
    skip_empty(vectors)
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        // A cable that was never connected, or whose peer is gone.
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETDOWN => ErrorKind::Disconnected,
        errno => ErrorKind::of_errno(errno),
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Disconnected, OPERATION)
        .because("the peer closed the cable in the middle of a frame")
}
