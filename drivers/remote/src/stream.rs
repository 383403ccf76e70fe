//! The bodies of the frames with which two endpoints connect and offer memory.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use gaudi_seam::{Error, ErrorKind, Result};

/// Kinds of frames: the addresses of both queue pairs.
pub(crate) const HELLO: u16 = 1;
/// The queue pairs are connected, and receives are posted.
pub(crate) const READY: u16 = 2;
/// Memory that the sender offers.
pub(crate) const OFFER: u16 = 3;
/// The longest body.
pub(crate) const MAX_BODY: usize = 1024;

/// Returns the error of a message that the peer sent.
pub(crate) fn protocol(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, "receive from the peer").because(cause)
}

/// Converts an error of a system call.
pub(crate) fn io(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from_errno(operation, gaudi_sys::fd::errno_of(error))
}

/// Returns the error of a call on an endpoint in a fork child of the process that made it.
pub(crate) fn forked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Forked, operation)
        .because("the connection belongs to the parent of this fork child")
}

/// Shuts a stream down in both directions.
pub(crate) fn hang_up(stream: BorrowedFd<'_>) {
    use nix::sys::socket::{Shutdown, shutdown};
    // The peer may have closed it; a stream that is not a socket closes with its owner.
    let _ = shutdown(stream.as_raw_fd(), Shutdown::Both);
}

fn too_short() -> Error {
    protocol("the message is too short")
}

/// Reads a body from front to back. A body of the wrong length is a `Protocol` error.
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a text after its length. Invalid UTF-8 and control characters are replaced: the text
    /// may be printed on a terminal.
    pub(crate) fn text(&mut self) -> Result<String> {
        let len = usize::from(self.u16()?);
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(too_short)?;
        self.0 = rest;
        let text = String::from_utf8_lossy(head);
        let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        Ok(text.chars().map(printable).collect())
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(protocol("the message is too long").saw(self.0.len(), "no bytes left"))
        }
    }
}

/// Appends a text after its length, cut to `max_len` bytes (at most 65535).
pub(crate) fn put_text(body: &mut Vec<u8>, text: &str, max_len: u16) {
    let mut end = text.len().min(max_len.into());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Below `max_len`, so it fits.
    body.extend((end as u16).to_le_bytes());
    body.extend(&text.as_bytes()[..end]);
}
