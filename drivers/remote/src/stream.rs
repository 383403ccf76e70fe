//! What two nodes say over the stream that joins them: framed, versioned, length-checked, and never waited for beyond a deadline.
//!
//! ```text
//! offset bytes field     little-endian
//!  0     4     magic     "gvr\0"
//!  4     2     version   1
//!  6     2     kind      1 hello, 2 ready, 3 offer
//!  8     4     length    of the body: at most 1024
//! 12     …     body      by kind
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use nix::sys::socket::{setsockopt, sockopt};

const MAGIC: [u8; 4] = *b"gvr\0";
const VERSION: u16 = 1;
const HEAD: usize = 12;
/// The longest body.
pub(crate) const MOST: usize = 1024;
const SEND: &str = "send to the peer";
const RECEIVE: &str = "receive from the peer";

/// A connected stream between two nodes. TCP for two machines, a Unix socket for two processes of one.
///
/// It must tell a hang-up through `poll(2)` (`POLLRDHUP`), as sockets do: that is how the death of a peer is seen that owes an answer.
pub trait Stream: Read + Write + AsFd + Send + 'static {
    /// How long one read and one write may take from now on.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;

    /// Called once, before anything is said: makes the stream tell of a peer whose machine is gone, and send small messages at once.
    ///
    /// TCP: `SO_KEEPALIVE` with a first probe after 10 s of silence (`TCP_KEEPIDLE`), the next after 5 s each (`TCP_KEEPINTVL`), and the
    /// end after four without an answer (`TCP_KEEPCNT`); bytes that nobody acknowledges end it after 30 s as well (`TCP_USER_TIMEOUT`).
    /// So a machine that loses power is `Disconnected` after 30 s. A Unix socket needs none of it: the kernel closes the peer's end.
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Seconds of silence before the first probe, between two, and how many go without an answer.
const KEEPALIVE: [u32; 3] = [10, 5, 4];
/// Milliseconds that bytes may go without an acknowledgement: as long.
const UNACKNOWLEDGED: u32 = 1000 * (KEEPALIVE[0] + KEEPALIVE[1] * KEEPALIVE[2]);

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    fn prepare(&self) -> io::Result<()> {
        // Small messages that somebody waits for.
        self.set_nodelay(true)?;
        let [idle, interval, count] = &KEEPALIVE;
        setsockopt(self, sockopt::TcpKeepIdle, idle)?;
        setsockopt(self, sockopt::TcpKeepInterval, interval)?;
        setsockopt(self, sockopt::TcpKeepCount, count)?;
        setsockopt(self, sockopt::TcpUserTimeout, &UNACKNOWLEDGED)?;
        setsockopt(self, sockopt::KeepAlive, &true)?;
        Ok(())
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello = 1,
    Ready = 2,
    Offer = 3,
}

/// A stream with a deadline.
pub(crate) struct Framed {
    stream: Box<dyn Stream>,
    /// Why nothing more can be said: a frame stopped in its middle.
    broken: Option<Error>,
}

