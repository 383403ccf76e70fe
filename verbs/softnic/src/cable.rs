//! [`Cable`]: one end of a cable. Two threads serve a socket; a [`Fabric`](crate::Fabric) steps a
//! cable in memory.

#![expect(unsafe_code, reason = "raw addresses of registered memory are passed on")]

pub(crate) mod memory;
pub(crate) mod socket;

use gaudi_seam::Result;

use self::memory::Memory;
use self::socket::{FrameEnd, Socket};
use crate::region::Piece;

/// One end of a cable.
#[derive(Debug)]
pub(crate) enum Cable {
    Socket(Socket),
    Memory(Memory),
}

impl Cable {
    /// Returns whether the other end closed its side. Frames sent before may still be unread.
    pub(crate) fn is_hung_up(&self) -> bool {
        match self {
            Self::Socket(socket) => socket.is_hung_up(),
            Self::Memory(memory) => memory.is_hung_up(),
        }
    }

    /// Shuts both directions down, for good.
    pub(crate) fn shut(&self) {
        match self {
            Self::Socket(socket) => socket.shut(),
            Self::Memory(memory) => memory.shut(),
        }
    }

    /// Sends a header and pieces of registered memory.
    ///
    /// # Errors
    /// The cable is down, or the peer does not take the frame in time.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and readable until this returns.
    pub(crate) unsafe fn send(&self, header: &[u8], pieces: &[Piece]) -> Result<()> {
        match self {
            // SAFETY: as the caller promises.
            Self::Socket(socket) => unsafe { socket.send(header, pieces) },
            // SAFETY: as the caller promises.
            Self::Memory(memory) => unsafe { memory.send(header, pieces) },
        }
    }

    /// Sends a header and bytes of the NIC.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_own(&self, header: &[u8], bytes: &[u8]) -> Result<()> {
        match self {
            Self::Socket(socket) => socket.send_own(header, bytes),
            Self::Memory(memory) => memory.send_own(header, bytes),
        }
    }

    /// Receives a header. Returns the deadline of the whole frame, or `None` if the peer closed the
    /// cable between two frames.
    ///
    /// # Errors
    /// The cable is down, or the peer does not send the frame in time.
    pub(crate) fn receive_header(&self, into: &mut [u8]) -> Result<Option<FrameEnd>> {
        match self {
            Self::Socket(socket) => socket.receive_header(into),
            Self::Memory(memory) => memory.receive_header(into),
        }
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
        match self {
            // SAFETY: as the caller promises.
            Self::Socket(socket) => unsafe { socket.receive(pieces, end) },
            // SAFETY: as the caller promises.
            Self::Memory(memory) => unsafe { memory.receive(pieces) },
        }
    }

    /// Receives payload into memory of the caller.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub(crate) fn receive_own(&self, into: &mut [u8], end: FrameEnd) -> Result<()> {
        match self {
            Self::Socket(socket) => socket.receive_own(into, end),
            Self::Memory(memory) => memory.receive_own(into),
        }
    }

    /// Receives and discards payload. A socket uses `scratch`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub(crate) fn discard(&self, len: usize, scratch: &mut [u8], end: FrameEnd) -> Result<()> {
        match self {
            Self::Socket(socket) => socket.discard(len, scratch, end),
            // The next frame replaces it.
            Self::Memory(_) => Ok(()),
        }
    }
}
