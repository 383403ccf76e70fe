//! A window over a Unix socket: one descriptor and a fixed message that must agree with it.
//!
//! ```text
//! offset bytes field      little-endian
//!  0     8     magic      "gdmabuf\0"
//!  8     2     version    1
//! 10     2     length     64
//! 12     4     exporter   its tag (export/mod.rs)
//! 16     8     inode      of the descriptor: both processes run on one kernel
//! 24     8     start      of a stand-in in its memfd, else 0
//! 32     8     size       of the buffer
//! 40     8     offset     of the window
//! 48     8     len        of the window
//! 56     8     reserved   0
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::socket::{try_receive_with_fds, try_send_with_fds};
use gaudi_sys::{Deadline, poll};
use nix::poll::{PollFd, PollFlags};

use crate::buffer::DmaBuf;
use crate::part::Part;
use crate::window::Window;

/// Bytes of the message that [`send`] sends and [`receive`] takes.
pub const MESSAGE_BYTES: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"gdmabuf\0");
const VERSION: u16 = 1;
const SEND: &str = "dma-buf send";
const RECEIVE: &str = "dma-buf receive";

/// Passes a window and a descriptor of its buffer to the process at the other end of a Unix stream
/// socket. The buffer then lives until that process, too, has closed it.
///
/// # Errors
/// - `TimedOut`: the socket, blocking or not, has no room within `timeout`. A part of the message
///   may have been sent: close the socket.
/// - `Forked`: this is a fork child of the process that made the buffer.
/// - sendmsg(2)'s.
pub fn send(socket: impl AsFd, window: &Window, timeout: Duration) -> Result<()> {
    let deadline = Deadline::from(timeout);
    window.dmabuf().check_process(SEND)?;
    let message = encode(window);
    let mut sent = 0;
    while let Some(rest) = message.get(sent..).filter(|rest| !rest.is_empty()) {
        // The descriptor travels with the first byte; a stream socket may take the message in
        // parts.
        let fd = window.dmabuf().as_fd();
        let fds = if sent == 0 { &[fd][..] } else { &[] };
        match try_send_with_fds(&socket, rest, fds) {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => drop(wait(&socket, PollFlags::POLLOUT, deadline, SEND)?),
            Err(errno) => return Err(Error::from_errno(SEND, errno)),
        }
    }
    Ok(())
}

/// Receives one window from a Unix stream socket. Waits at most `timeout`, whether the socket
/// blocks or not.
///
/// # Errors
/// - `Disconnected`: the peer closed the socket. `TimedOut`: the message was not complete within
///   `timeout`.
/// - `Protocol`: the message is malformed, has no descriptor or several, has out-of-band data, or
///   does not fit its descriptor.
/// - `TooManyFiles`: this process has no free descriptor.
///
/// After an error the stream may be in the middle of a message: close it. No descriptor of a
/// refused message stays open. close(2) of a file in a FUSE file system waits for its server: a
/// peer that serves one can delay the return.
#[track_caller]
pub fn receive(socket: impl AsFd, timeout: Duration) -> Result<Window> {
    let deadline = Deadline::from(timeout);
    let mut message = [0; MESSAGE_BYTES];
    let mut filled = 0;
    let mut fd: Option<OwnedFd> = None;
    while let Some(rest) = message.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // Out-of-band data is reported as readable, but no plain recvmsg(2) consumes it.
        let ready = wait(&socket, PollFlags::POLLIN | PollFlags::POLLPRI, deadline, RECEIVE)?;
        if ready.contains(PollFlags::POLLPRI) {
            return Err(protocol("the peer sent out-of-band data"));
        }
        let (count, fds) = match try_receive_with_fds(&socket, rest) {
            Ok(answer) => answer,
            Err(Errno::EAGAIN) => continue,
            Err(Errno::EMSGSIZE) => return Err(protocol("the message has more descriptors than the limit")),
            Err(errno) => return Err(Error::from_errno(RECEIVE, errno)),
        };
        if count == 0 {
            return Err(Error::new(ErrorKind::Disconnected, RECEIVE)
                .because("the peer closed the socket")
                .saw(format!("{filled} bytes"), format!("a message of {MESSAGE_BYTES}")));
        }
        for received in fds {
            if fd.replace(received).is_some() {
                return Err(protocol("a message carries exactly one descriptor").saw("several", "1"));
            }
        }
        filled += count;
    }
    let fd = fd.ok_or_else(|| protocol("the message has no descriptor").saw("none", "1"))?;
    Header::parse(&message, RECEIVE)?.confirm(fd, RECEIVE)
}

