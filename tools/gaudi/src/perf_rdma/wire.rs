//! The socket between the two processes, and the cable between two software NICs.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gaudi_remote::Stream;
use gaudi_seam::{Error, ErrorKind};
use gaudi_sys::poll::readable;

use crate::demo::protocol::Control;

/// A connected socket.
pub(super) enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Wire {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).map_err(|error| {
            Error::from_errno("connect", gaudi_sys::fd::errno_of(error))
                .because(format!("nobody answers at {address}"))
                .helped_by("start the other end first: the same command with --listen ADDRESS:PORT instead of --connect")
        })?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// The same socket once more.
    pub(super) fn duplicate(&self) -> Result<Any> {
        Ok(match self {
            Self::Unix(stream) => Any(Box::new(stream.try_clone()?)),
            Self::Tcp(stream) => Any(Box::new(stream.try_clone()?)),
        })
    }

    /// One end of a cable, whose other end goes to the peer.
    pub(super) fn cable(&self, control: &mut Control) -> Result<OwnedFd> {
        Ok(match self {
            Self::Unix(_) => {
                let (ours, theirs) = UnixStream::pair().context("making a cable")?;
                control.send_cable(&theirs)?;
                ours.into()
            }
            Self::Tcp(stream) => {
                // Whoever else connects there meanwhile does not know the word.
                let word = RandomState::new().build_hasher().finish();
                control.send(&word)?;
                let mut cable = TcpStream::connect(stream.peer_addr()?).context("connecting the cable")?;
                cable.set_nodelay(true)?;
                cable.write_all(&word.to_le_bytes()).context("naming the cable")?;
                cable.into()
            }
        })
    }

    pub(super) fn take_cable(
        &self,
        listener: Option<&TcpListener>,
        control: &mut Control,
        patience: Duration,
    ) -> Result<OwnedFd> {
        Ok(match (self, listener) {
            (Self::Unix(_), _) => control.receive_cable()?,
            (Self::Tcp(_), Some(listener)) => {
                let word: u64 = control.receive()?;
                accept_cable(listener, control, word, patience)?.into()
            }
            (Self::Tcp(_), None) => bail!("a cable needs a listener"),
        })
    }
}

/// The connection that begins with the word that was agreed on; others are hung up on.
fn accept_cable(
    listener: &TcpListener,
    control: &Control,
    word: u64,
    patience: Duration,
) -> Result<TcpStream> {
    let end = Instant::now().checked_add(patience);
    loop {
        let left = end.map_or(patience, |end| end.saturating_duration_since(Instant::now()));
        let fds = [listener.as_fd(), control.as_fd()];
        let [came, spoke] =
            readable(fds, left).map_err(|errno| Error::from_errno("wait for the cable", errno))?;
        if !came {
            // The other end has nothing to say now: that it is readable means that it went.
            return Err(match spoke {
                true => Error::new(ErrorKind::Disconnected, "wait for the cable"),
                false => Error::timed_out("wait for the cable"),
            }
            .into());
        }
        let (mut cable, _) = listener.accept().context("accepting the cable")?;
        cable.set_nodelay(true)?;
        cable.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut said = [0; 8];
        if cable.read_exact(&mut said).is_ok() && u64::from_le_bytes(said) == word {
            cable.set_read_timeout(None)?;
            return Ok(cable);
        }
    }
}

/// A stream of either kind.
pub(super) struct Any(Box<dyn Stream>);

impl std::io::Read for Any {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl std::io::Write for Any {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.0.write(from)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl std::os::fd::AsFd for Any {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Any {
    fn set_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        self.0.set_timeout(timeout)
    }
}
