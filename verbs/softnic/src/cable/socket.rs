//! [`Socket`]: a cable that is a stream socket, and the two system calls that move payload between
//! it and registered memory without a copy.

#![expect(
    unsafe_code,
    reason = "sendmsg(2) and recvmsg(2) are given the raw addresses of memory that others write at any time"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockType, getsockopt, shutdown, sockopt};

use crate::error::defect;
use crate::region::Piece;

/// Pieces that one call moves: the header, and every element of a work request, of which a fault
/// rule cuts one into three.
const MAX_PIECES: usize = crate::MAX_SGE as usize + 4;

const OPERATION: &str = "softnic cable";

/// One end of a connected stream socket. Both threads of a NIC use it, each in its own direction.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// The receiving end of a loop: what is sent on one end is received on the other.
    incoming: Option<OwnedFd>,
    stall: Duration,
}

/// Deadline of a frame that has begun, or none. There is one for the whole frame: a peer that moves
/// a byte now and then must not hold queue pairs and memory longer than a peer that stops.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameEnd(pub(crate) Option<Instant>);

impl Socket {
    /// Takes a connected stream socket. The peer may take `stall` for one frame.
    ///
    /// # Errors
    /// `InvalidInput` if `fd` is not a stream socket.
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

    /// Returns a cable from a port to itself.
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

    /// Returns the deadline of a frame that begins now, or none if the clock cannot represent it.
    fn frame_end(&self) -> FrameEnd {
        FrameEnd(Instant::now().checked_add(self.stall))
    }

    /// Returns whether the other end closed its side. Bytes sent before may still be unread.
    pub(crate) fn is_hung_up(&self) -> bool {
        // nix has no name for POLLRDHUP. POLLHUP and POLLERR are reported without a request.
        let hang_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds = [PollFd::new(self.incoming().as_fd(), hang_up)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }

    /// Shuts both directions down, which wakes both threads.
    pub(crate) fn shut(&self) {
        // Fails with ENOTCONN if the peer shut it down first.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
        let _ = shutdown(self.incoming().as_raw_fd(), Shutdown::Both);
    }

    /// Sends a header and pieces of registered memory.
    ///
    /// # Errors
    /// The cable is down, or the peer does not take the frame in time.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and readable until this returns.
    pub(crate) unsafe fn send(&self, header: &[u8], pieces: &[Piece]) -> Result<()> {
        let mut vectors = [iovec(std::ptr::null_mut(), 0); MAX_PIECES];
        let parts = vectors.get_mut(..=pieces.len()).ok_or_else(too_many)?;
        let header = iovec(header.as_ptr().cast_mut(), header.len());
        let memory = pieces.iter().map(|piece| iovec(piece.at.as_ptr(), piece.len));
        for (part, vector) in parts.iter_mut().zip(std::iter::once(header).chain(memory)) {
            *part = vector;
        }
        let end = self.frame_end();
        let mut rest = skip_empty(parts);
        while !rest.is_empty() {
            let message = message(rest);
            // SAFETY: the header is borrowed and the pieces are mapped for the whole call, as the
            // caller promises. The kernel only reads them.
            let sent = unsafe {
                libc::sendmsg(
                    self.fd.as_raw_fd(),
                    &raw const message,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
            if let Some(count) = self.moved(sent, PollFlags::POLLOUT, end)? {
                rest = advance(rest, count);
            }
        }
        Ok(())
    }

    /// Sends a header and bytes of the NIC.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_own(&self, header: &[u8], bytes: &[u8]) -> Result<()> {
        let piece = Piece {
            at: NonNull::from(bytes).cast(),
            len: bytes.len(),
        };
        // SAFETY: the one piece is borrowed, and `send` only reads it.
        unsafe { self.send(header, &[piece]) }
    }

    /// Receives a header. Waits for its first byte without a limit. Returns the deadline of the
    /// whole frame, or `None` if the peer closed the cable between two frames.
    ///
    /// # Errors
    /// The cable is down, or the peer does not send the frame in time.
    pub(crate) fn receive_header(&self, into: &mut [u8]) -> Result<Option<FrameEnd>> {
        let mut vectors = [iovec(into.as_mut_ptr(), into.len())];
        // SAFETY: the one vector is an exclusive borrow.
        let count = unsafe { self.receive_once(&mut vectors, FrameEnd(None)) }?;
        if count == 0 {
            return Ok(None);
        }
        let end = self.frame_end();
        self.receive_own(&mut into[count..], end)?;
        Ok(Some(end))
    }

    /// Receives payload into pieces of registered memory.
    ///
    /// # Errors
    /// The cable is down, or the peer does not send the frame in time.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and writable until this returns,
    ///   and to which no reference exists.
    pub(crate) unsafe fn receive(&self, pieces: &[Piece], end: FrameEnd) -> Result<()> {
        let mut vectors = [iovec(std::ptr::null_mut(), 0); MAX_PIECES];
        let parts = vectors.get_mut(..pieces.len()).ok_or_else(too_many)?;
        for (part, piece) in parts.iter_mut().zip(pieces) {
            *part = iovec(piece.at.as_ptr(), piece.len);
        }
        let mut rest = skip_empty(parts);
        while !rest.is_empty() {
            // SAFETY: as the caller promises.
            match unsafe { self.receive_once(rest, end) }? {
                0 => {
                    return Err(Error::new(ErrorKind::Disconnected, OPERATION)
                        .because("the peer closed the cable in the middle of a frame"));
                }
                count => rest = advance(rest, count),
            }
        }
        Ok(())
    }

    /// Receives payload into memory of the caller.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub(crate) fn receive_own(&self, into: &mut [u8], end: FrameEnd) -> Result<()> {
        // SAFETY: the one piece is an exclusive borrow.
        unsafe { self.receive(&[Piece::of_bytes(into)], end) }
    }

    /// Receives and discards payload.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub(crate) fn discard(&self, len: usize, scratch: &mut [u8], end: FrameEnd) -> Result<()> {
        let mut left = len;
        while left > 0 {
            let part = scratch.len().min(left);
            self.receive_own(&mut scratch[..part], end)?;
            left -= part;
        }
        Ok(())
    }