fn protocol(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, RECEIVE).because(cause)
}

/// Waits for one of the events, and returns those that occurred.
fn wait(
    socket: impl AsFd,
    events: PollFlags,
    deadline: Deadline,
    operation: &'static str,
) -> Result<PollFlags> {
    let mut set = [PollFd::new(socket.as_fd(), events)];
    match poll::wait(&mut set, deadline) {
        // Event bits that nix does not know count as the requested ones.
        Ok(true) => Ok(set[0].revents().unwrap_or(events)),
        Ok(false) => Err(Error::timed_out(operation)),
        Err(errno) => Err(Error::from_errno(operation, errno)),
    }
}

pub(crate) fn encode(window: &Window) -> [u8; MESSAGE_BYTES] {
    let dmabuf = window.dmabuf();
    let head = u64::from(VERSION) | (MESSAGE_BYTES as u64) << 16 | u64::from(dmabuf.exporter().tag()) << 32;
    let identity = dmabuf.identity();
    let words = [
        MAGIC,
        head,
        identity.file.inode,
        identity.start,
        dmabuf.size(),
        window.offset(),
        window.len(),
        0,
    ];
    let mut message = [0; MESSAGE_BYTES];
    for (place, word) in message.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    message
}

/// A well-formed message. Its content is not used before the descriptor has confirmed
/// it.
pub(crate) struct Header {
    exporter: u32,
    inode: u64,
    start: u64,
    size: u64,
    part: Part,
}

impl Header {
    /// Looks at the form alone.
    pub(crate) fn parse(message: &[u8; MESSAGE_BYTES], operation: &'static str) -> Result<Self> {
        let protocol = |cause: &str| Error::new(ErrorKind::Protocol, operation).because(cause);
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(message.chunks_exact(8)) {
            *word = bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let [magic, head, inode, start, size, offset, len, reserved] = words;
        if magic != MAGIC {
            let (seen, wanted) = (format!("{magic:#x}"), format!("{MAGIC:#x}"));
            return Err(protocol("this is no dma-buf message").saw(seen, wanted));
        }
        if head & 0xffff != u64::from(VERSION) {
            return Err(protocol("the peer has another version").saw(head & 0xffff, VERSION));
        }
        if head >> 16 & 0xffff != MESSAGE_BYTES as u64 || reserved != 0 {
            return Err(protocol("the message's layout is not that of its version"));
        }
        let part = Part::within(size, offset, len).ok_or_else(|| {
            protocol("the window leaves its buffer").saw(
                format!("{len} bytes at {offset:#x}"),
                format!("1 byte or more inside {size} bytes"),
            )
        })?;
        Ok(Self {
            exporter: (head >> 32) as u32,
            inode,
            start,
            size,
            part,
        })
    }

    /// Returns the window if the descriptor is what the message claims; otherwise closes it.
    #[track_caller]
    pub(crate) fn confirm(&self, fd: OwnedFd, operation: &'static str) -> Result<Window> {
        // The peer's fault is a wrong descriptor alone, not what this process lacks to examine it.
        let dmabuf = DmaBuf::from_fd(fd).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => error.with_kind(ErrorKind::Protocol),
            _ => error,
        })?;
        let identity = dmabuf.identity();
        let found = (
            u32::from(dmabuf.exporter().tag()),
            identity.file.inode,
            identity.start,
            dmabuf.size(),
        );
        let described = (self.exporter, self.inode, self.start, self.size);
        if found != described {
            return Err(Error::new(ErrorKind::Protocol, operation)
                .because("the message does not describe its descriptor")
                .saw(
                    format!("(exporter, inode, start, size) = {described:?}"),
                    format!("{found:?}"),
                ));
        }
        Ok(Window::new(dmabuf, self.part))
    }
}
