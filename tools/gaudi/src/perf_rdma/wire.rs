//! The socket between the two processes, and the cable between two software NICs.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};
use gaudi_remote::Stream;

use crate::demo::protocol::Control;

/// A connected socket.
pub(super) enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Wire {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
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
                let cable = TcpStream::connect(stream.peer_addr()?).context("connecting the cable")?;
                cable.set_nodelay(true)?;
                cable.into()
            }
        })
    }

    pub(super) fn take_cable(
        &self,
        listener: Option<&TcpListener>,
        control: &mut Control,
    ) -> Result<OwnedFd> {
        Ok(match (self, listener) {
            (Self::Unix(_), _) => control.receive_cable()?,
            (Self::Tcp(_), Some(listener)) => {
                let (cable, _) = listener.accept().context("accepting the cable")?;
                cable.set_nodelay(true)?;
                cable.into()
            }
            (Self::Tcp(_), None) => bail!("a cable needs a listener"),
        })
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
    fn set_timeout(&self, timeout: Option<std::time::Duration>) -> std::io::Result<()> {
        self.0.set_timeout(timeout)
    }
}