    /// Receives some bytes. Returns 0 at the end of the stream.
    ///
    /// # Safety
    /// - Each vector is memory that stays mapped and writable until this returns.
    unsafe fn receive_once(&self, vectors: &mut [libc::iovec], end: FrameEnd) -> Result<usize> {
        loop {
            let mut message = message(vectors);
            let fd = self.incoming().as_raw_fd();
            // SAFETY: the message points to live vectors, and those to memory that the caller
            // promises.
            let received = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
            if let Some(count) = self.moved(received, PollFlags::POLLIN, end)? {
                return Ok(count);
            }
        }
    }

    /// Returns the bytes that a call moved. Returns `None` if the caller must repeat the call,
    /// after a wait if the socket was not ready.
    fn moved(&self, result: isize, events: PollFlags, end: FrameEnd) -> Result<Option<usize>> {
        match Errno::result(result) {
            Ok(count) => Ok(Some(count.unsigned_abs())),
            Err(Errno::EINTR) => Ok(None),
            Err(Errno::EAGAIN) => self.wait(events, end).map(|()| None),
            Err(errno) => Err(Error::from_errno(OPERATION, errno).with_kind(kind_of(errno))),
        }
    }

    /// Waits until the socket may be ready.
    fn wait(&self, events: PollFlags, FrameEnd(end): FrameEnd) -> Result<()> {
        let fd = if events.contains(PollFlags::POLLIN) {
            self.incoming()
        } else {
            &self.fd
        };
        let timeout = match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => {
                return Err(Error::new(ErrorKind::Disconnected, OPERATION)
                    .because("the peer stopped in the middle of a frame, or was too slow")
                    .saw(format!("no whole frame in {:?}", self.stall), "progress"));
            }
            // Rounded up, so that the last fraction of a millisecond does not spin. A time above
            // the maximum only wakes early.
            Some(left) => PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX),
        };
        match poll(&mut [PollFd::new(fd.as_fd(), events)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::from_errno(OPERATION, errno)),
        }
    }
}

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    }
}

/// Returns the error for more pieces than a work request can have.
fn too_many() -> Error {
    defect("a frame has more pieces than a work request has elements");
    Error::new(ErrorKind::InvalidInput, OPERATION)
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros has no name, no vectors and no control data; all its fields allow
    // zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

fn skip_empty(vectors: &mut [libc::iovec]) -> &mut [libc::iovec] {
    let empty = vectors.iter().take_while(|vector| vector.iov_len == 0).count();
    &mut vectors[empty..]
}

/// Drops the first `count` bytes.
fn advance(vectors: &mut [libc::iovec], mut count: usize) -> &mut [libc::iovec] {
    for vector in vectors.iter_mut() {
        let part = vector.iov_len.min(count);
        // The kernel never moves more than it was given, so the address stays inside its piece.
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
        // The socket was never connected, or its peer vanished.
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETDOWN => ErrorKind::Disconnected,
        errno => ErrorKind::of_errno(errno),
    }
}
