//! [`Memory`]: one end of a cable in memory. Nothing in it waits.

#![expect(unsafe_code, reason = "payload is copied from and to raw addresses")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::lock;

use crate::cable::socket::FrameEnd;
use crate::region::{Piece, scatter};

/// Frames in flight in one direction. Then the sending end waits, as with a full socket.
const ROOM: usize = 64;
const OPERATION: &str = "softnic cable";

/// One direction of a cable.
#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<Vec<u8>>,
    is_closed: bool,
}

/// One end of a cable.
#[derive(Debug)]
pub(crate) struct Memory {
    out: Arc<Mutex<Lane>>,
    incoming: Arc<Mutex<Lane>>,
    /// The frame that is being received, and how much of it was taken.
    current: Mutex<(Vec<u8>, usize)>,
}

impl Memory {
    /// Returns both ends of a cable.
    pub(crate) fn pair() -> (Self, Self) {
        let lanes = [(), ()].map(|()| Arc::<Mutex<Lane>>::default());
        let end = |out: &Arc<Mutex<Lane>>, incoming: &Arc<Mutex<Lane>>| Self {
            out: Arc::clone(out),
            incoming: Arc::clone(incoming),
            current: Mutex::default(),
        };
        let [there, back] = &lanes;
        (end(there, back), end(back, there))
    }

    /// Returns a cable from a port to itself.
    pub(crate) fn looped() -> Self {
        let lane = Arc::<Mutex<Lane>>::default();
        Self {
            out: Arc::clone(&lane),
            incoming: lane,
            current: Mutex::default(),
        }
    }

    /// Whether the cable takes another frame.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.out).frames.len() < ROOM
    }

    /// Whether there is a frame to receive, or the end of the stream.
    pub(crate) fn has_input(&self) -> bool {
        let lane = lock(&self.incoming);
        !lane.frames.is_empty() || lane.is_closed
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        lock(&self.incoming).is_closed
    }

    pub(crate) fn shut(&self) {
        lock(&self.out).is_closed = true;
        let mut lane = lock(&self.incoming);
        lane.is_closed = true;
        lane.frames.clear();
    }

    /// # Errors
    /// `Disconnected` if one of the ends was shut.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and readable until this returns.
    pub(crate) unsafe fn send(&self, header: &[u8], pieces: &[Piece]) -> Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len).sum();
        let mut frame = Vec::with_capacity(header.len() + len);
        frame.extend_from_slice(header);
        for piece in pieces {
            // SAFETY: as the caller promises.
            unsafe { piece.append_to(&mut frame) };
        }
        self.push(frame)
    }

    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_own(&self, header: &[u8], bytes: &[u8]) -> Result<()> {
        self.push([header, bytes].concat())
    }

    fn push(&self, frame: Vec<u8>) -> Result<()> {
        let mut lane = lock(&self.out);
        if lane.is_closed {
            return Err(Error::new(ErrorKind::Disconnected, OPERATION).because("the cable is closed"));
        }
        lane.frames.push_back(frame);
        Ok(())
    }

    /// Takes the next frame and its header.
    ///
    /// # Errors
    /// `Disconnected` if the frame is shorter, or there is none.
    pub(crate) fn receive_header(&self, into: &mut [u8]) -> Result<Option<FrameEnd>> {
        let mut lane = lock(&self.incoming);
        let Some(frame) = lane.frames.pop_front() else {
            return match lane.is_closed {
                true => Ok(None),
                false => Err(cut()),
            };
        };
        drop(lane);
        *lock(&self.current) = (frame, 0);
        self.receive_own(into)?;
        Ok(Some(FrameEnd(None)))
    }

    /// # Errors
    /// `Disconnected` if the frame is shorter.
    ///
    /// # Safety
    /// - Each piece is memory of this process that stays mapped and writable until this returns,
    ///   and to which no reference exists.
    pub(crate) unsafe fn receive(&self, pieces: &[Piece]) -> Result<()> {
        // SAFETY: as the caller promises.
        self.take(pieces.iter().map(|piece| piece.len).sum(), |bytes| unsafe {
            scatter(pieces, bytes);
        })
    }

    /// # Errors
    /// As [`receive`](Self::receive).
    pub(crate) fn receive_own(&self, into: &mut [u8]) -> Result<()> {
        self.take(into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn take(&self, len: usize, copy: impl FnOnce(&[u8])) -> Result<()> {
        let (frame, taken) = &mut *lock(&self.current);
        let bytes = taken.checked_add(len).and_then(|end| frame.get(*taken..end));
        copy(bytes.ok_or_else(cut)?);
        *taken += len;
        Ok(())
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Disconnected, OPERATION).because("the frame is cut")
}