impl Framed {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, broken: None }
    }

    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn until(&self, operation: &'static str, end: Option<Instant>) -> Result<()> {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Error::timed_out(operation));
        }
        self.stream
            .set_timeout(left)
            .map_err(|error| broken(operation, &error))
    }

    /// Why the stream is of no more use, where that is so.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Remembers that the two ends are out of step. A deadline of one call is no reason that the next could branch on.
    fn out_of_step(&mut self, error: &Error) {
        let error = match error.kind() {
            ErrorKind::TimedOut => Error::new(ErrorKind::Disconnected, error.operation())
                .because("a message stopped in its middle: what comes next cannot be told from its rest"),
            _ => error.clone(),
        };
        self.broken.get_or_insert(error);
    }

    /// After an error but `TimedOut` before the first byte the stream is [`broken`](Self::broken).
    pub(crate) fn send(&mut self, kind: Kind, body: &[u8], end: Option<Instant>) -> Result<()> {
        let len = u32::try_from(body.len())
            .ok()
            .filter(|&len| len as usize <= MOST)
            .ok_or_else(|| protocol("a message of ours is too long"))?;
        let mut frame = Vec::with_capacity(HEAD + body.len());
        frame.extend(MAGIC);
        frame.extend(VERSION.to_le_bytes());
        frame.extend((kind as u16).to_le_bytes());
        frame.extend(len.to_le_bytes());
        frame.extend(body);
        self.usable()?;
        let mut sent = 0;
        let answer = self.write(&frame, &mut sent, end);
        self.judge(answer, sent)
    }

    fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Breaks the stream where a frame was begun, or will never be.
    fn judge<T>(&mut self, answer: Result<T>, moved: usize) -> Result<T> {
        if let Err(error) = &answer {
            if moved > 0 || error.kind() != ErrorKind::TimedOut {
                self.out_of_step(error);
            }
        }
        answer
    }

    fn write(&mut self, frame: &[u8], sent: &mut usize, end: Option<Instant>) -> Result<()> {
        while let Some(rest) = frame.get(*sent..).filter(|rest| !rest.is_empty()) {
            self.until(SEND, end)?;
            match self.stream.write(rest) {
                Ok(0) => return Err(gone(SEND)),
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(SEND, &error)),
            }
        }
        self.stream.flush().map_err(|error| broken(SEND, &error))
    }

    /// The next frame, which must be of this kind. After an error but `TimedOut` before its first byte the stream is
    /// [`broken`](Self::broken).
    pub(crate) fn receive(&mut self, kind: Kind, end: Option<Instant>) -> Result<Vec<u8>> {
        self.usable()?;
        let mut read = 0;
        let answer = self.read(kind, &mut read, end);
        self.judge(answer, read)
    }

    fn read(&mut self, kind: Kind, count: &mut usize, end: Option<Instant>) -> Result<Vec<u8>> {
        let mut head = [0; HEAD];
        self.fill(&mut head, count, end)?;
        if head[..4] != MAGIC {
            return Err(protocol("this is no peer of ours")
                .saw(format!("{:02x?}", &head[..4]), format!("{MAGIC:02x?}")));
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(protocol("the peer speaks another version").saw(version, VERSION));
        }
        let seen = u16::from_le_bytes([head[6], head[7]]);
        if seen != kind as u16 {
            return Err(
                protocol("another message was expected").saw(seen, format!("{} ({kind:?})", kind as u16))
            );
        }
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        if len > MOST {
            return Err(protocol("the message is too long").saw(len, format!("at most {MOST}")));
        }
        let mut body = vec![0; len];
        self.fill(&mut body, count, end)?;
        Ok(body)
    }

    fn fill(&mut self, into: &mut [u8], read: &mut usize, end: Option<Instant>) -> Result<()> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            self.until(RECEIVE, end)?;
            match self.stream.read(rest) {
                Ok(0) => return Err(gone(RECEIVE)),
                Ok(count) => {
                    filled += count;
                    *read += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(RECEIVE, &error)),
            }
        }
        Ok(())
    }
}

pub(crate) fn protocol(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, RECEIVE).because(cause)
}

fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Disconnected, operation).because("the peer closed the stream")
}

fn broken(operation: &'static str, error: &io::Error) -> Error {
    if error.raw_os_error() == Some(Errno::ETIMEDOUT as i32) {
        // A deadline of ours is EAGAIN; this is the kernel's word on a peer that answers no probe.
        return Error::from_errno(operation, Errno::ETIMEDOUT)
            .with_kind(ErrorKind::Disconnected)
            .because("the peer's machine does not answer");
    }
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::timed_out(operation),
        _ => match error.raw_os_error() {
            Some(errno) => Error::from_errno(operation, Errno::from_raw(errno)),
            None => Error::new(ErrorKind::Io, operation).because(error.to_string()),
        },
    }
}

/// Reads a body from front to back; an end that comes too early, or too late, is the peer's fault.
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(*head)
            }
            None => Err(protocol("the message is too short")),
        }
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

    /// A text with its length before it. What is no UTF-8 is replaced: it is for people only.
    pub(crate) fn text(&mut self) -> Result<String> {
        let len = usize::from(self.u16()?);
        match self.0.split_at_checked(len) {
            Some((head, rest)) => {
                self.0 = rest;
                let text = String::from_utf8_lossy(head);
                // It may be shown on a terminal.
                Ok(text
                    .chars()
                    .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                    .collect())
            }
            None => Err(protocol("the message is too short")),
        }
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(protocol("the message is too long").saw(self.0.len(), "no bytes left"))
        }
    }
}

/// Adds a text with its length before it, cut at a number of bytes.
pub(crate) fn put_text(body: &mut Vec<u8>, text: &str, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text.get(..end).unwrap_or_default();
    body.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
    body.extend(text.as_bytes());
}
