//! Frames: the one format of messages over a stream between two nodes.
//!
//! ```text
//! offset bytes field     little-endian
//!  0     4     magic     "gvr\0"
//!  4     2     version   1
//!  6     2     kind      1 hello, 2 ready, 3 offer; 16 queue pair, 17 region; 32 JSON, 33 cable
//!  8     4     length    of the body
//! 12     …     body      by kind
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::connect::Message;

const MAGIC: [u8; 4] = *b"gvr\0";
const VERSION: u16 = 1;
const HEAD: usize = 12;
const SEND: &str = "send to the peer";
const RECEIVE: &str = "receive from the peer";

/// Writes one frame.
pub(crate) fn write(stream: &mut impl Write, kind: u16, body: &[u8]) -> Result<()> {
    let len = u32::try_from(body.len()).map_err(|_| protocol("the message is longer than 4 GiB"))?;
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend(MAGIC);
    frame.extend(VERSION.to_le_bytes());
    frame.extend(kind.to_le_bytes());
    frame.extend(len.to_le_bytes());
    frame.extend(body);
    let written = stream.write_all(&frame).and_then(|()| stream.flush());
    written.map_err(|error| io_error(SEND, &error))
}

/// Reads exactly one frame, which must have this kind and at most `max_len` bytes of body.
pub(crate) fn read(stream: &mut impl Read, kind: u16, max_len: usize) -> Result<Vec<u8>> {
    let mut head = [0; HEAD];
    let failed = |error| io_error(RECEIVE, &error);
    stream.read_exact(&mut head).map_err(failed)?;
    if head[..4] != MAGIC {
        return Err(protocol("the bytes are not a frame")
            .saw(format!("{:02x?}", &head[..4]), format!("{MAGIC:02x?}")));
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(protocol("the peer has another version").saw(version, VERSION));
    }
    let seen = u16::from_le_bytes([head[6], head[7]]);
    if seen != kind {
        return Err(protocol("another message was expected").saw(seen, kind));
    }
    let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if len > max_len {
        return Err(protocol("the message is too long").saw(len, format!("at most {max_len}")));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).map_err(failed)?;
    Ok(body)
}

/// An error of a message that the peer sent.
pub(crate) fn protocol(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, RECEIVE).because(cause)
}

fn io_error(operation: &'static str, error: &io::Error) -> Error {
    let disconnected = Error::new(ErrorKind::Disconnected, operation);
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero, _) => {
            disconnected.because("the peer closed the stream")
        }
        // A deadline of the stream is EAGAIN; this is the kernel's, after probes without an answer.
        (_, Some(errno)) if errno == Errno::ETIMEDOUT as i32 => disconnected
            .with_errno(Errno::ETIMEDOUT)
            .because("the peer's machine does not answer"),
        (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _) => Error::timed_out(operation),
        (_, Some(errno)) => Error::from_errno(operation, Errno::from_raw(errno)),
        (_, None) => Error::new(ErrorKind::Io, operation).because(error.to_string()),
    }
}

/// A connected stream between two nodes: TCP for two machines, a Unix socket for two processes.
///
/// It must report a hang-up through `poll(2)` (`POLLRDHUP`), as sockets do: a peer that dies while
/// it owes an answer is detected by that.
pub trait Stream: Read + Write + AsFd + Send + 'static {
    /// Sets how long one read and one write may take from now on; `None` for no limit.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;

    /// Makes the stream detect a peer whose machine does not answer, and send small messages at
    /// once. Called once, before the first message.
    ///
    /// TCP: `SO_KEEPALIVE` with a first probe after 10 s of silence (`TCP_KEEPIDLE`), the next
    /// after 5 s each (`TCP_KEEPINTVL`), and the end after four without an answer
    /// (`TCP_KEEPCNT`). Bytes without an acknowledgement end it after 30 s too
    /// (`TCP_USER_TIMEOUT`). So a machine that loses power is `Disconnected` after 30 s. A Unix
    /// socket needs nothing: the kernel closes the peer's end.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Seconds of silence before the first probe and between two, and the number of probes.
const KEEPALIVE: [u32; 3] = [10, 5, 4];
/// Milliseconds that bytes may be without an acknowledgement.
const UNACKNOWLEDGED: u32 = 1000 * (KEEPALIVE[0] + KEEPALIVE[1] * KEEPALIVE[2]);

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    fn prepare(&self) -> io::Result<()> {
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

impl Stream for Box<dyn Stream> {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        (**self).set_timeout(timeout)
    }

    fn prepare(&self) -> io::Result<()> {
        (**self).prepare()
    }
}

/// A stream until a deadline, which is checked before every call: a peer that sends a message in
/// small pieces cannot extend it.
struct Timed<'a> {
    stream: &'a mut dyn Stream,
    end: Option<Instant>,
    /// Bytes read or written.
    moved: usize,
}

impl Timed<'_> {
    fn arm(&self) -> io::Result<()> {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeout(left)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        let count = self.stream.read(into)?;
        self.moved += count;
        Ok(count)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.arm()?;
        let count = self.stream.write(from)?;
        self.moved += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A stream of frames. Each frame has one deadline; `None` is no deadline.
///
/// After any error but a `TimedOut` before the first byte of a frame, the two ends are out of step:
/// the stream is [`broken`](Self::broken), and every call returns that error.
pub struct Framed {
    stream: Box<dyn Stream>,
    broken: Option<Error>,
}

impl Framed {
    /// Takes a stream at the border of two frames.
    pub fn new(stream: impl Stream) -> Self {
        Self {
            stream: Box::new(stream),
            broken: None,
        }
    }

    /// Returns why the stream cannot be used any more, if it cannot.
    pub fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed.
    /// - `Disconnected`: the peer closed the stream, or its machine does not answer.
    /// - The error that broke the stream before.
    pub fn send(&mut self, kind: u16, body: &[u8], end: Option<Instant>) -> Result<()> {
        self.frame(end, |stream| write(stream, kind, body))
    }

    /// Receives the next frame, which must have this kind, and returns its body of at most
    /// `max_len` bytes.
    ///
    /// # Errors
    /// As [`send`](Self::send), and `Protocol`: the bytes are not such a frame.
    pub fn receive(&mut self, kind: u16, max_len: usize, end: Option<Instant>) -> Result<Vec<u8>> {
        self.frame(end, |stream| read(stream, kind, max_len))
    }

    /// Sends a message and receives the peer's of the same type: both ends call this at the same
    /// point.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn exchange<M: Message>(&mut self, local: &M, end: Option<Instant>) -> Result<M> {
        self.frame(end, |stream| crate::connect::exchange(stream, local))
    }

    fn frame<T>(
        &mut self,
        end: Option<Instant>,
        transfer: impl FnOnce(&mut Timed<'_>) -> Result<T>,
    ) -> Result<T> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let mut stream = Timed {
            stream: &mut *self.stream,
            end,
            moved: 0,
        };
        let result = transfer(&mut stream);
        if let Err(error) = &result {
            self.broken = match (error.kind(), stream.moved) {
                (ErrorKind::TimedOut, 0) => None,
                // The deadline was of one call; the next call must not branch on it.
                (ErrorKind::TimedOut, _) => {
                    Some(Error::new(ErrorKind::Disconnected, error.operation()).because(
                        "a message stopped in its middle: its rest cannot be distinguished from the next",
                    ))
                }
                _ => Some(error.clone()),
            };
        }
        result
    }
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
