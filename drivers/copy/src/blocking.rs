//! Copies between device memory and bytes of the program, for callers that wait.

#![expect(unsafe_code, reason = "bytes of the program that a copy fills after the call")]

use std::ptr::NonNull;

use gaudi_device::{Deadline, ErrorKind, Result};
use gaudi_sys::shared;

use crate::attached::Attached;
use crate::transport::Transport;

/// The place of a piece in the program's bytes.
struct Into(NonNull<u8>);

// SAFETY: the caller of `read_bytes` keeps the bytes until no copy is in flight.
unsafe impl Send for Into {}

impl Into {
    /// # Safety
    /// The place has as many bytes.
    unsafe fn fill(self, bytes: &[u8]) {
        // SAFETY: guaranteed by the caller; pinned memory of the transport is not the program's.
        unsafe { shared::copy_in(self.0, bytes) };
    }
}

impl Transport {
    /// Repeats an operation that would block, when all before it are complete.
    ///
    /// # Errors
    /// Those of the operation but `WouldBlock`, and of [`flush_wait`](Self::flush_wait).
    pub fn accepted(&mut self, mut operation: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        loop {
            match operation(self) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.flush_wait(Deadline::NEVER)?,
                answer => return answer,
            }
        }
    }

    /// Copies any number of bytes to remote device memory. The bytes can be reused when the call
    /// returns; a flush ends the copy.
    ///
    /// # Errors
    /// As [`put_short`](Self::put_short), but neither of a length nor `WouldBlock`.
    pub fn write_bytes(&mut self, bytes: &[u8], remote: &Attached, mut address: u64) -> Result<()> {
        let config = *self.domain().config();
        if bytes.len() <= config.short_bytes {
            return self.accepted(|transport| transport.put_short(bytes, remote, address));
        }
        for piece in bytes.chunks(config.bcopy_bytes.max(1)) {
            let pack = |into: &mut [u8]| {
                let count = into.len().min(piece.len());
                into[..count].copy_from_slice(&piece[..count]);
                count
            };
            self.accepted(|transport| transport.put_bcopy(piece.len(), pack, remote, address).map(drop))?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies any number of bytes of remote device memory. A flush ends the copy.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes).
    ///
    /// # Safety
    /// Nothing accesses `bytes`, and they stay where they are, until a flush after the call has
    /// succeeded or the transport is dropped.
    pub unsafe fn read_bytes(&mut self, bytes: &mut [u8], remote: &Attached, mut address: u64) -> Result<()> {
        let config = *self.domain().config();
        if bytes.len() <= config.short_bytes.max(config.bcopy_bytes) {
            return self.accepted(|transport| transport.get_now(bytes, remote, address));
        }
        for piece in bytes.chunks_mut(config.bcopy_bytes.max(1)) {
            let (len, start) = (piece.len(), NonNull::from(piece).cast());
            self.accepted(|transport| {
                let place = Into(start);
                let unpack = move |bytes: &[u8]| {
                    let bytes = &bytes[..bytes.len().min(len)];
                    // SAFETY: the piece has `len` bytes.
                    unsafe { place.fill(bytes) };
                };
                transport.get_bcopy(len, unpack, remote, address, None).map(drop)
            })?;
            address += len as u64;
        }
        Ok(())
    }
}
