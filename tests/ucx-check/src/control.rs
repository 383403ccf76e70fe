//! Messages between the two processes beside UCX.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the other process may take to listen.
const LIMIT: Duration = Duration::from_secs(60);

/// One end.
#[derive(Debug)]
pub(crate) struct Control {
    stream: UnixStream,
    /// Bytes of messages that are not complete.
    received: Vec<u8>,
}

/// Bytes before a message: its length.
const HEAD: usize = 8;

impl Control {
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// Waits for the other process at a new socket.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let (stream, _) = UnixListener::bind(path)?.accept()?;
        Self::new(stream)
    }

    /// Connects to the other process, which may not listen yet.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::new(stream),
                Err(error) if begin.elapsed() > LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Sends a message, which fits the socket's buffer.
    pub(crate) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut bytes = (message.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(message);
        self.stream.write_all(&bytes)
    }

    /// Returns the next message, if it has arrived.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) if self.received.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer ended"));
            }
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let Some(head) = self.received.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let len = u64::from_le_bytes(*head) as usize;
        if self.received.len() < HEAD + len {
            return Ok(None);
        }
        let message = self.received[HEAD..HEAD + len].to_vec();
        self.received.drain(..HEAD + len);
        Ok(Some(message))
    }
}
