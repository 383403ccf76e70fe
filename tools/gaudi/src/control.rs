//! Control messages between two processes: JSON in frames of the facade, over the socket that joins
//! them.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gaudi::sys::{poll::readable, socket};
use gaudi::verbs::{Framed, Stream};
use gaudi::{Errno, Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::nic::RDMA;

/// The kind of the frames.
const JSON: u16 = 32;
/// The longest message.
const MAX_BODY: usize = 64 << 10;
/// Timeout of one message, unless it is set.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for the reason of a peer that failed.
const PEER_FAILURE: Duration = Duration::from_secs(2);
const SEND: &str = "send to the peer";
const RECEIVE: &str = "receive from the peer";

/// Replaces control characters in a peer's text: they are commands to a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// An error, as it is sent to the other process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The error's kind, by name.
    kind: Option<String>,
    errno: Option<i32>,
    message: String,
    help: Option<String>,
}

/// Returns the framework's error in a chain of causes.
fn ours(error: &anyhow::Error) -> Option<&Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

impl Failure {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let ours = ours(error);
        Self {
            kind: ours.map(|error| error.kind().name().to_owned()),
            errno: ours.and_then(Error::errno).map(|errno| errno as i32),
            message: format!("{error:#}"),
            help: ours
                .and_then(Error::help)
                .or_else(|| crate::exit::io_help(error))
                .map(str::to_owned),
        }
    }

    /// Returns the error of the other process as an error of `operation`.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        let kind = self.kind.and_then(|name| ErrorKind::of_name(&name));
        let mut error =
            Error::new(kind.unwrap_or(ErrorKind::Io), operation).because(printable(&self.message));
        if let Some(errno) = self.errno {
            error = error.with_errno(Errno::from_raw(errno));
        }
        if let Some(help) = self.help {
            error = error.helped_by(printable(&help));
        }
        error
    }
}

/// The messages of a peer, of which one is its failure.
pub(crate) trait Reply: DeserializeOwned + fmt::Debug {
    /// The operation of errors that are the peer's.
    const PEER: &'static str;

    /// Returns the message; `None` if it only shows that the peer runs.
    ///
    /// # Errors
    /// The peer's failure, if the message is one.
    fn settle(self) -> anyhow::Result<Option<Self>>;
}

/// Returns the error of a message that the protocol does not allow here.
pub(crate) fn out_of_step(message: &impl fmt::Debug) -> anyhow::Error {
    invalid(RECEIVE, format!("unexpected message: {message:?}")).into()
}

/// One end of the control socket.
///
/// A message has one deadline: a peer that sends it in small pieces cannot extend it.
pub(crate) struct Control {
    stream: Framed,
    timeout: Duration,
}

impl Control {
    pub(crate) fn new(stream: impl Stream) -> Self {
        Self {
            stream: Framed::new(stream),
            timeout: TIMEOUT,
        }
    }

    /// Sets the timeout of each message.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the stream and a deadline, for messages that the facade defines.
    pub(crate) fn framed(&mut self) -> (&mut Framed, Option<Instant>) {
        (&mut self.stream, Instant::now().checked_add(self.timeout))
    }

    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let body = serde_json::to_vec(message).map_err(|error| invalid(SEND, error.to_string()))?;
        tracing::debug!("to the other node: {}", String::from_utf8_lossy(&body));
        let (stream, end) = self.framed();
        stream.send(JSON, &body, end)
    }

    /// Receives one message.
    ///
    /// # Errors
    /// - `TimedOut`: the whole message did not arrive in time.
    /// - `Disconnected`: the peer closed the stream.
    /// - `Protocol`: the bytes are not such a message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let (stream, end) = self.framed();
        let body = stream.receive(JSON, MAX_BODY, end)?;
        let text = String::from_utf8_lossy(&body);
        tracing::debug!("from the other node: {}", printable(&text));
        serde_json::from_slice(&body).map_err(|error| invalid(RECEIVE, error.to_string()))
    }

    /// Receives the peer's next message.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and the peer's failure.
    pub(crate) fn reply<T: Reply>(&mut self) -> anyhow::Result<T> {
        loop {
            if let Some(message) = self.receive::<T>()?.settle()? {
                return Ok(message);
            }
        }
    }

    /// Returns the peer's own failure if it explains `error`, otherwise `error`. A NIC or a socket
    /// that lost its peer does not report the cause.
    pub(crate) fn explain_by_peer<T: Reply>(&mut self, error: anyhow::Error) -> anyhow::Error {
        let is_peers = |error: &anyhow::Error| ours(error).is_some_and(|error| error.operation() == T::PEER);
        let is_lost = error
            .downcast_ref::<Error>()
            .is_some_and(|error| error.operation() == RDMA || error.kind() == ErrorKind::Disconnected);
        if !is_lost || is_peers(&error) {
            return error;
        }
        // In all: heartbeats of a peer that has not failed extend no wait.
        let end = Instant::now() + PEER_FAILURE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return error;
            }
            self.set_timeout(left);
            let message = self.receive::<T>().map_err(anyhow::Error::from);
            match message.and_then(T::settle) {
                Ok(_) => {}
                Err(reason) if is_peers(&reason) => return reason,
                Err(_) => return error,
            }
        }
    }

    /// Sends one end of the NICs' cable to the other process.
    pub(crate) fn send_cable(&self, cable: impl AsFd) -> Result<()> {
        const OP: &str = "send the cable";
        match socket::send_with_fds(self, b"C", &[cable.as_fd()]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Disconnected, OP)),
            Err(errno) => Err(Error::from_errno(OP, errno)),
        }
    }

    pub(crate) fn receive_cable(&self) -> Result<OwnedFd> {
        const OP: &str = "receive the cable";
        let errno = |errno| Error::from_errno(OP, errno);
        let [ready] = readable([self.as_fd()], self.timeout).map_err(errno)?;
        if !ready {
            return Err(Error::timed_out(OP));
        }
        let mut byte = [0; 1];
        let (count, mut fds) = socket::receive_with_fds(self, &mut byte).map_err(errno)?;
        match (count, byte, fds.pop(), fds.is_empty()) {
            (1, [b'C'], Some(fd), true) => Ok(fd),
            (0, ..) => Err(Error::new(ErrorKind::Disconnected, OP).because("the peer closed the stream")),
            _ => Err(invalid(OP, "the message is not a cable".to_owned())),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn invalid(operation: &'static str, cause: String) -> Error {
    Error::new(ErrorKind::Protocol, operation).because(cause)
}
